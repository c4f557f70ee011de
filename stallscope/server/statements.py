# SPDX-License-Identifier: Apache-2.0
"""SQL statements without the data in them: literals are ``?``, comments are gone.

The lexer reads MySQL, MariaDB and PostgreSQL. It fails closed. What the server's modes could read
otherwise than it was read here, what is no SQL, and what it does not know becomes
``<unreadable SQL sha256:…>``: a statement is lost then, and no data shown.

Where there is a backslash, the statement is read in each mode, and accepted where the others
cannot read it, or read the same. A statement may be cut off, as servers do it with long ones; its
last literal then runs to the end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial

import msgspec

__all__ = [
    "MAX_INPUT",
    "MAX_TEXT",
    "Statement",
    "begins_as_statement",
    "normalize",
    "normalizer",
]

MAX_INPUT = 16_384
"""The most characters of a statement that are parsed; a longer one counts as cut there."""
MAX_TEXT = 4096
"""The most characters of a normalized statement."""

_MAX_NAME = 256
_MAX_DEPTH = 64
_CUT = "…"
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


def begins_as_statement(text: str) -> bool:
    """Return whether the text begins with a word that statements begin with."""
    found = _FIRST_WORD.match(text[:MAX_INPUT])
    return found is not None and (found[1] or found[2]).upper() in _VERBS


class Statement(msgspec.Struct, frozen=True):
    """A statement as it may be stored and shown."""

    text: str
    digest: str
    """16 hexadecimal digits: the same for all statements that differ in literals only."""


class _UnreadableError(Exception):
    """The text cannot be parsed with certainty."""


class _Token(msgspec.Struct, frozen=True, gc=False):
    kind: str
    """``word``, ``name`` (quoted), ``variable``, ``string``, ``number``, ``op``, ``mark``."""
    text: str
    spaced: bool
    """Blanks or a comment were before it."""
    upper: str = ""
    """Of a word."""


class _Reading(msgspec.Struct, frozen=True):
    """One interpretation of quotes."""

    single_escapes: bool
    """A backslash escapes in '…'."""
    double_escapes: bool
    double_names: bool
    """"…" is a name."""


class _Lexed(msgspec.Struct, frozen=True):
    tokens: list[_Token]
    cut: bool
    """It ended within a literal, a quoted name or a comment."""


_TOKEN = re.compile(
    r"""
      (?P<blank>[ \t\r\n\f\v]++)
    | (?P<line>--(?=[\x00-\x20]|\Z)[^\n]*+|\#[^\n]*+)
    | (?P<block>/\*)
    | (?P<quote>(?:[nNxXbBeE]|[uU]&)?+['"])
    | (?P<name>`(?:[^`]++|``)*+`?+)
    | (?P<number>(?:0[xX][0-9A-Fa-f]++|0[bB][01]++
        |[0-9]++(?:\.[0-9]*+)?+(?:[eE][-+]?+[0-9]++)?+
        |\.[0-9]++(?:[eE][-+]?+[0-9]++)?+)[\w$]*+|\\N\b|\$[0-9]++)
    | (?P<dollar>\$(?:[^\W\d]\w*+)?+\$)
    | (?P<variable>@@?+[\w$.]++|:[^\W\d]\w*+)
    | (?P<word>(?:[^\W\d]|\$)[\w$]*+)
    | (?P<doubt>--|\*/)
    | (?P<op><=>|->>|->|\#>>?|<=|>=|<>|!=|:=|::|&&|\|\||<<|>>|[-+*/%<>=!&|^~@?:])
    | (?P<mark>[(),;.\[\]{}])
    """,
    re.X | re.S,
)
_BODIES = {
    ("'", True): re.compile(r"'(?:[^'\\]++|\\(?:.|\Z)|'')*+('?+)", re.S),
    ("'", False): re.compile(r"'(?:[^']++|'')*+('?+)"),
    ('"', True): re.compile(r'"(?:[^"\\]++|\\(?:.|\Z)|"")*+("?+)', re.S),
    ('"', False): re.compile(r'"(?:[^"]++|"")*+("?+)'),
}
_INTRODUCER = re.compile(r"_[a-z0-9_]{2,20}", re.I)
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")

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

    ``ansi_quotes`` and ``no_backslash_escapes`` are the server's SQL modes of these names; for
    PostgreSQL both hold.
    """
    stated = _Reading(
        single_escapes=not no_backslash_escapes,
        double_escapes=not (no_backslash_escapes or ansi_quotes),
        double_names=ansi_quotes,
    )
    try:
        out = _read(text[:MAX_INPUT], stated, cut=len(text) > MAX_INPUT)
    except _UnreadableError:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        out = f"<unreadable SQL sha256:{digest[:32]}>"
    if not out and text.strip():
        out = _COMMENT
    digest = hashlib.sha256(out.encode()).hexdigest()[:16]
    return Statement(out if len(out) <= MAX_TEXT else out[: MAX_TEXT - 1] + _CUT, digest)


def normalizer(sql_mode: str) -> Callable[[str], Statement]:
    """Return ``normalize`` for a MySQL or MariaDB with this ``sql_mode``."""
    return partial(
        normalize,
        ansi_quotes="ANSI_QUOTES" in sql_mode,
        no_backslash_escapes="NO_BACKSLASH_ESCAPES" in sql_mode,
    )


def _read(text: str, stated: _Reading, *, cut: bool) -> str:
    lexed = _lex(text, stated)
    doubtful = "\\" in text
    out = _write(lexed.tokens)
    if (lexed.cut or cut or doubtful) and not _has_neighbours(lexed.tokens):
        raise _UnreadableError
    if not doubtful:
        return out
    for single, double in ((True, True), (False, False), (True, False)):
        other = _Reading(single, double, stated.double_names)
        if other == stated:
            continue
        try:
            second = _lex(text, other)
        except _UnreadableError:
            continue
        if second.cut and not _has_neighbours(second.tokens):
            continue
        if _write(second.tokens) != out:
            raise _UnreadableError
    return out


class _Lexer:
    """Splits a text into tokens, in one interpretation."""

    def __init__(self, text: str, reading: _Reading) -> None:
        self.text = text
        self.reading = reading
        self.at = 0
        self.tokens: list[_Token] = []
        self.spaced = False
        self.cut = False
        self.depth = 0

    def run(self) -> _Lexed:
        while self.at < len(self.text):
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                raise _UnreadableError
            self.at = match.end()
            self.token(match.lastgroup or "", match.group(), match.start())
        return _Lexed(self.tokens, self.cut)

    def token(self, kind: str, text: str, start: int) -> None:
        if kind == "blank":
            self.spaced = True
        elif kind == "line":
            self.line_comment(text)
        elif kind == "block":
            self.block_comment(start)
        elif kind == "quote":
            self.quoted(text[:-1], text[-1], self.at - 1)
        elif kind == "name":
            self.quoted_name(text)
        elif kind == "dollar":
            self.dollar_quoted(text)
        elif kind == "doubt":  # a comment in PostgreSQL, two signs in MySQL; an end without begin
            raise _UnreadableError
        elif kind == "number":
            self.add("number", "?")
        elif len(text) > _MAX_NAME:
            raise _UnreadableError
        else:
            self.nest(text)
            self.add(kind, text)

    def nest(self, text: str) -> None:
        self.depth += (text == "(") - (text == ")")
        if self.depth > _MAX_DEPTH:
            raise _UnreadableError

    def add(self, kind: str, text: str) -> None:
        upper = text.upper() if kind == "word" else ""
        self.tokens.append(_Token(kind, text, self.spaced, upper))
        self.spaced = False

    def line_comment(self, text: str) -> None:
        # "#" is an operator in PostgreSQL, whose comments end with a carriage return too.
        if (text[0] == "#" and self.reading.double_names) or "\r" in text.rstrip("\r"):
            raise _UnreadableError
        self.spaced = True

    def block_comment(self, start: int) -> None:
        end = self.text.find("*/", start + 2)
        self.cut = self.cut or end < 0
        body = self.text[start + 2 : end] if end >= 0 else self.text[start + 2 :]
        # Comments nest in PostgreSQL. Executable ones are read by servers of some versions, for
        # which quotes in them count.
        if "/*" in body or (body.startswith(("!", "M!")) and end >= 0 and not _even(body)):
            raise _UnreadableError
        self.at = end + 2 if end >= 0 else len(self.text)
        self.spaced = True

    def quoted(self, prefix: str, quote: str, start: int) -> None:
        reading = self.reading
        escapes = reading.single_escapes if quote == "'" else reading.double_escapes
        if prefix in ("e", "E"):
            escapes = True
        match = _BODIES[quote, escapes].match(self.text, start)
        assert match is not None  # it begins with the quote
        self.at = match.end()
        if not match.group(1):
            self.cut = True
        if quote == '"' and reading.double_names and not prefix:
            self.add_name(match.group(), closed=bool(match.group(1)))
        else:
            self.add("string", "?")

    def quoted_name(self, text: str) -> None:
        # The doubled quotes of a name are even in number, so that a whole name has an even number.
        closed = len(text) > 1 and text.count("`") % 2 == 0
        self.cut = self.cut or not closed
        self.add_name(text, closed=closed)

    def add_name(self, text: str, *, closed: bool) -> None:
        if len(text) > _MAX_NAME or _NOT_IN_NAMES.search(text):
            raise _UnreadableError
        self.add("name", text if closed else _CUT)

    def dollar_quoted(self, tag: str) -> None:
        end = self.text.find(tag, self.at)
        # To MySQL the tag is a name: what follows it must be read the same both ways.
        if end >= 0 and not self.reading.double_names and not _even(self.text[self.at : end]):
            raise _UnreadableError
        self.cut = self.cut or end < 0
        self.at = end + len(tag) if end >= 0 else len(self.text)
        self.add("string", "?")


def _lex(text: str, reading: _Reading) -> _Lexed:
    return _Lexer(text, reading).run()


def _even(body: str) -> bool:
    """Return whether a text ends outside of quotes in every reading."""
    if any(mark in body for mark in ("\\", "--", "#", "/*")):
        return not any(quote in body for quote in "'\"`")
    return all(body.count(quote) % 2 == 0 for quote in "'\"`")


def _has_neighbours(tokens: list[_Token]) -> bool:
    """Return whether the text next to strings is plausible: a bare word can be inside a string."""
    return not any(
        near.kind in ("number", "variable") or (near.kind == "word" and not _can_touch(near))
        for index, token in enumerate(tokens)
        if token.kind == "string"
        for near in tokens[max(0, index - 1) : index + 2]
    )


def _can_touch(word: _Token) -> bool:
    return word.upper in _KEYWORDS or _INTRODUCER.fullmatch(word.text) is not None


def _write(tokens: list[_Token]) -> str:
    return _join(_lists(_without_secrets(_literals(tokens))))


def _literals(tokens: list[_Token]) -> list[_Token]:
    """Make one ``?`` of each literal, with its sign, character set and adjacent strings."""
    out: list[_Token] = []
    for token in tokens:
        before = out[-1] if out else None
        if (token.kind == "word" and token.upper in _LITERAL_WORDS and _begins_operand(before)) or (
            token.text[0] == '"' and _names_password(out)
        ):
            token = _Token("number", "?", token.spaced)
        literal = token.kind in ("string", "number")
        if literal and before is not None:
            if before.kind == "string" and token.kind == "string":
                continue
            if before.kind == "word" and _INTRODUCER.fullmatch(before.text):
                token = _Token(token.kind, "?", out.pop().spaced)
            while out and out[-1].text in ("-", "+") and _begins_operand(_last(out, 2)):
                token = _Token(token.kind, "?", out.pop().spaced)
        out.append(token)
    return out


def _names_password(before: list[_Token]) -> bool:
    """Return whether ``PASSWORD (`` or ``PASSWORD =`` stand there: a quoted name is none then."""
    return any(token.upper.endswith("PASSWORD") for token in before[-2:])


def _last(tokens: list[_Token], back: int) -> _Token | None:
    return tokens[-back] if len(tokens) >= back else None


def _begins_operand(before: _Token | None) -> bool:
    """Return whether a value follows this token, and no operator."""
    if before is None:
        return True
    if before.kind == "word":
        return before.upper in _KEYWORDS and before.upper not in ("IS", "NOT", "SET", "DEFAULT")
    return before.kind == "op" or before.text in ("(", ",", "[")


def _without_secrets(tokens: list[_Token]) -> list[_Token]:
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
            return [*tokens[: index + 1], _Token("mark", _CUT, spaced=True)]
        words.add(token.upper)
    return tokens


def _lists(tokens: list[_Token]) -> list[_Token]:
    """Make one ``(?+)`` of the literals of IN, and one row of those of VALUES."""
    out: list[_Token] = []
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
            inside = [_Token("number", _LIST, spaced=False)]
        else:
            inside = _lists(inside) if token.upper == "IN" else inside
        out += [_Token("mark", "(", spaced=True), *inside, _Token("mark", ")", spaced=False)]
        at = end + 1
        if token.upper != "IN":
            at = _rows_end(tokens, at)
    return out


def _closing(tokens: list[_Token], start: int) -> int:
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


def _rows_end(tokens: list[_Token], at: int) -> int:
    """Pass over the further rows of VALUES; one may be cut off."""
    while at < len(tokens) and tokens[at].text == ",":
        if at + 1 < len(tokens) and tokens[at + 1].upper == "ROW":
            at += 1
        if at + 1 < len(tokens) and tokens[at + 1].text != "(":
            break
        at = _closing(tokens, at + 1) + 1 if at + 1 < len(tokens) else at + 1
    return at


def _join(tokens: list[_Token]) -> str:
    parts: list[str] = []
    size = 0
    before: _Token | None = None
    for token in tokens:
        if before is not None and _blank_between(before, token):
            parts.append(" ")
        parts.append(token.text)
        size += len(token.text) + 1
        before = token
    return "".join(parts)


def _blank_between(left: _Token, right: _Token) -> bool:
    if right.text in (",", ")", ";", ".", "]") or left.text in ("(", ".", "[", "@"):
        return False
    if right.text == "@" or left.text == "::" or right.text == "::":
        return False
    if right.text in ("(", "["):
        return right.spaced or left.kind in ("op", "number") or left.text == ","
    return True
