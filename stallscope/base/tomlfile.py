# SPDX-License-Identifier: Apache-2.0
"""TOML files that people write: read them into a struct, and report errors with their line. tomllib
returns values without their lines: this module finds the lines.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from stallscope.base import package, trust
from stallscope.base.errors import StallscopeError

__all__ = ["Reader", "Survey", "nearest"]

T = TypeVar("T")

MAX_FILE = 4 << 20
MAX_MISTAKES = 100
"""The most mistakes of one file that are reported."""
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-\"']+)\s*\]\]?")
_QUOTED = re.compile(r"'([^']+)'|`([^`]+)`|(@[\w-]+)")
_LEAST_WORD = 2
_TYPES = frozenset({"int", "float", "str", "bool", "array", "object", "null"})
"""Words that msgspec quotes, and that are no text of the file."""
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class Survey(Generic[T]):
    """All that is wrong with a file, and what remains without it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.value: T | None = None
        """None: nothing usable remains."""
        self.mistakes: list[StallscopeError] = []
        self.numbers = {key: list(range(len(v))) for key, v in data.items() if isinstance(v, list)}
        """For each list of the file: the place in the file of each entry that remains."""
        self.wrong: set[tuple[str, int]] = set()
        """Entries, by list and place in the file, of which a part is wrong."""


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that was probably meant; None: there is none."""
    return next(iter(difflib.get_close_matches(word, known, 1)), None)


class Reader:
    """Reads one kind of file. ``what`` is its name; ``error`` is the type of exceptions. ``names``:
    the key that names an entry of a list of tables in messages, ``{"signature": "id"}``.

    The package's own files are read, and those that no other user can change (trust). ``harmless``:
    the file runs nothing, so that without privileges any file is read.
    """

    def __init__(
        self,
        what: str,
        error: type[StallscopeError],
        names: Mapping[str, str] | None = None,
        *,
        harmless: bool = False,
    ) -> None:
        self._harmless = harmless
        self._what = what
        self._error = error
        self._names = names or {}

    def read(self, path: Path, kind: type[T]) -> T:
        """Read one file. Raises: the error, with file, line and what is wrong."""
        return self.convert(path, self.load(path), kind)

    def load(self, path: Path) -> dict[str, Any]:
        """Return the file's tables. Raises: the error, where it cannot be read or is no TOML."""
        try:
            with open(self._opened(path), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise self._error(f"{path}: not a regular file")
                data = file.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise self._error(f"{path}: larger than {MAX_FILE} bytes, which no {self._what} is")
            return tomllib.loads(data.decode())
        except trust.DistrustError as error:
            raise self._error(str(error)) from error
        except OSError as error:
            raise self._error(f"{path}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(
                f"{path}{_line(path, str(error))}: not valid TOML: {error}"
            ) from error

    def _opened(self, path: Path) -> int:
        if package.owns(path):
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return trust.open_file(path, named=self._harmless)

    def convert(self, path: Path, data: dict[str, Any], kind: type[T]) -> T:
        """Return the tables of a file as a struct. Raises: the error, with file and line."""
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            text, parts = _text_and_parts(error)
            raise self.mistake(path, parts, f"{self._where(data, parts)}{text}") from error

    def survey(self, path: Path, data: dict[str, Any], kind: type[T]) -> Survey[T]:
        """Return all mistakes: each wrong part is left out, and the rest is checked again."""
        data = copy.deepcopy(data)
        found: Survey[T] = Survey(data)
        while len(found.mistakes) < MAX_MISTAKES:
            try:
                found.value = msgspec.convert(data, kind)
                break
            except msgspec.ValidationError as error:
                text, parts = _text_and_parts(error)
            place = list(parts)
            if len(place) > 1 and place[0] in found.numbers and isinstance(place[1], int):
                place[1] = found.numbers[str(place[0])][place[1]]
                found.wrong.add((str(place[0]), place[1]))
            found.mistakes.append(self.mistake(path, place, f"{self._where(data, parts)}{text}"))
            unknown = _UNKNOWN.search(text)
            if unknown is not None:
                parts = [*parts, unknown.group(1)]
            if not parts:
                break
            try:
                _leave_out(data, parts)
            except (KeyError, IndexError, TypeError):  # a key with characters of the message
                break
            if len(parts) == 2 and parts[0] in found.numbers:
                del found.numbers[str(parts[0])][int(parts[1])]
        return found

    def mistake(self, path: Path, place: Sequence[str | int], message: str) -> StallscopeError:
        """Return the error with its line, where that can be found."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return self._error(f"{path}: {message}")
        line = _line_of(text, place, _words(message.partition(": ")[2] or message))
        return self._error(f"{path}:{line}: {message}" if line else f"{path}: {message}")

    def _where(self, data: dict[str, Any], parts: Sequence[str | int]) -> str:
        """Name a place as ``signature 'its-id'.waiter: ``, or by its number where it has no id."""
        rest = list(parts)
        head = ""
        if len(rest) >= 2 and rest[0] in self._names and isinstance(rest[1], int):
            entry = data[str(rest[0])][rest[1]]
            name = entry.get(self._names[str(rest[0])]) if isinstance(entry, dict) else None
            if name:
                head, rest = f"{rest[0]} {name!r}", rest[2:]
        for part in rest:
            head += f"[{part}]" if isinstance(part, int) else f".{part}" if head else part
        return f"{head}: " if head else ""


def _text_and_parts(error: msgspec.ValidationError) -> tuple[str, list[str | int]]:
    text, _, place = str(error).partition(" - at `$")
    return text, _parts(place.rstrip("`"))


def _leave_out(data: Any, parts: Sequence[str | int]) -> None:
    """Delete what is at a place."""
    for part in parts[:-1]:
        data = data[part]
    del data[parts[-1]]


def _line(path: Path, message: str) -> str:
    """Return ``:LINE`` of an error that tomllib reports."""
    line = re.search(r"at line (\d+)", message)
    if line:
        return f":{line.group(1)}"
    if "end of document" in message:
        return f":{max(1, path.read_bytes().count(10))}"
    return ""


def _parts(place: str) -> list[str | int]:
    """Split msgspec's ``.signature[3].waiter[0]``."""
    return [int(n) if n else key for key, n in re.findall(r"\.([\w-]+)|\[(\d+)\]", place)]


def _words(message: str) -> list[str]:
    """Return the words that a message quotes: the wrong text is among them."""
    found = ["".join(match) for match in _QUOTED.findall(message)]
    return [word for word in found if len(word) >= _LEAST_WORD and word not in _TYPES]


def _line_of(text: str, place: Sequence[str | int], wanted: Sequence[str] = ()) -> int | None:
    """Return the line of a place, counted from 1.

    ``place``: keys and indexes, ``("signature", 2, "waiter", 0, "stack")``. It is the entry's line
    with one of ``wanted``, else the key's line, else the entry's first line.
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
    """Return first line and end of a place's innermost ``[[table]]``, and the rest of the place."""
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
