# SPDX-License-Identifier: Apache-2.0
"""Normalized SQL: no data in it, and the same digest for statements that differ in data only."""

from __future__ import annotations

import itertools
import re
import time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.server.statements import MAX_TEXT, is_certain, normalize

MARK = "SECRET"
UNREADABLE = "<unreadable SQL sha256:"

SAME = [
    ("SELECT * FROM t WHERE a = 5", "SELECT *  FROM t\n WHERE a=-7.5e3"),
    ("SELECT 'a'", 'SELECT "b"'),
    ("SELECT 'a'", "SELECT _utf8mb4'b' 'c'"),
    ("SELECT 'a'", "SELECT N'b'"),
    ("SELECT x'4D'", "SELECT 0x4D"),
    ("SELECT b'01'", "SELECT 0b01"),
    ("SELECT 1 /* one */", "SELECT 2 -- two"),
    ("SELECT 1 # x", "SELECT /*!40001 SQL_NO_CACHE */ 2"),
    ("SELECT 1 FROM t WHERE a IN (1)", "SELECT 1 FROM t WHERE a IN (1, 2, 'x', NULL)"),
    ("SELECT 1 FROM t WHERE (a, b) IN ((1,2))", "SELECT 1 FROM t WHERE (a,b) IN ((1,2),(3,4))"),
    ("INSERT INTO t VALUES (1, 'x')", "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL)"),
    ("INSERT INTO t VALUES (1, now())", "INSERT INTO t VALUES (3, now()), (4, now()), (5, 'cut"),
    ("UPDATE t SET a = NULL WHERE b = 1", "UPDATE t SET a = 'x' WHERE b = TRUE"),
    ("SELECT $1", "SELECT 'x'"),
    ("DO $$ SELECT 1 $$", "DO $x$ SELECT 2 $x$"),
    ("SELECT '2020-01-01' + INTERVAL 1 DAY", "SELECT '1999-01-01' + INTERVAL 30 DAY"),
    (r"UPDATE t SET a = 'it\'s'", "UPDATE t SET a = 'it''s'"),
    (r"SELECT 1 FROM t WHERE a = 'O\'Brien' AND b", r"SELECT 2 FROM t WHERE a = 'x' AND b"),
    ("SET x = word", "SET x = 'word'"),
]
DIFFERENT = [
    ("SELECT a FROM t", "SELECT b FROM t"),
    ("SELECT a FROM t WHERE b IS NULL", "SELECT a FROM t WHERE b = NULL"),
    ("SELECT a - 1", "SELECT a + 1"),
    ("SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE b IN (1)"),
]
TEXTS = [
    (
        "select  a.b , count( * ) from `x y`.t where c<=>1",
        "select a.b, count(*) from `x y`.t where c <=> ?",
    ),
    ("UPDATE t SET b=b+1 WHERE a=1", "UPDATE t SET b = b + ? WHERE a = ?"),
    ("SELECT @a:=1, @@global.x", "SELECT @a := ?, @@global.x"),
    ("SELECT * FROM t WHERE a IN(1,2)", "SELECT * FROM t WHERE a IN (?+)"),
    ("INSERT INTO t (a) VALUES (1),(2)", "INSERT INTO t (a) VALUES (?+)"),
    ("SELECT 'cut o", "SELECT ?"),
    ("CREATE USER 'a'@'b' IDENTIFIED BY 'x'", "CREATE USER ?@? IDENTIFIED …"),
    ("/* nothing but this */", "/**/"),
    ("", ""),
]
IN_DOUBT = [
    (f"SELECT 'it's {MARK}' FROM t", "SELECT ? …"),
    (rf"SELECT 'a\', '{MARK}", "SELECT ? …"),  # two readings, by NO_BACKSLASH_ESCAPES
    (r"SELECT 'it\'s'", "SELECT ? …"),  # so has this, cut off: it could be an alias
    (rf"SELECT '\' foo, ', {MARK}", "SELECT ? …"),
    (rf"SELECT concat('a', '\'), b FROM t WHERE c BETWEEN ',{MARK}", "SELECT concat(?, ? …"),
    (f"SELECT 5--1 {MARK}", "SELECT ? …"),  # a comment in PostgreSQL
    (f"SELECT 1 /* a /* b */ {MARK} */", "SELECT ? …"),  # comments nest in PostgreSQL
    (f"SELECT /*!99999 '*/ {MARK}' */ 1", "SELECT …"),
    (f"""SELECT /*! "'"' */ , {MARK} FROM t WHERE a = ' */""", "SELECT …"),
    (f"SELECT /*! # */ {MARK}\n*/ a", "SELECT …"),
    (f"SELECT 1 # /*\n{MARK} */", "SELECT ? …"),
    (f"SELECT $a$ ' $a$ {MARK} '", "SELECT ? …"),
    (f"SELECT E'it\\'s {MARK}'", "SELECT ? …"),  # to MySQL the E is a name
    (f"SELECT a = 'é\\' OR b = {MARK}", "SELECT a = ? …"),  # one character of GBK and Big5
    (f"SELECT 1 \0 {MARK}", "SELECT ? …"),
    (f"SELECT 1 \ufffd {MARK}", "SELECT ? …"),
    (f"SELECT 1 */ {MARK}", "SELECT ? …"),
    (f"SELECT 'a', \u2018{MARK}\u2019", "SELECT ?, …"),
    # One mode reads it, and another doubts it for another reason.
    (f"SELECT '{MARK}' \"a\\\"`\", (SELECT '{MARK}' FROM `n`) /* /* */ LIMIT 1", "SELECT ? …"),
    ("SELECT " + "(" * 1000, "SELECT " + "(" * 64 + " …"),
    ("SELECT " + "x" * 1000, "SELECT …"),
    # MariaDB reads names in brackets in sql_mode MSSQL.
    (f"SELECT [a'b], '{MARK}', [c'd]", "SELECT …"),
    (f"SELECT [a]]'b], '{MARK}', [c'd]", "SELECT …"),
    (f"SELECT [a\"b], '{MARK}\"'", "SELECT …"),
    (f"SELECT [a -- ], 'x\n{MARK}', [b -- ], 'y\nz'", "SELECT …"),
    (f"SELECT [a'b, {MARK}", "SELECT …"),
]
"""Statements that servers could read in different ways, and what is certain of them."""
UNREADABLES = [f"SELECT 1 \\ {MARK}", f"\ufffd {MARK}", f"\0{MARK}"]
WORDS = [
    (f"SET app.token TO 'a', {MARK}", "SET app.token TO ?, ?"),
    (f"SET a = {MARK}, GLOBAL b = {MARK}, @c = 1", "SET a = ?, GLOBAL b = ?, @c = ?"),
    ("SET NAMES utf8mb4 COLLATE x", "SET NAMES utf8mb4 COLLATE ?"),
    ("SET SESSION sql_log_bin = OFF", "SET SESSION sql_log_bin = OFF"),
    ("SET @a = (SELECT max(b) FROM t)", "SET @a = (SELECT max(b) FROM t)"),
    ("SET STATEMENT a = 1 FOR DELETE FROM t", "SET STATEMENT a = ? FOR DELETE FROM t"),
    (f"SET ROLE {MARK}", "SET ROLE ?"),
    (f"SET SESSION AUTHORIZATION {MARK}", "SET SESSION AUTHORIZATION ?"),
    ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", None),
    (f"BEGIN NOT ATOMIC SET a = {MARK}; SELECT b FROM t; END", None),
    (f"ALTER SYSTEM SET a = {MARK}", "ALTER SYSTEM SET a = ?"),
    (f"ALTER DATABASE d SET a TO {MARK}", "ALTER DATABASE d SET a TO ?"),
    (f"CREATE TABLE t (a INT) PASSWORD={MARK}", "CREATE TABLE t (a INT) PASSWORD = ?"),
    ("ALTER TABLE t ADD COLUMN a INT, ENGINE = InnoDB", None),
    ("ALTER TABLE t ALTER a SET DEFAULT 5, DROP b", "ALTER TABLE t ALTER a SET DEFAULT ?, DROP b"),
    ("ALTER TABLE t CHARACTER SET utf8mb4", None),
    ("CREATE VIEW v AS SELECT a FROM t WHERE b = c", None),
    (f"CREATE USER {MARK}@{MARK}", "CREATE USER ? ?"),
    (f"GRANT SELECT ON `d`.t TO {MARK}", "GRANT SELECT ON `d`.t TO ?"),
    (f"HELP {MARK}", "HELP ?"),
    (f"SHOW GRANTS FOR {MARK}", "SHOW GRANTS FOR ?"),
    ("SHOW FULL COLUMNS FROM `t` FROM d", None),
    ("SHOW CREATE TABLE d.t", None),
    (f"LISTEN {MARK}", "LISTEN ?"),
    (f"NOTIFY {MARK}, 'a'", "NOTIFY ?, ?"),
    (f"{MARK} FROM {MARK}", "? FROM ?"),
    (f"SELECT `a b`, `x',{MARK}` FROM t", "SELECT `a b`, `?` FROM t"),
    ("LOCK TABLES a READ, b AS c WRITE", None),
    ("autovacuum: VACUUM ANALYZE public.t", "autovacuum : VACUUM ANALYZE public.t"),
    ("(SELECT a FROM t)", None),
]
"""Statements, and how they are shown; None: as they are, but for the secret."""
PASSWORDS = [
    f"CREATE USER a IDENTIFIED BY '{MARK}'",
    f"CREATE USER a IDENTIFIED BY PASSWORD '*{MARK}'",
    f"CREATE USER a@b IDENTIFIED WITH p AS 0x{MARK.encode().hex()}{MARK}",
    f"ALTER USER a IDENTIFIED BY {MARK}",
    f"GRANT ALL ON *.* TO a IDENTIFIED BY '{MARK}' WITH GRANT OPTION",
    f"SET PASSWORD = PASSWORD('{MARK}')",
    f'SET PASSWORD FOR a@b = "{MARK}"',
    f"CHANGE MASTER TO MASTER_PASSWORD = '{MARK}'",
    f'CHANGE MASTER TO MASTER_PASSWORD="{MARK}"',
    f"CHANGE REPLICATION SOURCE TO SOURCE_USER='x', SOURCE_PASSWORD='{MARK}'",
    f"CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'x', PASSWORD '{MARK}')",
    f'SELECT PASSWORD("{MARK}")',
    f"START SLAVE USER='x' PASSWORD='{MARK}'",
    f"ALTER ROLE a WITH ENCRYPTED PASSWORD '{MARK}'",
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_statements_that_differ_in_literals_have_one_digest(a: str, b: str) -> None:
    assert normalize(a) == normalize(b)
    assert not normalize(a).text.startswith(UNREADABLE)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_other_statements_have_other_digests(a: str, b: str) -> None:
    assert normalize(a).digest != normalize(b).digest


@pytest.mark.parametrize(("sql", "text"), TEXTS)
def test_text(sql: str, text: str) -> None:
    assert normalize(sql).text == text


@pytest.mark.parametrize(("sql", "text"), IN_DOUBT)
def test_a_statement_is_shown_as_far_as_every_reading_is_the_same(sql: str, text: str) -> None:
    assert normalize(sql).text == text
    assert not is_certain(sql)
    for ansi, escapes in itertools.product([False, True], repeat=2):
        assert MARK not in normalize(sql, ansi_quotes=ansi, no_backslash_escapes=escapes).text


@pytest.mark.parametrize(("sql", "text"), WORDS)
def test_words_are_shown_where_they_are_names(sql: str, text: str | None) -> None:
    assert normalize(sql).text == (text or sql.replace(MARK, "?"))
    assert normalize(normalize(sql).text) == normalize(sql)


def test_the_hash_of_what_is_unreadable_has_no_data_in_it() -> None:
    assert normalize("\ufffd 'secret'") == normalize("\ufffd 'other'")


@pytest.mark.parametrize("sql", UNREADABLES)
def test_what_cannot_be_read_for_certain_is_a_hash(sql: str) -> None:
    assert normalize(sql).text.startswith(UNREADABLE)


@pytest.mark.parametrize("ansi", [False, True])
@pytest.mark.parametrize("sql", PASSWORDS)
def test_passwords(sql: str, ansi: bool) -> None:
    found = normalize(sql, ansi_quotes=ansi).text
    assert MARK not in found
    assert MARK.encode().hex() not in found


def test_modes() -> None:
    assert normalize(r"SELECT 'a\'", no_backslash_escapes=True).text == "SELECT ?"
    assert normalize("SELECT 1 # x", ansi_quotes=True).text == "SELECT ?"
    assert normalize("SELECT 1 # it's").text == "SELECT ? …"  # PostgreSQL's operator


QUOTED = [
    ('SELECT "a" FROM "t"', 'SELECT ? FROM "t"'),
    ('SELECT t."a", "t".b FROM "s"."t"', 'SELECT t."a", "t".b FROM "s"."t"'),
    ('SELECT a FROM t JOIN "u" ON a = "b"', 'SELECT a FROM t JOIN "u" ON a = ?'),
    ('INSERT INTO "t" ("a") VALUES ("b")', 'INSERT INTO "t" (?) VALUES (?+)'),
    ('UPDATE "t" SET "a" = 1', 'UPDATE "t" SET ? = ?'),
    ('DELETE FROM "t" WHERE a = "b"', 'DELETE FROM "t" WHERE a = ?'),
    ('CREATE TABLE "t" (a INT)', 'CREATE TABLE "t" (a INT)'),
    ('SELECT TRIM("a" FROM "b") FROM t', "SELECT TRIM(? FROM ?) FROM t"),
    ('SELECT EXTRACT(YEAR FROM "2020-01-01")', "SELECT EXTRACT(YEAR FROM ?)"),
    ('SELECT (SELECT 1 FROM "t") FROM "u"', 'SELECT (SELECT ? FROM "t") FROM "u"'),
    ('PREPARE s FROM "SELECT 1"', "PREPARE s FROM ?"),
    ('SELECT a IS DISTINCT FROM "b"', "SELECT a IS DISTINCT FROM ?"),
    ('SELECT 1 INTO OUTFILE "f"', "SELECT ? INTO OUTFILE ?"),
    ('SELECT 1."a"', "SELECT ? ?"),
]


@pytest.mark.parametrize(("sql", "text"), QUOTED)
def test_double_quotes_are_data_unless_no_mode_reads_a_string(sql: str, text: str) -> None:
    assert normalize(sql, ansi_quotes=True).text == text
    # Of a server that reads strings, nothing in double quotes is shown.
    assert '"' not in normalize(sql).text
    assert "?" in normalize(sql).text or '"' not in sql


def test_brackets_without_odd_quotes_are_read() -> None:
    assert normalize("SELECT [a b], 'x' FROM [t]").text == "SELECT [a b], ? FROM [t]"
    assert normalize("SELECT ARRAY['a', 'b']").text == "SELECT ARRAY[?, ?]"


HOSTILE = ["'", "\\'", "$a$", "/*", "(", "IN(", "`", "1,", "-", "IN(a,", "a'", "VALUES((", "a "]


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_megabyte_is_bounded(unit: str) -> None:
    sql = unit * (1_000_000 // len(unit))
    begin = time.process_time()
    found = normalize(sql)
    assert time.process_time() - begin < 1
    assert len(found.text) <= MAX_TEXT


inner = st.text(st.sampled_from("ab \n\\%;,()*/-#@?=$é0"), max_size=8)


def _quoted(quote: str, text: str, other: str) -> str:
    """Return a string literal in the default mode, the mark between two odd texts."""
    body = f"{text}{other}{MARK}{other}{text}"
    return quote + body.replace("\\", "\\\\").replace(quote, quote * 2) + quote


STRINGS = st.builds(
    lambda prefix, quote, text, other: prefix + _quoted(quote, text, other),
    st.sampled_from(["", "", "", "N", "_utf8", "_latin1 "]),
    st.sampled_from("'\""),
    inner,
    st.sampled_from(["", "'", '"', "`", " '", "/*", "-- "]),
)
ESCAPED = st.builds(lambda text: f"'{text}\\'{MARK}\\''", st.sampled_from(["", "a", " b "]))
OTHERS = st.sampled_from([f"x'{MARK}'", f"0x{MARK}", f"1{MARK}", f"$${MARK}$$", "5", "-5", "1e7"])
LITERALS = st.one_of(STRINGS, STRINGS, ESCAPED, OTHERS)
COMMENTS = st.sampled_from([f"/* {MARK} */", f"-- {MARK}\n", f"# {MARK}\n", f"/*! {MARK} */", " "])
TEMPLATES = [
    "SELECT a FROM t WHERE b = {} {}AND c > {}",
    "INSERT INTO t (a, b) {}VALUES ({}, {})",
    "UPDATE t SET a = {}, {}b = b + {} WHERE c LIKE {}",
    "SELECT a FROM t{} WHERE b IN ({}, {}, {}) LIMIT 5",
    "SELECT concat({}, {}), a{} FROM t WHERE d BETWEEN {} AND {}",
    "CREATE USER u{} IDENTIFIED BY {}",
    "SELECT CASE WHEN a = {} THEN {} ELSE {} END{} FROM t",
]


@st.composite
def statements(draw: st.DrawFn) -> tuple[str, str]:
    """Return two statements that differ in literals and comments only."""
    template = draw(st.sampled_from(TEMPLATES))
    parts = template.split("{}")
    both = []
    for _ in range(2):
        out = parts[0]
        for before, part in itertools.pairwise(parts):
            value = before.rstrip().endswith(("=", ">", "+", "(", ",", "LIKE", "BETWEEN", "AND"))
            value = value or before.rstrip().endswith(("BY", "THEN", "ELSE"))
            filled = draw(LITERALS if value else COMMENTS)
            out += f" {filled} {part}"
        both.append(out)
    return both[0], both[1]


@given(statements(), st.integers(0, 200), st.booleans())
def test_no_literal_is_ever_shown(pair: tuple[str, str], end: int, ansi: bool) -> None:
    """Nor of a statement that is cut off, nor when the mode is another."""
    first, second = (normalize(sql) for sql in pair)
    assert MARK not in first.text
    assert MARK not in second.text
    readable = [s for s in (first, second) if "…" not in s.text]
    assert len({s.digest for s in readable}) <= 1
    assert MARK[:4] not in normalize(pair[0][:end]).text
    assert MARK not in normalize(pair[0], no_backslash_escapes=True, ansi_quotes=ansi).text


class Mode(NamedTuple):
    """The sql_mode of a session, as far as it changes where literals begin and end. Of the others,
    PIPES_AS_CONCAT makes an operator of ``||``, IGNORE_SPACE and HIGH_NOT_PRECEDENCE change no
    token, and ORACLE, DB2, MAXDB and POSTGRESQL are names for some of them with ANSI_QUOTES."""

    ansi_quotes: bool
    no_backslash_escapes: bool
    mssql: bool

    def string(self, quote: str, body: str) -> str:
        """Write a literal as a client does that knows its mode."""
        if self.ansi_quotes:
            quote = "'"
        if not self.no_backslash_escapes:
            body = body.replace("\\", "\\\\")
        return quote + body.replace(quote, quote * 2) + quote

    def escaped(self, quote: str, body: str) -> str:
        """The same, with backslashes where the mode has them."""
        if self.no_backslash_escapes:
            return self.string(quote, body)
        quote = "'" if self.ansi_quotes else quote
        body = body.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
        return quote + body + quote

    def name(self, kind: str, body: str) -> str:
        """Write a name in the quotes that the mode has."""
        if kind == "[" and self.mssql:
            return "[" + body.replace("]", "]]") + "]"
        quote = '"' if kind == '"' and self.ansi_quotes else "`"
        return quote + body.replace(quote, quote * 2) + quote


MODES = [Mode(*each) for each in itertools.product([False, True], repeat=3)]
ODD = st.text(st.sampled_from("ab ,=()[]'\"`\\-#/*;."), max_size=6)
SHAPES = [
    "SELECT {n}, {s} FROM {n} WHERE {n} = {s} || {s}",
    "SELECT {n}.{n}, {s} AS {n} FROM {n} JOIN {n} ON {s} = {n}",
    "INSERT INTO {n} ({n}, {n}) VALUES ({s}, {s})",
    "UPDATE {n} SET {n} = {s} WHERE {n} IN ({s}, {s})",
    "DELETE FROM {n} WHERE NOT {n} = count ({s}) AND {n} LIKE {s}",
    "SELECT TRIM({s} FROM {s}) FROM {n} WHERE {n} BETWEEN {s} AND {s}",
    "SELECT {s} {s}, (SELECT {s} FROM {n}) FROM {n} /* it's */ LIMIT 1",
]


@st.composite
def of_modes(draw: st.DrawFn, mode: Mode) -> str:
    """Return a statement of a session in this mode."""
    parts = re.split(r"(\{[ns]\})", draw(st.sampled_from(SHAPES)))
    out = ""
    for part in parts:
        if part == "{n}":
            out += mode.name(draw(st.sampled_from('`"[')), "n" + draw(ODD).strip())
        elif part == "{s}":
            write = mode.string if draw(st.booleans()) else mode.escaped
            out += write(draw(st.sampled_from("'\"")), draw(ODD) + MARK + draw(ODD))
        else:
            out += part
    return out


@pytest.mark.parametrize("session", MODES, ids=str)
@given(st.data())
def test_no_literal_is_shown_in_any_sql_mode(session: Mode, data: st.DataObject) -> None:
    """Whatever the mode of the session is, and whatever that of the server."""
    sql = data.draw(of_modes(session))
    end = data.draw(st.integers(0, len(sql)) | st.just(len(sql)))
    for ansi, escapes in itertools.product([False, True], repeat=2):
        found = normalize(sql[:end], ansi_quotes=ansi, no_backslash_escapes=escapes)
        assert MARK[:4] not in found.text, sql[:end]


def test_plain_statements_are_readable_in_every_mode() -> None:
    """The test above could not fail if everything became a hash."""
    for mode in MODES:
        sql = f"SELECT {mode.name('[', 'a')} FROM t WHERE b = {mode.string(chr(34), 'c d')}"
        assert normalize(sql).text.endswith("FROM t WHERE b = ?"), sql


@given(st.text(st.sampled_from("ab'\"`\\ -#/*!$();,?=@N_x01\n\ufffd\0é"), max_size=60))
def test_any_text_is_read(sql: str) -> None:
    found = normalize(sql)
    assert len(found.text) <= MAX_TEXT
    assert len(found.digest) == 16
