# SPDX-License-Identifier: Apache-2.0
"""The list of what may be changed in a live server, as TOML: the package's own, or a user's."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

from stallscope.base.errors import UsageError
from stallscope.base.tomlfile import Reader
from stallscope.model.pokes import AllowList, Poke

__all__ = [
    "OWN",
    "AllowListError",
    "load",
]

OWN = Path(__file__).parent / "pokes.toml"
MAX_FILE = 1 << 20


class AllowListError(UsageError):
    """An allow-list cannot be read, or may not be trusted."""


_READER = Reader("allow-list of pokes", AllowListError, {"poke": "name", "direct_io": "name"})


def load(path: Path | None = None) -> AllowList:
    """Return the package's list, or that of a file that only root and this user can change.

    Raises: AllowListError.
    """
    path = OWN if path is None else path
    data = _read(path, trusted=path is OWN)
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AllowListError(f"{path}: not valid TOML: {error}") from error
    found = _READER.convert(path, tables, AllowList)
    _check(path, found)
    return found


def _read(path: Path, *, trusted: bool) -> bytes:
    """Return the bytes of the very file that was checked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise AllowListError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AllowListError(f"{path}: not a regular file")
        if not trusted:
            _check_owner(path, status)
            _check_folder(path)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE:
        raise AllowListError(f"{path}: larger than {MAX_FILE} bytes, which no allow-list is")
    return data


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise AllowListError(
            f"{path}: it belongs to user {status.st_uid}, who could change it:"
            " an allow-list must belong to root or to you"
        )
    if status.st_mode & 0o022:
        raise AllowListError(f"{path}: others can write to it: chmod go-w {path}")


def _check_folder(path: Path) -> None:
    """Refuse a file that somebody else could replace."""
    folder = path.absolute().parent
    try:
        status = folder.stat()
    except OSError as error:
        raise AllowListError(f"{folder}: {error.strerror}") from error
    others_write = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()) or others_write:
        raise AllowListError(f"{path}: others can replace it, because {folder} is theirs too")


def _check(path: Path, found: AllowList) -> None:
    """Refuse what no type expresses."""
    for kind, entries in (("poke", found.poke), ("direct_io", found.direct_io)):
        names = set()
        for number, entry in enumerate(entries):
            place = (kind, number)
            if (entry.build_id is None) == (entry.sha256 is None):
                message = f"{kind} {entry.name!r}: give build_id or sha256, one of them"
                raise _READER.mistake(path, place, message)
            key = (entry.name, entry.build_id, entry.sha256)
            if key in names:
                message = f"{kind} {entry.name!r}: twice for the same build"
                raise _READER.mistake(path, place, message)
            names.add(key)
    for number, poke in enumerate(found.poke):
        if wrong := _wrong(poke):
            message = f"poke {poke.name!r}: {wrong}"
            raise _READER.mistake(path, ("poke", number), message)


def _wrong(poke: Poke) -> str | None:
    most = (1 << 8 * poke.size) - 1
    if poke.address % poke.size:
        return f"address {poke.address:#x} is not aligned to {poke.size} bytes"
    for name, values in (("old", poke.old), ("new", poke.new)):
        if values.least > values.most:
            return f"{name}: least is larger than most"
        if values.most > most:
            return f"{name}: {values.most} has more than {poke.size} bytes"
    return None
