# SPDX-License-Identifier: Apache-2.0
"""The plain name in a mangled C++ symbol, without template arguments and parameters.

Tools that do not demangle print ``_ZN5tpool11thread_pool3runEv`` where others print
``tpool::thread_pool::run()``. Names are read by the Itanium C++ ABI, chapter "External Names";
arguments are skipped, so only what they can shorten (substitutions in a prefix) must be known.
"""

from __future__ import annotations

__all__ = ["plain"]

MAX_LENGTH = 4096

_OPERATORS = {
    "nw": " new", "na": " new[]", "dl": " delete", "da": " delete[]", "ps": "+", "ng": "-",
    "ad": "&", "de": "*", "co": "~", "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%",
    "an": "&", "or": "|", "eo": "^", "aS": "=", "pL": "+=", "mI": "-=", "mL": "*=", "dV": "/=",
    "rM": "%=", "aN": "&=", "oR": "|=", "eO": "^=", "ls": "<<", "rs": ">>", "lS": "<<=",
    "rS": ">>=", "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=",
    "ss": "<=>", "nt": "!", "aa": "&&", "oo": "||", "pp": "++", "mm": "--", "cm": ",",
    "pm": "->*", "pt": "->", "cl": "()", "ix": "[]",
}  # fmt: skip
_STANDARD = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::basic_string",
    "Si": "std::basic_istream", "So": "std::basic_ostream", "Sd": "std::basic_iostream",
}  # fmt: skip
_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double",
}  # fmt: skip
_INDIRECT = {"P": "*", "R": "&", "O": "&&"}
_OPENS = frozenset("NIXJF")


class _CannotRead(Exception):
    """The symbol uses what is not read here."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def digits(self) -> int:
        start = self.at
        while self.peek().isdecimal() and self.at - start < 6:
            self.at += 1
        if start == self.at:
            raise _CannotRead
        return int(self.text[start : self.at])

    def source_name(self) -> str:
        length = self.digits()
        name = self.peek(length)
        if len(name) != length:
            raise _CannotRead
        self.at += length
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N_") else name

    def sequence(self) -> None:
        """Skip base-36 digits and an underscore."""
        end = self.text.find("_", self.at, self.at + 8)
        if end < 0:
            raise _CannotRead
        self.at = end + 1

    def encoding(self) -> str:
        if self.peek() == "T" and self.peek(2) in ("Th", "Tv", "Tc"):
            self.thunk()
        return self.name()

    def thunk(self) -> None:
        for _ in range({"Th": 1, "Tv": 2, "Tc": 2}[self.peek(2)]):
            if self.peek(2) in ("Th", "Tv", "Tc"):
                self.at += 2
            if self.peek() in ("h", "v"):
                self.at += 1
            self.sequence()

    def name(self) -> str:
        first = self.peek()
        if first == "N":
            return self.nested()
        if first == "Z":
            return self.local()
        parts: list[str] = []
        if self.peek(2) == "St":
            self.at += 2
            parts.append("std")
        parts.append(self.component(parts))
        self.arguments()
        return "::".join(parts)

    def arguments(self) -> None:
        """Skip template arguments and ABI tags."""
        while True:
            if self.peek() == "I":
                self.at += 1
                self.skip()
            elif self.peek() == "B":
                self.at += 1
                self.source_name()
            else:
                return

    def nested(self) -> str:
        self.at += 1
        while self.peek() in ("r", "V", "K", "R", "O") and self.peek():
            self.at += 1
        parts: list[str] = []
        while self.peek() != "E":
            parts.append(self.component(parts))
            self.arguments()
        self.at += 1
        return "::".join(parts)

    def local(self) -> str:
        self.at += 1
        outer = self.encoding()
        self.skip()  # the parameters of the function around, and its E
        if self.peek() == "s":
            self.at += 1
            return outer
        if self.peek() == "d":
            self.at += 1
            self.sequence()
        return f"{outer}::{self.name()}"

    def component(self, before: list[str]) -> str:
        char, two = self.peek(), self.peek(2)
        if char == "L":
            self.at += 1
            return self.component(before)
        if char.isdecimal():
            return self.source_name()
        if char == "C" and two[1:] in ("1", "2", "3", "4", "5") and before:
            self.at += 2
            return before[-1].rpartition("::")[2]
        if char == "D" and two[1:] in ("0", "1", "2", "4", "5") and before:
            self.at += 2
            return "~" + before[-1].rpartition("::")[2]
        if two in ("Ul", "Ut"):
            return self.unnamed(two)
        if two in _STANDARD:
            self.at += 2
            return _STANDARD[two]
        if two == "cv":
            self.at += 2
            return "operator " + self.converted()
        if two in _OPERATORS:
            self.at += 2
            return "operator" + _OPERATORS[two]
        raise _CannotRead

    def converted(self) -> str:
        """Read the type that an operator converts to: a builtin or a class, or pointers to it."""
        suffix = ""
        while self.peek() in _INDIRECT:
            suffix = _INDIRECT[self.peek()] + suffix
            self.at += 1
        if self.peek() == "K":
            suffix = " const" + suffix
            self.at += 1
        builtin = _BUILTIN.get(self.peek())
        if builtin is None:
            return self.name() + suffix
        self.at += 1
        return builtin + suffix

    def unnamed(self, kind: str) -> str:
        self.at += 2
        if kind == "Ul":
            self.skip()
        count = 1 if self.peek() == "_" else self.digits() + 2
        if self.peek() != "_":
            raise _CannotRead
        self.at += 1
        return f"{{lambda#{count}}}" if kind == "Ul" else f"{{unnamed type#{count}}}"

    def skip(self) -> None:
        """Skip up to the E that closes what is open, and that E."""
        depth = 1
        while depth:
            char = self.peek()
            if not char:
                raise _CannotRead
            if char.isdecimal():
                self.source_name()
                continue
            two = self.peek(2)
            self.at += 1
            if char == "E":
                depth -= 1
            elif char == "L":
                self.literal()
            elif char == "S":
                if two in _STANDARD:
                    self.at += 1
                else:
                    self.sequence()
            elif char == "T":
                self.sequence()
            elif char == "D":
                self.at += 1
                depth += two in ("DT", "Dt")
            elif two in ("Ul", "Ut"):
                self.at -= 1
                self.unnamed(two)
            elif char == "A":
                end = self.text.find("_", self.at)
                if end < 0:
                    raise _CannotRead
                self.at = end + 1
            elif char == "Z" or char in _OPENS:
                depth += 1

    def literal(self) -> None:
        """Skip the type and the value; the value's digits are no length of a name."""
        if self.peek(2) == "_Z":
            self.at += 2
            self.skip()
            return
        char = self.peek()
        if char == "N":
            self.at += 1
            self.skip()
        elif char.isdecimal():
            self.source_name()
        elif char == "S":
            self.at += 1
            if self.peek(1) == "t":
                self.at += 1
                self.source_name()
            else:
                self.sequence()
        end = self.text.find("E", self.at)
        if end < 0:
            raise _CannotRead
        self.at = end + 1


def plain(symbol: str) -> str | None:
    """Return the name in a mangled symbol, None where it cannot be read.

    What follows the mangled part (``.part.0``, ``@plt``) is left out.
    """
    start = symbol.find("_Z")
    if start < 0 or start > 2 or len(symbol) > MAX_LENGTH:
        return None
    parser = _Parser(symbol)
    parser.at = start + 2
    try:
        return parser.encoding()
    except (_CannotRead, RecursionError):
        return None
