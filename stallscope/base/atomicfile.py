# SPDX-License-Identifier: Apache-2.0
"""Write a file so that it is whole or absent, and readable by its owner alone unless asked."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from stallscope.base.errors import StallscopeError

__all__ = ["check_can_create", "free_name", "sync_folder", "write"]


MOST_NAMES = 10_000


def check_can_create(path: Path, *, force: bool) -> None:
    """Fail early where ``write`` could not create the file later."""
    if path.is_dir():
        raise StallscopeError(f"cannot write {path}: it is a directory; name a file")
    if path.exists() and not path.is_file():
        # As root, replacing /dev/null or /dev/stdout by a file would break the machine.
        raise StallscopeError(f"cannot write {path}: it is not a regular file")
    if not path.parent.is_dir():
        raise StallscopeError(f"cannot write {path}: there is no directory {path.parent}")
    if not force and (path.exists() or path.is_symlink()):
        raise StallscopeError(f"{path} exists; give --force to replace it")


def free_name(path: Path) -> Path:
    """Return the path, or the first of ``name.2.ext``, ``name.3.ext``, … that does not exist."""
    stem, dot, rest = path.name.partition(".")
    if not stem:  # a hidden file
        stem, dot, rest = path.name, "", ""
    for number in itertools.chain([1], range(2, MOST_NAMES)):
        found = path if number == 1 else path.with_name(f"{stem}.{number}{dot}{rest}")
        if not (found.exists() or found.is_symlink()):
            return found
    raise StallscopeError(f"{path} exists, and {MOST_NAMES} like it; give another name")


def write(
    path: Path,
    chunks: Iterable[bytes],
    *,
    force: bool = False,
    mode: int = 0o600,
    sync: bool = True,
) -> None:
    """Write the chunks to a temporary file, sync it, then rename it. Without ``force`` an existing
    file is never replaced, not even one that appears meanwhile. Without ``sync`` readers see a
    whole file, which may be empty after a crash of the host.
    """
    check_can_create(path, force=force)
    # A symbolic link is not followed: with force, it is replaced by the file.
    aside = path.parent / f".{path.name[:200]}.{secrets.token_hex(6)}.tmp"
    try:
        _write_aside(aside, chunks, mode, sync)
        _publish(aside, path, force=force)
        if sync:
            sync_folder(path.parent)
    except FileExistsError:
        raise StallscopeError(f"{path} exists; give --force to replace it") from None
    except OSError as error:
        raise StallscopeError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def _write_aside(aside: Path, chunks: Iterable[bytes], mode: int, sync: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fchmod(file.fileno(), mode)  # whatever the umask is
        if sync:
            os.fsync(file.fileno())


def _publish(aside: Path, path: Path, *, force: bool) -> None:
    if force:
        os.replace(aside, path)
    else:
        try:
            os.link(aside, path)  # unlike rename(2), fails where the name is taken
        except OSError as error:
            # File systems without hard links (vfat, some FUSE).
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            check_can_create(path, force=False)
            os.rename(aside, path)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new and removed names survive a crash. Raises: OSError."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync a directory
            raise
    finally:
        os.close(directory)
