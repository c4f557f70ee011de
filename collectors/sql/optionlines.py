# SPDX-License-Identifier: Apache-2.0
"""The lines of MySQL's option files, byte for byte as the clients read them (mysys/my_default.c).

An INI parser would differ: groups may repeat, a quote opens a region that hides ``#``, an
unknown escape keeps its backslash, and what is white space is decided in latin1.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.base.errors import UsageError

__all__ = ["Group", "Include", "Item", "LineError", "Option", "parse"]

PIECE = 4094
"""Bytes that the clients read at once: the rest of a longer line counts as another line."""

_SPACE = b"\t\n\v\f\r \xa0"
_ESCAPES = {
    ord("n"): b"\n",
    ord("t"): b"\t",
    ord("r"): b"\r",
    ord("b"): b"\b",
    ord("s"): b" ",
    ord('"'): b'"',
    ord("'"): b"'",
    ord("\\"): b"\\",
}
_QUOTES = b"'\""
_BACKSLASH = ord("\\")
_HASH = ord("#")


class LineError(UsageError):
    """A line at which the clients stop reading the file."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")


class Group(msgspec.Struct, frozen=True):
    """``[name]``."""

    name: bytes


class Option(msgspec.Struct, frozen=True):
    """``name=value``, or ``name`` alone."""

    name: bytes
    value: bytes | None
    """None where there is no ``=``."""


class Include(msgspec.Struct, frozen=True):
    """``!include path``; ``!includedir path`` where ``folder``."""

    path: bytes
    line: int
    folder: bool = False


Item = Group | Option | Include


def parse(data: bytes, *, includes: bool = True) -> Iterator[Item]:
    """Yield the content of the lines, in their order.

    ``includes`` is False where files include one another too deep: then those lines are skipped.
    Raises: LineError; the lines before it count.
    """
    grouped = False
    for number, line in enumerate(_lines(data), 1):
        text = line.lstrip(_SPACE)
        first = text[:1]
        if first in (b"#", b";", b""):
            continue
        if first == b"!":
            if includes and (item := _directive(text, number)) is not None:
                yield item
        elif first == b"[":
            grouped = True
            yield _group(text, number)
        elif not grouped:
            raise LineError(number, "an option before the first [group]")
        elif (option := _option(text)) is not None:
            yield option


def _lines(data: bytes) -> Iterator[bytes]:
    """Split into lines as fgets(3) and C strings do: a NUL ends the line."""
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at, at + PIECE)
        end = newline + 1 if newline >= 0 else min(at + PIECE, len(data))
        yield data[at:end].split(b"\0", 1)[0]
        at = end


def _directive(text: bytes, number: int) -> Include | None:
    rest = text[1:].lstrip(_SPACE)
    for word, folder in ((b"includedir", True), (b"include", False)):
        after = rest[len(word) :]
        if rest.startswith(word) and after[:1] and after[0] in _SPACE:
            # The clients remove the last byte, taking it for the newline, also where it is none.
            path = after.lstrip(_SPACE)[:-1].rstrip(_SPACE)
            if not path:
                raise LineError(number, f"!{word.decode()} without a path")
            return Include(path, number, folder)
    return None


def _group(text: bytes, number: int) -> Group:
    end = text.find(b"]")
    if end < 0:
        raise LineError(number, "a [group] without its ]")
    return Group(text[1:end].rstrip(_SPACE))


def _option(text: bytes) -> Option | None:
    text = text[: _end_of_text(text)]
    name, equals, value = text.partition(b"=")
    name = name.rstrip(_SPACE)
    if not name:
        return None
    return Option(name, _value(value) if equals else None)


def _end_of_text(text: bytes) -> int:
    """Return where a comment begins, else the length."""
    quote = 0
    escaped = False
    for at, byte in enumerate(text):
        if byte in _QUOTES and not escaped:
            if not quote:
                quote = byte
            elif quote == byte:
                quote = 0
        if not quote and byte == _HASH:
            return at
        escaped = bool(quote) and byte == _BACKSLASH and not escaped
    return len(text)


def _value(raw: bytes) -> bytes:
    value = raw.strip(_SPACE)
    if len(value) > 1 and value[0] in _QUOTES and value[0] == value[-1]:
        value = value[1:-1]
    out = bytearray()
    at = 0
    while at < len(value):
        byte = value[at]
        if byte == _BACKSLASH and at + 1 < len(value):
            at += 1
            out += _ESCAPES.get(value[at], value[at - 1 : at + 1])
        else:
            out.append(byte)
        at += 1
    return bytes(out)
