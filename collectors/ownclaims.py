# SPDX-License-Identifier: Apache-2.0
"""Which connections on this host are stallscope's, for its other processes.

A connection is an empty file, whose name has the server's process and the inode number of the
server's end of the socket. Its process holds a lock on the file: without the lock it is what a
killed process has left. Files of other users are not believed, except for those of root and of the
account that runs the agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from stallscope.base import trust
from stallscope.collectors.paths import asking

__all__ = ["Claim", "accounts", "claims"]

SHARED = Path("/dev/shm")  # noqa: S108  # each user has a folder of its own in it
PREFIX = "stallscope-own-"
ACCOUNT = "stallscope"
MAX_CLAIMS = 256
"""That are read, of each user and of all."""

_NAME = re.compile(r"([1-9][0-9]{0,9})-([1-9][0-9]{0,9})")


class Claim:
    """Says that a connection is stallscope's, until it is released or this process ends."""

    def __init__(self, pid: int, inode: int) -> None:
        """Where no file can be made, other processes do not know of the connection."""
        self._path: Path | None = None
        self._descriptor = -1
        folder = SHARED / f"{PREFIX}{os.geteuid()}"
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
            if not _is_of(folder, os.geteuid()):
                return
            path = folder / f"{pid}-{inode}"
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path = path

    def release(self) -> None:
        """The connection has ended."""
        with contextlib.suppress(OSError):
            if self._path is not None:
                self._path.unlink()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._path, self._descriptor = None, -1


def claims() -> frozenset[tuple[int, int]]:
    """Return the connections of all processes: the server's process, and the inode number of its
    end of the socket."""
    found: set[tuple[int, int]] = set()
    for uid in sorted({0, os.geteuid(), *accounts()}):
        for claim in _of_user(uid):
            if len(found) < MAX_CLAIMS:
                found.add(claim)
    return frozenset(found)


def accounts() -> frozenset[int]:
    """Return the user id of the account that runs the agent, where there is one."""
    with contextlib.suppress(KeyError):
        return frozenset({pwd.getpwnam(ACCOUNT).pw_uid})
    return frozenset()


def _of_user(uid: int) -> Iterator[tuple[int, int]]:
    path = SHARED / f"{PREFIX}{uid}"
    try:
        if not _is_of(path, uid):
            return
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(folder)[:MAX_CLAIMS]:
            match = _NAME.fullmatch(name)
            if match and _is_held(folder, name):
                yield int(match[1]), int(match[2])
    finally:
        os.close(folder)


def _is_of(path: Path, uid: int) -> bool:
    """Return whether a folder is that of a user, and nobody else can make files in it, or mount a
    disk of their own there. Raises: OSError."""
    above, found = asking.status(SHARED), asking.status(path, follow=False)
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_dev == above.st_dev
        and trust.status_reason(found, [uid], path) is None
    )


def _is_held(folder: int, name: str) -> bool:
    """Return whether the process that has made a file still has the connection."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(file)
