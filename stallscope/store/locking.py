# SPDX-License-Identifier: Apache-2.0
"""Locks between processes: flock(2), which the kernel releases when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.errors import StallscopeError

__all__ = ["Held", "Locked", "hold", "is_held", "take"]

_LONGEST_NAP = 0.05


class Locked(StallscopeError):
    """Another process holds the lock."""


class Held:
    """A lock that this process holds until ``release``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release it; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take(path: Path) -> Held:
    """Lock a file or folder now. Raises: Locked. OSError where it cannot be opened or locked."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise Locked(f"{path} is locked by another process") from None
        raise
    return Held(descriptor)


def _open(path: Path) -> int:
    """Open for writing where that is possible: NFS locks no file that is only read."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    return os.open(path, os.O_RDONLY | flags)


@contextlib.contextmanager
def hold(path: Path, seconds: float) -> Iterator[None]:
    """Lock a file, waiting so long at most. Raises: Locked, OSError.

    flock(2) has no deadline, so it is asked again and again.
    """
    deadline = time.monotonic() + seconds
    nap = 0.001
    while True:
        try:
            held = take(path)
            break
        except Locked:
            if time.monotonic() + nap > deadline:
                raise Locked(f"{path} is locked by another process for {seconds:g} s") from None
        time.sleep(nap)
        nap = min(nap * 2, _LONGEST_NAP)
    try:
        yield
    finally:
        held.release()


def is_held(name: str, inside: int) -> bool | None:
    """Return whether somebody holds the lock on a folder; None where that is unknown."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=inside)
    except OSError:
        return None
    try:
        # Shared: of two who ask at once neither mistakes the other for a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno == errno.EWOULDBLOCK else None
    finally:
        os.close(descriptor)
    return False
