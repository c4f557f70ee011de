# SPDX-License-Identifier: Apache-2.0
"""SQL text in tokens, as one SQL mode reads it, as far as every server reads it the same.

Where servers, versions or character sets could read on in different ways, the tokens end:
``doubt``. Words in double quotes are a token of their own: only the mode of the session, which
nobody else knows, says whether they are a string or a name.
"""

from __future__ import annotations

import re

import msgspec

__all__ = [
    "CUT",
    "MAX_NAME",
    "ImpossibleError",
    "Lexed",
    "Reading",
    "Token",
    "is_name",
    "lex",
    "shown_name",
]

MAX_NAME = 256
CUT = "…"
_MAX_DEPTH = 64
_QUOTES = "'\"`"
_DOUBT = re.compile(r"\\|--|#|/\*|\*/|\[|\$\w*+\$")
"""What hides a quote, or is a quote, in some modes."""
_WHOLE = re.compile(r"(?:[^'\"`]++|'[^']*+'|\"[^\"]*+\"|`[^`]*+`)*+")


class _DoubtError(Exception):
    """From here on, servers could read the text in different ways."""


class ImpossibleError(Exception):
    """No server in this mode reads the text: a backslash is outside of quotes."""


class Token(msgspec.Struct, frozen=True, gc=False):
    kind: str
    """``word``, ``name`` (in backticks), ``quoted`` (in double quotes), ``variable``, ``string``,
    ``number``, ``op``, ``mark``; ``hidden``: a word that is not shown."""
    text: str
    spaced: bool
    """Blanks or a comment were before it."""
    upper: str = ""
    """Of a word."""


class Reading(msgspec.Struct, frozen=True):
    """One interpretation of quotes."""

    single_escapes: bool
    """A backslash escapes in '…'."""
    double_escapes: bool
    """The same in "…"."""


class Lexed(msgspec.Struct, frozen=True):
    tokens: list[Token]
    cut: bool
    """It ended within a literal, a quoted name or a comment."""
    doubt: bool
    """What follows the tokens could be read in different ways."""


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
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
_PLAIN_NAME = re.compile(r"(?:[`\"])?+[\w $.:@#/+-]*+(?:[`\"])?+")
_TRAIL = re.compile(r"[^\x00-\x7f]\\['\"`\\]")
"""In GBK, Big5 and SJIS such a backslash can be the second half of a character."""


class _Lexer:
    """Splits a text into tokens, in one interpretation."""

    def __init__(self, text: str, reading: Reading) -> None:
        self.text = text
        self.reading = reading
        self.at = 0
        self.tokens: list[Token] = []
        self.spaced = False
        self.cut = False
        self.depth = 0

    def run(self) -> Lexed:
        while self.at < len(self.text):
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                if self.text[self.at] == "\\":
                    raise ImpossibleError
                return Lexed(self.tokens, self.cut, doubt=True)
            self.at = match.end()
            try:
                self.token(match.lastgroup or "", match.group(), match.start())
            except _DoubtError:
                return Lexed(self.tokens, self.cut, doubt=True)
        return Lexed(self.tokens, self.cut, doubt=False)

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
            raise _DoubtError
        elif kind == "number":
            self.add("number", "?")
        elif len(text) > MAX_NAME:
            raise _DoubtError
        else:
            if text == "[":
                self.bracket()
            self.nest(text)
            self.add(kind, text)

    def nest(self, text: str) -> None:
        self.depth += (text == "(") - (text == ")")
        if self.depth > _MAX_DEPTH:
            raise _DoubtError

    def bracket(self) -> None:
        """Check that quotes in brackets are read the same where those begin a name: MariaDB's
        sql_mode MSSQL, in which "]]" does not end it."""
        end = self.text.find("]", self.at)
        body = self.text[self.at : end]
        if end < 0 or self.text.startswith("]]", end) or _DOUBT.search(body):
            # Where the name ends is not known: there must be no quote behind it.
            if any(quote in self.text[self.at :] for quote in _QUOTES):
                raise _DoubtError
        elif not _even(body):
            raise _DoubtError

    def add(self, kind: str, text: str) -> None:
        upper = text.upper() if kind == "word" else ""
        self.tokens.append(Token(kind, text, self.spaced, upper))
        self.spaced = False

    def line_comment(self, text: str) -> None:
        # PostgreSQL's comments end with a carriage return too, and "#" is an operator there.
        if "\r" in text.rstrip("\r") or (text[0] == "#" and not _even(text[1:].rstrip("\r"))):
            raise _DoubtError
        self.spaced = True

    def block_comment(self, start: int) -> None:
        end = self.text.find("*/", start + 2)
        self.cut = self.cut or end < 0
        body = self.text[start + 2 : end] if end >= 0 else self.text[start + 2 :]
        # Comments nest in PostgreSQL. Executable ones are read by servers of some versions, for
        # which quotes in them count.
        if "/*" in body or (body.startswith(("!", "M!")) and not _even(body)):
            raise _DoubtError
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
        if quote == '"' and match.group(1) and not prefix:
            self.add("quoted", match.group())
        else:
            self.add("string", "?")
        # To MySQL an E is a name, and its string has the escapes of the mode.
        other = _BODIES[quote, False].match(self.text, start) if prefix in ("e", "E") else match
        if _TRAIL.search(match.group()) or other is None or other.end() != match.end():
            raise _DoubtError

    def quoted_name(self, text: str) -> None:
        # The doubled quotes of a name are even in number, so that a whole name has an even number.
        closed = len(text) > 1 and text.count("`") % 2 == 0
        self.cut = self.cut or not closed
        self.add_name(text, closed=closed)

    def add_name(self, text: str, *, closed: bool) -> None:
        if not is_name(text):
            raise _DoubtError
        self.add("name", shown_name(text) if closed else CUT)

    def dollar_quoted(self, tag: str) -> None:
        end = self.text.find(tag, self.at)
        body = self.text[self.at : end]
        self.cut = self.cut or end < 0
        self.at = end + len(tag) if end >= 0 else len(self.text)
        self.add("string", "?")
        # To MySQL the tag is a name: what follows the body must be read the same both ways.
        if end >= 0 and not _even(body):
            raise _DoubtError


def lex(text: str, reading: Reading) -> Lexed:
    return _Lexer(text, reading).run()


def is_name(text: str) -> bool:
    """Return whether a quoted text can be shown as a name."""
    return len(text) <= MAX_NAME and not _NOT_IN_NAMES.search(text)


def shown_name(text: str) -> str:
    """Return a name in its quotes; ``?`` in them where it has signs that names rarely have."""
    return text if _PLAIN_NAME.fullmatch(text) else f"{text[0]}?{text[0]}"


def _even(body: str) -> bool:
    """Return whether a text ends outside of quotes and comments in every reading."""
    return _DOUBT.search(body) is None and _WHOLE.fullmatch(body) is not None
