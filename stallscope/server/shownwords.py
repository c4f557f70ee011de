# SPDX-License-Identifier: Apache-2.0
"""Which words of a statement are shown: an allow-list.

Keywords always are. Other words are shown in statements whose grammar has nothing but names there,
as SELECT, INSERT and ALTER TABLE. In all others, as SET, HELP, GRANT and what is not known, a word
can be data: only what is behind a word such as TABLE or ON is shown there, and what SET sets.
"""

from __future__ import annotations

import itertools

from stallscope.server.sqllexer import Token

__all__ = ["is_keyword", "with_shown_words"]

_OF_KEYWORDS = """
    ABORT ACTION ADD ADMIN AFTER AGAINST AGGREGATE ALGORITHM ALL ALTER ALWAYS ANALYZE AND ANY
    ARIA ARMSCII8 ARRAY AS ASC ASCII ASENSITIVE AT ATOMIC ATTACH AUTHORIZATION AUTO AUTOCOMMIT
    BACKUP BASE_BACKUP BEFORE BEGIN BETWEEN BIG5 BINARY BINLOG BLOCK BOOLEAN BOTH BTREE BY CACHE
    CALL CASCADE CASE CHAIN CHANGE CHANNEL CHAR CHARACTER CHARSET CHECK CHECKPOINT CHECKSUM
    CLIENT CLONE CLOSE CLUSTER COALESCE COLLATE COLLATION COLUMN COLUMNS COMMENT COMMIT
    COMMITTED CONCURRENTLY CONFLICT CONNECTION CONSTRAINT CONSTRAINTS CONTEXT CONVERT COPY
    CP1250 CP1251 CP1252 CP1256 CP1257 CP850 CP852 CP866 CP932 CPU CREATE CROSS CUBE CURRENT
    CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURSOR DATA DATABASE DATABASES DATE
    DAY DAY_HOUR DAY_MICROSECOND DAY_MINUTE DAY_SECOND DEALLOCATE DECLARE DEFAULT DEFERRABLE
    DEFERRED DEFINER DELAYED DELETE DESC DESCRIBE DETACH DIRECTORY DISABLE DISCARD DISTINCT DIV
    DO DROP DUMPFILE DUPLICATE EACH ELSE ELSEIF EMPTY ENABLE ENCLOSED ENCRYPTED END ENGINE
    ENGINES ERROR ERRORS ESCAPE ESCAPED EUCJPMS EUCKR EVENT EVENTS EXCEPT EXCLUDE EXCLUSIVE
    EXECUTE EXISTS EXIT EXPANSION EXPIRE EXPLAIN EXPORT EXTENDED EXTENSION EXTRACT FALSE FETCH
    FIELDS FILTER FIRST FLUSH FOLLOWING FOR FORCE FOREIGN FORMAT FROM FULL FUNCTION GB18030
    GB2312 GBK GENERAL GEOSTD8 GET GLOBAL GRANT GRANTED GRANTS GREEK GROUP GROUPING GROUPS
    GROUP_REPLICATION HANDLER HASH HAVING HEBREW HELP HELPER HIGH_PRIORITY HISTORY HOST HOSTS
    HOUR HOUR_MICROSECOND HOUR_MINUTE HOUR_SECOND HP8 IDENTIFIED IDENTIFY_SYSTEM IF IGNORE
    IGNORED ILIKE IMMEDIATE IMPORT IN INCLUDE INDEX INDEXES INFILE INITIALLY INNER INNODB
    INPLACE INSERT INSTALL INSTANCE INSTANT INT INTEGER INTERSECT INTERVAL INTO INVISIBLE
    INVOKER IO IO_THREAD IS ISNULL ISOLATION JOIN JSON KEY KEYBCS2 KEYRING KEYS KILL KOI8R KOI8U
    LAST LATERAL LATIN1 LATIN2 LATIN5 LATIN7 LEADING LEFT LESS LEVEL LIKE LIMIT LINES LISTEN
    LOAD LOCAL LOCK LOCKED LOCKS LOGICAL LOGS LOOP LOW_PRIORITY MACCE MACROMAN MAPPING MASTER
    MASTER_LOG_FILE MASTER_LOG_POS MATCH MATCHED MATERIALIZED MAXVALUE MEMBER MEMORY MERGE
    MICROSECOND MINUTE MINUTE_MICROSECOND MINUTE_SECOND MOD MODE MODIFY MONTH MOVE MUTEX MYISAM
    NAMES NATURAL NEXT NO NONE NOT NOTHING NOTIFY NOTNULL NOWAIT NULL NULLS OF OFF OFFSET ON
    ONLY OPEN OPTIMIZE OPTION OPTIONALLY OPTIONS OR ORDER ORDINALITY OUTER OUTFILE OVER OVERLAPS
    OVERLAY OWNED OWNER PARALLEL PARSER PARTITION PARTITIONS PASSING PASSWORD PATH PERSIST
    PERSIST_ONLY PHYSICAL PLACING PLUGIN PLUGINS POSITION PRECEDING PREPARE PREPARED PREV
    PRIMARY PRIVILEGES PROCEDURE PROCESS PROCESSLIST PROFILE PROFILES PROXY PUBLIC PUBLICATION
    PURGE QUARTER QUERY QUICK RANDOM RANGE READ REASSIGN REBUILD RECURSIVE REFERENCES REFRESH
    REGEXP REINDEX RELAY RELAYLOG RELEASE RELOAD RENAME REORGANIZE REPAIR REPEAT REPEATABLE
    REPLACE REPLICA REPLICAS REPLICATION REQUIRE RESET RESIGNAL RESOURCE RESTART RESTRICT RETAIN
    RETURN RETURNING REVERSE REVOKE RIGHT RLIKE ROLE ROLES ROLLBACK ROLLUP ROTATE ROUTINE ROW
    ROWS RULE SAVEPOINT SCHEMA SCHEMAS SECOND SECOND_MICROSECOND SECURITY SELECT SEPARATOR
    SEQUENCE SERIALIZABLE SERVER SESSION SESSION_USER SET SHARE SHARED SHOW SHUTDOWN SIGNAL
    SIGNED SIMILAR SIMPLE SJIS SKIP SLAVE SLAVES SLOT SLOW SNAPSHOT SOME SONAME SOUNDS SOURCE
    SOURCE_LOG_FILE SOURCE_LOG_POS SQL SQLSTATE SQL_THREAD SSL STAGE START STARTING
    START_REPLICATION STATEMENT STATS STATUS STOP STORAGE STORED STRAIGHT_JOIN STRICT
    SUBSCRIPTION SUPER SWE7 SYMMETRIC SYSTEM SYSTEM_TIME TABLE TABLES TABLESPACE TEMPORARY
    TERMINATED TEXT THAN THEN THREAD TIES TIME TIMELINE_HISTORY TIMESTAMP TIS620 TO TRADITIONAL
    TRAILING TRANSACTION TREE TRIGGER TRIGGERS TRUE TRUNCATE TRUSTED TYPE UCS2 UESCAPE UJIS
    UNBOUNDED UNCOMMITTED UNICODE UNINSTALL UNION UNIQUE UNKNOWN UNLISTEN UNLOCK UNSIGNED UNTIL
    UPDATE UPGRADE USAGE USE USER USER_RESOURCES USING UTF16 UTF16LE UTF32 UTF8 UTF8MB3 UTF8MB4
    VALID VALIDATE VALUE VALUES VARIABLES VERBOSE VERSIONING VIEW VIRTUAL VISIBLE WAIT WARNINGS
    WEEK WHEN WHERE WHILE WINDOW WITH WITHIN WITHOUT WORK WRAPPER WRITE X509 XA XML
    XMLNAMESPACES XOR YEAR YEAR_MONTH ZONE
"""
_KEYWORDS = frozenset(_OF_KEYWORDS.split())
"""Of any grammar; no data, wherever it is."""

