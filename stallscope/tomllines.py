# SPDX-License-Identifier: Apache-2.0
"""Where in a TOML file an entry or key stands: tomllib tells the values, and not their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["line_of", "words"]

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-\"']+)\s*\]\]?")
_QUOTED = re.compile(r"'([^']+)'|`([^`]+)`|(@[\w-]+)")
_LEAST_WORD = 2


def words(message: str) -> list[str]:
    """Return the words that a message quotes: the text of the mistake is among them."""
    found = ["".join(match) for match in _QUOTED.findall(message)]
    return [word for word in found if len(word) >= _LEAST_WORD]


def line_of(text: str, place: Sequence[str | int], wanted: Sequence[str] = ()) -> int | None:
    """Return the line of a place, counted from 1.

    ``place``: keys and indexes, ``("signature", 2, "waiter", 0, "stack")``. Of the entry's lines
    the one that holds one of ``wanted`` comes first, then the key's, then the entry's own.
    """
    lines = text.splitlines()
    start, end, rest = _entry(lines, place)
    if start is None:
        rest = list(place)
    first = 0 if start is None else start
    for word in wanted:
        for number in range(first, end):
            if word in lines[number] and not lines[number].lstrip().startswith("#"):
                return number + 1
    keys = [part for part in rest if isinstance(part, str)]
    for key in reversed(keys):
        for number in range(first, end):
            if re.match(rf"\s*\[?\[?[\"']?{re.escape(key)}[\"']?\s*[=\].]", lines[number]):
                return number + 1
    return None if start is None else start + 1


def _entry(
    lines: Sequence[str], place: Sequence[str | int]
) -> tuple[int | None, int, list[str | int]]:
    """Return first line and end of a place's innermost ``[[table]]``, and what is left of it."""
    start: int | None = None
    end = len(lines)
    name = ""
    parts = list(place)
    while len(parts) >= 2 and isinstance(parts[0], str) and isinstance(parts[1], int):
        name = f"{name}.{parts[0]}" if name else parts[0]
        headers = [
            number
            for number in range(start or 0, end)
            if (match := _HEADER.match(lines[number])) and match.group(2) == name
        ]
        if parts[1] >= len(headers):
            break
        start = headers[parts[1]]
        end = _end(lines, start, end, name)
        parts = parts[2:]
    return start, end, parts


def _end(lines: Sequence[str], start: int, end: int, name: str) -> int:
    """Return where the entry ends: at the next header that is none of its own tables."""
    for number in range(start + 1, end):
        match = _HEADER.match(lines[number])
        if match and not match.group(2).startswith(f"{name}."):
            return number
    return end
