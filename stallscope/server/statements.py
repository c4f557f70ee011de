# SPDX-License-Identifier: Apache-2.0
"""SQL statements without the data in them: literals are ``?``, comments are gone.

The lexer reads MySQL, MariaDB and PostgreSQL. The session's modes are unknown: where there is a
backslash, the statement is read in each mode that is possible. It is shown as far as all of them
agree, then ``…``; where not even its first word is certain, it is ``<unreadable SQL sha256:…>``.
Which words are shown: shownwords.py.

What is in double quotes is data, unless it can only be a name. A statement may be cut off, as
servers do it with long ones; its last literal then runs to the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable
from functools import partial

import msgspec

from stallscope.server.shownwords import is_keyword, with_shown_words
from stallscope.server.sqllexer import (
    CUT,
    ImpossibleError,
    Lexed,
    Reading,
    Token,
    is_name,
    lex,
    shown_name,
)

__all__ = [
    "MAX_INPUT",
    "MAX_TEXT",
    "Statement",
    "begins_as_statement",
    "is_certain",
    "normalize",
    "normalizer",
]

MAX_INPUT = 16_384
"""The most characters of a statement that are parsed; a longer one counts as cut there."""
MAX_TEXT = 4096
"""The most characters of a normalized statement."""

_UNREADABLE = "<unreadable SQL sha256:"
_COMMENT = "/**/"
"""A statement of comments only."""
_LIST = "?+"
"""A list of literals of any length."""


_STATEMENTS = """
    SELECT INSERT UPDATE DELETE REPLACE SET BEGIN START COMMIT ROLLBACK SAVEPOINT RELEASE LOCK
    UNLOCK ALTER CREATE DROP TRUNCATE RENAME CALL SHOW USE DESC DESCRIBE EXPLAIN ANALYZE OPTIMIZE
    CHECK CHECKSUM REPAIR FLUSH KILL GRANT REVOKE PREPARE EXECUTE DEALLOCATE LOAD HANDLER DO WITH
    TABLE VALUES XA CHANGE STOP RESET PURGE INSTALL UNINSTALL CACHE SIGNAL BINLOG HELP SHUTDOWN
    IMPORT GET VACUUM COPY LISTEN UNLISTEN NOTIFY FETCH DECLARE CLOSE MOVE CLUSTER REINDEX DISCARD
    REFRESH COMMENT CHECKPOINT REASSIGN ABORT END
"""
_VERBS = frozenset(_STATEMENTS.split())
_FIRST_WORD = re.compile(
    r"(?:\s|/\*(?:[^*]|\*(?!/))*+\*/|\()*+"
    r"(?:([A-Za-z]{2,4})(?=\s|/\*|;?\Z)|([A-Za-z]{5,12})\b)"
)
"""A short one has to stand alone: one in some thousands of random texts begins with one of two
letters, and a sign behind it."""


def is_certain(text: str) -> bool:
    """Return whether the SQL mode of its session does not matter to what is data in it."""
    found = _read(text[:MAX_INPUT], _READINGS[0], names=False, cut=len(text) > MAX_INPUT)
    return '"' not in text and not found.endswith(CUT)


def begins_as_statement(text: str) -> bool:
    """Return whether the text begins with a word that statements begin with."""
    found = _FIRST_WORD.match(text[:MAX_INPUT])
    return found is not None and (found[1] or found[2]).upper() in _VERBS


class Statement(msgspec.Struct, frozen=True):
    """A statement as it may be stored and shown."""

    text: str
    digest: str
    """16 hexadecimal digits: the same for all statements that differ in literals only."""


_INTRODUCER = re.compile(r"_[a-z0-9_]{2,20}", re.I)

_WORDS = """
    SELECT DISTINCT ALL LIKE ILIKE RLIKE REGEXP SIMILAR SOUNDS TO IN AS AND OR XOR NOT IS BETWEEN
    CASE WHEN THEN ELSE END BY SEPARATOR ESCAPE INTERVAL DATE TIME TIMESTAMP BINARY FROM WHERE
    GROUP ORDER HAVING LIMIT OFFSET UNION EXCEPT INTERSECT ON USING INTO FOR SET VALUES VALUE DIV
    MOD AGAINST RETURN RETURNING KILL NAMES COLLATE CHARSET ENCLOSED TERMINATED ESCAPED STARTING
    OPTIONALLY LINES FIELDS COLUMNS IGNORE INFILE OUTFILE DUMPFILE COMMENT DEFAULT PASSWORD
    IDENTIFIED REQUIRE WITH JOIN LEFT RIGHT INNER OUTER CROSS NATURAL STRAIGHT_JOIN DESC ASC
    SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR DUPLICATE KEY CREATE USER DROP GRANT REVOKE
    ENGINE PARTITION LESS THAN CONNECTION DIRECTORY LOCK SHARE START STOP EXECUTE PREPARE
