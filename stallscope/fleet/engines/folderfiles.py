# SPDX-License-Identifier: Apache-2.0
"""Files of a fleet's folder: ``TABLE/day=2026-11-29/NAME.jsonl.zst`` of one batch each, and
``NAME.parquet`` of compaction. docs/fleet-folder.md.

Anyone who can write the folder may have written them: names, sizes and rows are checked here,
before an engine sees them.
"""

from __future__ import annotations

import datetime
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.fleet.batch import MAX_PACKED, MAX_PLAIN
from stallscope.fleet.tables import PARTS, Column, Table
from stallscope.store.appended import frames

__all__ = [
    "LINES",
    "MAX_LINE",
    "MAX_PARQUET",
    "PACKED",
    "Day",
    "Entry",
    "Lines",
    "check_parquet",
    "days",
    "is_date",
    "lines_of",
    "open_file",
]

LINES = ".jsonl.zst"
PACKED = ".parquet"
MAX_LINE = 8 << 20
"""Bytes of one row."""
MAX_PARQUET = 64 << 30
_MAX_FOOTER = 256 << 20
_MAGIC = b"PAR1"
_DAY = re.compile(r"day=([0-9]{4}-[0-9]{2}-[0-9]{2})")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = _OPEN | os.O_DIRECTORY


class Entry(msgspec.Struct, frozen=True, order=True):
    """A file that may have rows."""

    day: str
    path: Path

    @property
    def is_parquet(self) -> bool:
        """Return whether compaction has written it."""
        return self.path.name.endswith(PACKED)


class Day(msgspec.Struct, frozen=True):
    """What is in the folder of one day of a table. ``strange``: what is no file of ours, and
    why."""

    day: str
    entries: tuple[Entry, ...]
    strange: tuple[tuple[Path, str], ...]


def days(table: Path, since: str = "", until: str = "9") -> Iterator[Day]:
    """Yield the days of a table's folder, from ``since`` to ``until`` and the first one first.

    Raises: OSError where it cannot be read; a folder that is not there has no days.
    """
    try:
        names = sorted(os.listdir(table))
    except FileNotFoundError:
        return
    for name in names:
        found = _DAY.fullmatch(name)
        if found is None or not is_date(found[1]) or not since <= found[1] <= until:
            continue
        try:
            yield _day(found[1], table / name)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except OSError as error:
            yield Day(found[1], (), ((table / name, error.strerror or "cannot be read"),))


def is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _day(day: str, folder: Path) -> Day:
    entries, strange = [], []
    for name in _names(folder):
        if name.startswith("."):
            continue  # is being written, or its writer was killed
        if not name.endswith((LINES, PACKED)):
            strange.append((folder / name, "no file of a fleet"))
        elif _NAME.fullmatch(name) is None:
            strange.append((folder / name, "no name that a fleet gives"))
        else:
            entries.append(Entry(day, folder / name))
    return Day(day, tuple(entries), tuple(strange))


def _names(folder: Path) -> list[str]:
    """Return the names in a folder. A listing can miss both a new Parquet file and the files that
    were removed since it has their rows; the next listing has it then."""
    descriptor = os.open(folder, _FOLDER)  # no symbolic link out of the folder
    try:
        names = os.listdir(descriptor)
        while True:
            again = os.listdir(descriptor)
            if _packed(names) == _packed(again):
                return sorted(names)
            names = again
    finally:
        os.close(descriptor)


def _packed(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(PACKED) and not name.startswith(".")}


def open_file(path: Path, most: int) -> tuple[int, int]:
    """Return an open file and its size. Raises: StallscopeError with why it is left out,
    FileNotFoundError."""
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ESTALE:  # another host has removed it
            raise FileNotFoundError(errno.ENOENT, "removed", str(path)) from None
        why = "a symbolic link" if path.is_symlink() else error.strerror or "cannot be opened"
        raise StallscopeError(why) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StallscopeError("no regular file")
        if status.st_size > most:
            raise StallscopeError(f"larger than {most >> 20} MiB")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def check_parquet(descriptor: int, size: int) -> None:
    """Look at both ends of a file. Raises: StallscopeError with why it is left out."""
    try:
        head, tail = os.pread(descriptor, 4, 0), os.pread(descriptor, 8, max(0, size - 8))
    except OSError as error:
        raise StallscopeError(error.strerror or "cannot be read") from None
    footer = int.from_bytes(tail[:4], "little")
    if head != _MAGIC or tail[4:] != _MAGIC or footer > min(size - 12, _MAX_FOOTER):
        raise StallscopeError("torn, or no Parquet file")


