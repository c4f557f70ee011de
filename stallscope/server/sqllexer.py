# SPDX-License-Identifier: Apache-2.0
"""SQL text in tokens, as one SQL mode reads it. It fails closed: UnreadableError.

Words in double quotes are a token of their own: only the mode of the session, which nobody else
knows, says whether they are a string or a name.
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
    "UnreadableError",
    "is_name",
    "lex",
]

MAX_NAME = 256
CUT = "…"
_MAX_DEPTH = 64
_QUOTES = "'\"`"
_DOUBTS = ("\\", "--", "#", "/*")
"""What hides a quote in some modes."""


class UnreadableError(Exception):
    """The text cannot be parsed with certainty."""


class ImpossibleError(UnreadableError):
    """No server in this mode reads the text: a backslash is outside of quotes."""


class Token(msgspec.Struct, frozen=True, gc=False):
    kind: str
    """``word``, ``name`` (in backticks), ``quoted`` (in double quotes), ``variable``, ``string``,
    ``number``, ``op``, ``mark``."""
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
                wrong = self.text[self.at] == "\\"
                raise ImpossibleError if wrong else UnreadableError
            self.at = match.end()
            self.token(match.lastgroup or "", match.group(), match.start())
        return Lexed(self.tokens, self.cut)

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
            raise UnreadableError
        elif kind == "number":
            self.add("number", "?")
        elif len(text) > MAX_NAME:
            raise UnreadableError
        else:
            if text == "[":
                self.bracket()
            self.nest(text)
            self.add(kind, text)

    def nest(self, text: str) -> None:
        self.depth += (text == "(") - (text == ")")
        if self.depth > _MAX_DEPTH:
            raise UnreadableError

    def bracket(self) -> None:
        """Check that quotes in brackets are read the same where those begin a name: MariaDB's
        sql_mode MSSQL, in which "]]" does not end it."""
        end = self.text.find("]", self.at)
        body = self.text[self.at : end]
        if end < 0 or self.text.startswith("]]", end) or any(mark in body for mark in _DOUBTS):
            # Where the name ends is not known: there must be no quote behind it.
            if any(quote in self.text[self.at :] for quote in _QUOTES):
                raise UnreadableError
        elif not _even(body):
            raise UnreadableError

    def add(self, kind: str, text: str) -> None:
        upper = text.upper() if kind == "word" else ""
        self.tokens.append(Token(kind, text, self.spaced, upper))
        self.spaced = False

    def line_comment(self, text: str) -> None:
        # PostgreSQL's comments end with a carriage return too, and "#" is an operator there.
        if "\r" in text.rstrip("\r") or (text[0] == "#" and not _even(text[1:])):
            raise UnreadableError
        self.spaced = True

    def block_comment(self, start: int) -> None:
        end = self.text.find("*/", start + 2)
        self.cut = self.cut or end < 0
        body = self.text[start + 2 : end] if end >= 0 else self.text[start + 2 :]
        # Comments nest in PostgreSQL. Executable ones are read by servers of some versions, for
        # which quotes in them count.
        if "/*" in body or (body.startswith(("!", "M!")) and end >= 0 and not _even(body)):
            raise UnreadableError
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

    def quoted_name(self, text: str) -> None:
        # The doubled quotes of a name are even in number, so that a whole name has an even number.
        closed = len(text) > 1 and text.count("`") % 2 == 0
        self.cut = self.cut or not closed
        self.add_name(text, closed=closed)

    def add_name(self, text: str, *, closed: bool) -> None:
        if not is_name(text):
            raise UnreadableError
        self.add("name", text if closed else CUT)

    def dollar_quoted(self, tag: str) -> None:
        end = self.text.find(tag, self.at)
        # To MySQL the tag is a name: what follows it must be read the same both ways.
        if end >= 0 and not _even(self.text[self.at : end]):
            raise UnreadableError
        self.cut = self.cut or end < 0
        self.at = end + len(tag) if end >= 0 else len(self.text)
        self.add("string", "?")


def lex(text: str, reading: Reading) -> Lexed:
    return _Lexer(text, reading).run()


def is_name(text: str) -> bool:
    """Return whether a quoted text can be shown as a name."""
    return len(text) <= MAX_NAME and not _NOT_IN_NAMES.search(text)


def _even(body: str) -> bool:
    """Return whether a text ends outside of quotes in every reading."""
    if any(mark in body for mark in _DOUBTS):
        return not any(quote in body for quote in _QUOTES)
    return all(body.count(quote) % 2 == 0 for quote in _QUOTES)