"""
_KEYWORDS = frozenset(_WORDS.split())
_LITERAL_WORDS = frozenset({"NULL", "TRUE", "FALSE", "DEFAULT"})
_ACCOUNT_VERBS = frozenset({"CREATE", "ALTER", "GRANT", "SET", "CHANGE", "START"})
_ACCOUNT_WORDS = frozenset(
    {"USER", "ROLE", "SERVER", "GRANT", "SET", "CHANGE", "START", "MAPPING", "SUBSCRIPTION"}
)


def normalize(
    text: str, *, ansi_quotes: bool = False, no_backslash_escapes: bool = False
) -> Statement:
    """Remove all data from a statement.

    ``ansi_quotes`` and ``no_backslash_escapes`` are the server's SQL modes of these names. A
    session can have others: no data is shown whatever its modes are.
    """
    stated = Reading(
        single_escapes=not no_backslash_escapes,
        double_escapes=not (no_backslash_escapes or ansi_quotes),
    )
    out = _read(text[:MAX_INPUT], stated, names=ansi_quotes, cut=len(text) > MAX_INPUT)
    if out == CUT:
        # Of its signs alone: who guesses a secret cannot check the guess.
        signs = re.sub(r"[^!-/:-@\[-`{-~]+", " ", text)
        out = f"{_UNREADABLE}{hashlib.sha256(signs.encode()).hexdigest()[:32]}>"
    if not out and text.strip():
        out = _COMMENT
    digest = hashlib.sha256(out.encode()).hexdigest()[:16]
    return Statement(out if len(out) <= MAX_TEXT else out[: MAX_TEXT - 1] + CUT, digest)


def normalizer(sql_mode: str) -> Callable[[str], Statement]:
    """Return ``normalize`` for a MySQL or MariaDB with this ``sql_mode``."""
    return partial(
        normalize,
        ansi_quotes="ANSI_QUOTES" in sql_mode,
        no_backslash_escapes="NO_BACKSLASH_ESCAPES" in sql_mode,
    )


_READINGS = (Reading(True, True), Reading(False, False), Reading(True, False))
"""Of all SQL modes: the default, NO_BACKSLASH_ESCAPES, ANSI_QUOTES."""


def _read(text: str, stated: Reading, *, names: bool, cut: bool) -> str:
    """Return what is shown of a statement; it ends with CUT where the rest is not certain."""
    doubtful = "\\" in text
    readings: list[tuple[Lexed, list[Token]]] = []
    for reading in dict.fromkeys((stated, *_READINGS)) if doubtful else (stated,):
        with contextlib.suppress(ImpossibleError):
            lexed = lex(text, reading)
            readings.append((lexed, _quoted(lexed.tokens, names)))
    possible = [
        (lexed, tokens) for lexed, tokens in readings if not lexed.cut or _is_possible(tokens)
    ]
    if all(_is_complete(lexed, tokens) for lexed, tokens in possible):
        readings = possible or readings
    if not readings:
        return CUT
    found = [_certain(lexed, tokens, always=cut or doubtful) for lexed, tokens in readings]
    tokens, whole = found[0]
    for other, other_whole in found[1:]:
        same = next(
            (
                index
                for index, (one, two) in enumerate(zip(tokens, other, strict=False))
                if (one.kind, one.text) != (two.kind, two.text)
            ),
            min(len(tokens), len(other)),
        )
        whole = whole and other_whole and same == len(tokens) == len(other)
        tokens = tokens[:same]
    shown = _write(tokens)
    return shown if whole else f"{shown} {CUT}" if shown else CUT


def _certain(lexed: Lexed, tokens: list[Token], *, always: bool) -> tuple[list[Token], bool]:
    """Return the tokens that are certain in one reading, and whether they are all.

    Where the end may be missing, a word next to a string that no server takes there says that the
    quotes were read wrongly, from the first one on.
    """
    if (lexed.cut or lexed.doubt or always) and not _has_neighbours(tokens):
        first = next(index for index, token in enumerate(tokens) if token.kind == "string")
        before = tokens[first - 1] if first else None
        if before is None or before.kind in ("number", "variable"):
            return [], False
        return tokens[: first + 1], False
    return tokens, not lexed.doubt


def _is_complete(lexed: Lexed, tokens: list[Token]) -> bool:
    return not lexed.cut and not lexed.doubt and _has_neighbours(tokens)


_DML = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "CALL"})


def _is_possible(tokens: list[Token]) -> bool:
    """Return whether a server could take the tokens for a statement of data.

    Behind a string comes no name, but for the alias of a column: where one does, the string was
    read in the wrong mode.
    """
    if not tokens or tokens[0].upper not in _DML:
        return True
    columns = [False]
    for token, after in itertools.pairwise(tokens):
        if token.text == "(":
            columns.append(False)
        elif token.text == ")" and len(columns) > 1:
            columns.pop()
        elif token.text == ";":
            return True
        elif token.upper in ("SELECT", "RETURNING"):
            columns[-1] = True
        elif token.upper in ("FROM", "INTO", "WHERE"):
            columns[-1] = False
        elif token.kind == "string" and (
            after.kind == "number"
            or (after.kind == "word" and not columns[-1] and not _may_follow(after))
        ):
            return False
    return True


def _may_follow(word: Token) -> bool:
    return is_keyword(word.upper) or _INTRODUCER.fullmatch(word.text) is not None


def _quoted(tokens: list[Token], names: bool) -> list[Token]:
    """Make data of what is in double quotes.

    ``names``: the server's own mode is ANSI_QUOTES. That of a session can be another, so that a
    name is shown only where every mode reads a name: a string would be an error of syntax there.
    """
    out: list[Token] = []
    selects = [False]
    for index, token in enumerate(tokens):
        if token.text == "(":
            selects.append(False)
        elif token.text == ")" and len(selects) > 1:
            selects.pop()
        elif token.text == ";":
            selects = [False]
        elif token.upper in ("SELECT", "DELETE"):
            selects[-1] = True
        if token.kind != "quoted":
            out.append(token)
        elif names and is_name(token.text) and _is_name_place(tokens, index, selects[-1]):
            out.append(Token("name", shown_name(token.text), token.spaced))
        else:
            out.append(Token("string", "?", token.spaced))
    return out


def _is_name_place(tokens: list[Token], index: int, selects: bool) -> bool:
    """Return whether no mode reads a string there; ``selects``: in the clauses of a SELECT, where
    no function's FROM can be, as that of TRIM."""
    before = tokens[index - 1] if index else None
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    if after is not None and after.text == ".":
        return True
    if before is None:
        return False
    if before.text == ".":
        return True
    return before.upper in ("JOIN", "INTO", "TABLE", "UPDATE") or (
        before.upper == "FROM" and selects and index > 1 and tokens[index - 2].upper != "DISTINCT"
    )