_OF_NAMES_ONLY = """
    SELECT INSERT UPDATE DELETE REPLACE WITH TABLE VALUES MERGE CALL DO EXPLAIN DESC DESCRIBE
    ANALYZE TRUNCATE RENAME LOCK UNLOCK OPTIMIZE CHECK CHECKSUM REPAIR FLUSH LOAD HANDLER COPY
    VACUUM REINDEX CLUSTER REFRESH DECLARE FETCH CLOSE OPEN MOVE USE BEGIN COMMIT ROLLBACK
    SAVEPOINT RELEASE CACHE PREPARE EXECUTE DEALLOCATE COMMENT SECURITY CREATE ALTER DROP IF
    WHILE RETURN
"""
_NAMES_ONLY = frozenset(_OF_NAMES_ONLY.split())
"""What begins a statement whose words are names, but for what ``_VALUE_KINDS`` are."""
_OF_KINDS = """
    TABLE INDEX VIEW PROCEDURE FUNCTION TRIGGER EVENT SEQUENCE TYPE EXTENSION RULE DOMAIN
    AGGREGATE CAST COLLATION OPERATOR POLICY PUBLICATION STATISTICS PACKAGE SCHEMA DATABASE
    TABLESPACE
"""
_KINDS = frozenset(_OF_KINDS.split())
_OF_VALUE_KINDS = """
    USER ROLE SERVER SUBSCRIPTION SYSTEM INSTANCE GROUP MAPPING RESOURCE LOGFILE WRAPPER
"""
_VALUE_KINDS = frozenset(_OF_VALUE_KINDS.split())
"""What CREATE, ALTER, DROP, RENAME are of where their words can be more than names."""
_WORDS_OF_KIND = 20
_OF_SETS_ROWS = """
    SELECT INSERT UPDATE DELETE REPLACE WITH MERGE LOAD EXPLAIN DESC
"""
_SETS_ROWS = frozenset(_OF_SETS_ROWS.split())
_BEFORE_NAMES = {
    "SHOW": _KINDS | {"FROM", "IN"},
    "GRANT": frozenset({"ON", "TABLE"}),
    "REVOKE": frozenset({"ON", "TABLE"}),
}
_SCOPES = frozenset({"GLOBAL", "SESSION", "LOCAL", "PERSIST", "PERSIST_ONLY", "STATEMENT"})
_BODIES = frozenset({"AS", "SELECT", "BEGIN", "RETURN", "WITH"})
_BLANK = Token("", "", spaced=False)


