# SPDX-License-Identifier: Apache-2.0
"""TOML files that people write: read into a struct, and a mistake is shown with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stallscope.errors import StallscopeError
from stallscope.tomllines import line_of, words

__all__ = ["Reader"]

T = TypeVar("T")

MAX_FILE = 4 << 20


class Reader:
    """Reads one kind of file.

    ``what`` is it called; ``error`` is raised for a mistake. ``names``: of lists of tables the key
    that names an entry in messages, ``{"signature": "id"}``.
    """

    def __init__(
        self, what: str, error: type[StallscopeError], names: Mapping[str, str] | None = None
    ) -> None:
        self._what = what
        self._error = error
        self._names = names or {}

    def read(self, path: Path, kind: type[T]) -> T:
        """Read one file. Raises: the error, with file, line and what is wrong."""
        try:
            if path.stat().st_size > MAX_FILE:
                raise self._error(f"{path}: larger than {MAX_FILE} bytes, which no {self._what} is")
            data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise self._error(f"{path}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(
                f"{path}{_line(path, str(error))}: not valid TOML: {error}"
            ) from error
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at `$")
            parts = _parts(place.rstrip("`"))
            raise self.mistake(path, parts, f"{self._where(data, parts)}{text}") from error

    def mistake(self, path: Path, place: Sequence[str | int], message: str) -> StallscopeError:
        """Return the error with the line it is about, where that can be found."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return self._error(f"{path}: {message}")
        line = line_of(text, place, words(message.partition(": ")[2] or message))
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


def _line(path: Path, message: str) -> str:
    """Return ``:LINE`` of a mistake that tomllib tells of."""
    line = re.search(r"at line (\d+)", message)
    if line:
        return f":{line.group(1)}"
    if "end of document" in message:
        return f":{max(1, path.read_bytes().count(10))}"
    return ""


def _parts(place: str) -> list[str | int]:
    """Split msgspec's ``.signature[3].waiter[0]``."""
    return [int(n) if n else key for key, n in re.findall(r"\.([\w-]+)|\[(\d+)\]", place)]