def _has_neighbours(tokens: list[Token]) -> bool:
    """Return whether the text next to strings is plausible: a bare word can be inside a string."""
    return not any(
        near.kind in ("number", "variable") or (near.kind == "word" and not _can_touch(near))
        for index, token in enumerate(tokens)
        if token.kind == "string"
        for near in tokens[max(0, index - 1) : index + 2]
    )


def _can_touch(word: Token) -> bool:
    return word.upper in _KEYWORDS or _INTRODUCER.fullmatch(word.text) is not None


def _write(tokens: list[Token]) -> str:
    return _join(_lists(with_shown_words(_without_secrets(_literals(tokens)))))


def _literals(tokens: list[Token]) -> list[Token]:
    """Make one ``?`` of each literal, with its sign, character set and adjacent strings."""
    out: list[Token] = []
    for token in tokens:
        before = out[-1] if out else None
        if token.kind == "word" and token.upper in _LITERAL_WORDS and _begins_operand(before):
            token = Token("number", "?", token.spaced)
        literal = token.kind in ("string", "number")
        if literal and before is not None:
            if before.kind == "string" and token.kind == "string":
                continue
            if before.kind == "word" and _INTRODUCER.fullmatch(before.text):
                token = Token(token.kind, "?", out.pop().spaced)
            while out and out[-1].text in ("-", "+") and _begins_operand(_last(out, 2)):
                token = Token(token.kind, "?", out.pop().spaced)
        out.append(token)
    return out