def is_keyword(upper: str) -> bool:
    """Return whether a word, in upper case, is a keyword of one of the servers."""
    return upper in _KEYWORDS


def with_shown_words(tokens: list[Token]) -> list[Token]:
    """Return the tokens with ``?`` for the words that are not shown."""
    return _Words(tokens).run()


class _Words:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._begin(0)

    def _begin(self, index: int) -> None:
        """Begin a statement at a token."""
        tokens = self._tokens
        while index < len(tokens) and tokens[index].text == "(":
            index += 1
        if [token.text for token in tokens[index : index + 2]] == ["autovacuum", ":"]:
            index += 2  # PostgreSQL names its own work so.
        self._first = index
        self._verb = _at(tokens, index).upper
        self._free = [self._verb in _NAMES_ONLY]
        """Whether names are shown: of the statement, and of each pair of parentheses in it."""
        self._sets = False
        self._depth = 0
        """Of the SET that is read."""
        self._options = self._verb in ("CREATE", "ALTER")
        """What is behind ``=`` is the value of an option."""
        self._kind = ""
        if self._verb in ("CREATE", "ALTER", "DROP", "RENAME"):
            self._kind = self._kind_of(index)
            of_names = self._kind in _KINDS or (self._verb == "RENAME" and not self._kind)
            self._free = [of_names]

    def _kind_of(self, index: int) -> str:
        found = self._tokens[index : index + _WORDS_OF_KIND]
        for before, token in itertools.pairwise(found):
            if before.text != "=" and token.upper in _KINDS | _VALUE_KINDS:
                return token.upper
        return ""

    def run(self) -> list[Token]:
        out: list[Token] = []
        for index, token in enumerate(self._tokens):
            if token.text == ";":
                self._begin(index + 1)
            elif token.text == "(":
                inner = _at(self._tokens, index + 1).upper in ("SELECT", "WITH")
                self._free.append(inner or self._free[-1])
            elif token.text == ")" and len(self._free) > 1:
                self._free.pop()
            elif token.upper == "SET" and self._is_assignment(index):
                self._free[-1] = False
                self._sets, self._depth = True, len(self._free)
            elif token.upper in _BODIES:
                self._options = False
            elif self._is_inner(index):
                out.append(token)
                self._begin(index + 1)
                continue
            out.append(token if self._is_shown(index, out) else _hidden(token))
        return out

    def _is_inner(self, index: int) -> bool:
        """Return whether a statement follows: SET STATEMENT x = 1 FOR SELECT …"""
        return (
            self._verb == "SET"
            and self._tokens[index].upper == "FOR"
            and _at(self._tokens, self._first + 1).upper == "STATEMENT"
        )

    def _is_assignment(self, index: int) -> bool:
        before = _at(self._tokens, index - 1).upper
        if before in ("CHARACTER", "CHAR") or self._verb in _SETS_ROWS:
            return False
        return not (self._kind == "TABLE" and self._options)

    def _is_shown(self, index: int, out: list[Token]) -> bool:
        token = self._tokens[index]
        if token.kind not in ("word", "name", "variable") or token.upper in _KEYWORDS:
            return True
        before = _at(self._tokens, index - 1)
        if self._free[-1]:
            return not (self._options and before.text == "=")
        if before.text == "." and index > 1:
            return out[index - 2].kind != "hidden" and out[index - 2].text != "?"
        if self._sets:
            return (
                token.kind == "variable"
                or _at(self._tokens, index + 1).text == "("
                or (len(self._free) == self._depth and self._is_target(index))
            )
        return before.upper in _BEFORE_NAMES.get(self._verb, ())

    def _is_target(self, index: int) -> bool:
        """Return whether it is what SET sets: it begins an assignment, and a sign follows."""
        before = _at(self._tokens, index - 1)
        if not (before.text == "," or before.upper == "SET" or before.upper in _SCOPES):
            return False
        at = index + 1
        while _at(self._tokens, at).text == ".":
            at += 2
        sign = _at(self._tokens, at)
        return sign.text in ("=", ":=") or sign.upper == "TO"


def _at(tokens: list[Token], index: int) -> Token:
    return tokens[index] if 0 <= index < len(tokens) else _BLANK


def _hidden(token: Token) -> Token:
    return Token("hidden", "?", token.spaced)
