# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that is not trusted: links are not followed, sizes are not trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError

__all__ = [
    "MAX_NAMES",
    "folder",
    "is_full",
    "make_folder",
    "make_folders",
    "names",
    "one_line_of",
    "read",
    "regular",
]

MAX_NAMES = 200_000
"""The most names of one folder that are read."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK the opening of a FIFO waits for a writer forever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def folder(path: Path | str, inside: int | None = None) -> Iterator[int]:
    """Open a folder; below ``inside``, an open folder, a link is not followed. Raises: OSError."""
    flags = _FOLDER if inside is None else _FOLDER | os.O_NOFOLLOW
    descriptor = os.open(path, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names(descriptor: int) -> list[str]:
    """Return the sorted names in an open folder, MAX_NAMES at most. Raises: OSError."""
    with os.scandir(descriptor) as entries:
        found = [entry.name for _, entry in zip(range(MAX_NAMES), entries, strict=False)]
    return sorted(found)


def regular(name: str, inside: int) -> os.stat_result | None:
    """Return the status of a regular file, None for anything else and for nothing."""
    try:
        status = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def read(name: str, inside: int, limit: int) -> bytes:
    """Return the content of a regular file.

    Raises: StallscopeError beginning with the name. FileNotFoundError where there is none.
    """
    try:
        descriptor = os.open(name, _FILE, dir_fd=inside)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StallscopeError(f"{name}: {one_line_of(error)}; it is not read") from error
    try:
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StallscopeError(f"{name}: not a regular file; it is not read")
            if status.st_size > limit:
                raise StallscopeError(f"{name}: larger than {limit} bytes; it is not read")
            data = file.read(limit + 1)
    except OSError as error:
        raise StallscopeError(f"{name}: {one_line_of(error)}") from error
    if len(data) > limit:
        raise StallscopeError(f"{name}: larger than {limit} bytes; it is not read")
    return data


def make_folder(path: Path) -> bool:
    """Make a folder that its owner alone can enter; say whether it was not there.

    Raises: StallscopeError.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if path.is_dir():
            return False
        raise StallscopeError(f"{path} is not a directory; name another store") from None
    except OSError as error:
        raise StallscopeError(f"cannot make {path}: {one_line_of(error)}") from error
    return True


def make_folders(path: Path) -> None:
    """Make a folder and those above it, and sync their names. Raises: StallscopeError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        if make_folder(folder):
            try:
                atomicfile.sync_folder(folder.parent)
            except OSError as error:
                raise StallscopeError(f"cannot make {folder}: {one_line_of(error)}") from error
    make_folder(path)


def one_line_of(error: OSError) -> str:
    """Return what the system says about an error."""
    return error.strerror or str(error)


def is_full(error: BaseException | None) -> bool:
    """Return whether an error, or what it was raised from, is a disk or a quota that is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