def lines_of(entry: Entry, lines: Lines) -> bytes:
    """Return the rows of a file of lines: each with all columns of this version, in their order.

    Raises: StallscopeError with why it is left out, FileNotFoundError.
    """
    descriptor, _ = open_file(entry.path, MAX_PACKED)
    try:
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_PACKED + 1)
    except OSError as error:
        raise StallscopeError(error.strerror or "cannot be read") from None
    if len(data) > MAX_PACKED:
        raise StallscopeError(f"larger than {MAX_PACKED >> 20} MiB")
    if not data:
        raise StallscopeError("empty")
    plain, torn = frames(data, MAX_PLAIN)
    if torn is not None:
        raise StallscopeError(torn.removesuffix(" and skipped"))
    return lines.checked(plain, entry.day)


class Lines:
    """Reads lines of JSON of one table, which a later or earlier version may have written: columns
    that are not known are left out (``strict``: refused), missing ones have defaults."""

    def __init__(self, table: Table, *, strict: bool = False) -> None:
        self._columns = table.columns
        self._decoder = msgspec.json.Decoder(
            msgspec.defstruct(
                f"Any{table.row.__name__}",
                [(one.name, _hint(one), None) for one in table.columns],
                forbid_unknown_fields=strict,
            )
        )
        self._encoder = msgspec.json.Encoder()
        self._plain = tuple(
            (one.name, _ZERO[one.type]) for one in table.columns if not (one.array or one.nullable)
        )
        self._key = table.key
        self._lists = tuple(one for one in table.columns if one.array)
        self._items = tuple(one for one in self._lists if not one.nullable)
        self._parts = tuple(
            tuple(one for one in self._lists if one.name.startswith(part.prefix + "_"))
            for part in PARTS.values()
            if table.name == "incidents"
        )

    def checked(self, plain: bytes, day: str) -> bytes:
        """Return the lines. Raises: StallscopeError with what is wrong with the first bad one."""
        found = []
        for number, line in enumerate(plain.split(b"\n"), 1):
            if not line:
                continue
            if len(line) > MAX_LINE:
                raise StallscopeError(f"line {number} is longer than {MAX_LINE >> 20} MiB")
            try:
                row = self._decoder.decode(line)
                self._complete(row, day)
                text = self._encoder.encode(row)
            except (ValueError, RecursionError) as error:
                why = one_line(str(error), 120)
                raise StallscopeError(f"line {number} is damaged: {why}") from None
            if len(text) > MAX_LINE:  # escapes can be longer than what they stand for
                raise StallscopeError(f"line {number} is longer than {MAX_LINE >> 20} MiB")
            found.append(text)
        return b"".join(one + b"\n" for one in found)

    def _complete(self, row: Any, day: str) -> None:
        if row.day != day:
            raise ValueError(f"a row of day {one_line(str(row.day), 20)}")
        for name in self._key:
            if getattr(row, name) is None:
                raise ValueError(f"no {name}")
        for name, zero in self._plain:
            value = getattr(row, name)
            if value is None:
                setattr(row, name, zero)
            elif value is True or value is False:
                setattr(row, name, int(value))
        for part in self._parts:
            self._fill(row, part)
        for column in self._lists:
            items = getattr(row, column.name)
            if items is None:
                setattr(row, column.name, [])
            elif column.type == "bool" or (not column.nullable and None in items):
                zero = None if column.nullable else _ZERO[column.type]
                items = [zero if one is None else one for one in items]
                setattr(row, column.name, list(map(int, items)) if column.type == "bool" else items)

    @staticmethod
    def _fill(row: Any, part: tuple[Column, ...]) -> None:
        """Give the arrays of one part the same length."""
        lengths = {len(got) for one in part if (got := getattr(row, one.name)) is not None}
        if len(lengths) > 1:
            raise ValueError(f"{part[0].name} and the other arrays differ in length")
        length = lengths.pop() if lengths else 0
        for one in part:
            if getattr(row, one.name) is None:
                zero = None if one.nullable else _ZERO[one.type]
                setattr(row, one.name, [zero] * length)


_INT = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_HINTS: dict[str, Any] = {
    "text": str,
    "day": str,
    "int": _INT,
    "float": float,
    "bool": bool | Annotated[int, msgspec.Meta(ge=0, le=1)],
}
_ZERO: dict[str, Any] = {"text": "", "day": "", "int": 0, "float": 0.0, "bool": 0}


def _hint(column: Column) -> Any:
    hint = _HINTS[column.type] | None
    return list[hint] | None if column.array else hint  # type: ignore[valid-type]