def _last(tokens: list[Token], back: int) -> Token | None:
    return tokens[-back] if len(tokens) >= back else None


def _begins_operand(before: Token | None) -> bool:
    """Return whether a value follows this token, and no operator."""
    if before is None:
        return True
    if before.kind == "word":
        return before.upper in _KEYWORDS and before.upper not in ("IS", "NOT", "SET", "DEFAULT")
    return before.kind == "op" or before.text in ("(", ",", "[")


def _without_secrets(tokens: list[Token]) -> list[Token]:
    """Cut statements about accounts off where their secrets begin, literals or not."""
    words: set[str] = set()
    first = ""
    for index, token in enumerate(tokens):
        if token.text == ";":
            words, first = set(), ""
        if token.kind != "word":
            continue
        first = first or token.upper
        if token.upper == "IDENTIFIED" or (
            first in _ACCOUNT_VERBS
            and words & _ACCOUNT_WORDS
            and "TABLE" not in words
            and (token.upper.endswith("PASSWORD") or token.upper in ("OPTIONS", "CONNECTION"))
        ):
            return [*tokens[: index + 1], Token("mark", CUT, spaced=True)]
        words.add(token.upper)
    return tokens


def _lists(tokens: list[Token]) -> list[Token]:
    """Make one ``(?+)`` of the literals of IN, and one row of those of VALUES."""
    out: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        out.append(token)
        at += 1
        opens = at < len(tokens) and tokens[at].text == "("
        if not opens or token.upper not in ("IN", "VALUES", "VALUE"):
            continue
        end = _closing(tokens, at)
        inside = tokens[at + 1 : end]
        if all(t.kind in ("string", "number") or t.text in ("(", ")", ",") for t in inside):
            inside = [Token("number", _LIST, spaced=False)]
        else:
            inside = _lists(inside) if token.upper == "IN" else inside
        out += [Token("mark", "(", spaced=True), *inside, Token("mark", ")", spaced=False)]
        at = end + 1
        if token.upper != "IN":
            at = _rows_end(tokens, at)
    return out


def _closing(tokens: list[Token], start: int) -> int:
    """Return the index of the mark that closes the one at ``start``, or the end."""
    depth = 0
    for index in range(start, len(tokens)):
        if tokens[index].text == "(":
            depth += 1
        elif tokens[index].text == ")":
            depth -= 1
            if depth == 0:
                return index
    return len(tokens)


def _rows_end(tokens: list[Token], at: int) -> int:
    """Pass over the further rows of VALUES; one may be cut off."""
    while at < len(tokens) and tokens[at].text == ",":
        if at + 1 < len(tokens) and tokens[at + 1].upper == "ROW":
            at += 1
        if at + 1 < len(tokens) and tokens[at + 1].text != "(":
            break
        at = _closing(tokens, at + 1) + 1 if at + 1 < len(tokens) else at + 1
    return at


def _join(tokens: list[Token]) -> str:
    parts: list[str] = []
    size = 0
    before: Token | None = None
    for token in tokens:
        if before is not None and _blank_between(before, token):
            parts.append(" ")
        parts.append(token.text)
        size += len(token.text) + 1
        before = token
    return "".join(parts)


def _blank_between(left: Token, right: Token) -> bool:
    if right.text in (",", ")", ";", ".", "]") or left.text in ("(", ".", "[", "@"):
        return False
    if right.text == "@" or left.text == "::" or right.text == "::":
        return False
    if right.text in ("(", "["):
        return right.spaced or left.kind in ("op", "number") or left.text == ","
    return True
