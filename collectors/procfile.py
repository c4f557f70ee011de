# SPDX-License-Identifier: Apache-2.0
"""Read files below /proc/PID that wait for the mmap_lock of the process.

``cmdline``, ``environ`` and ``maps`` are such: while a thread of the process holds that lock,
because a disk does not answer, every reader waits. ``stat``, ``status``, ``comm`` and the links are
not.
"""

from __future__ import annotations

import ctypes
import os
import queue
import struct
import threading
import time
from pathlib import Path
from typing import BinaryIO

__all__ = ["HOLD_SECONDS", "PATIENCE_SECONDS", "identity", "owner", "read", "take"]

PATIENCE_SECONDS = 0.5
HOLD_SECONDS = 10.0
"""The pause before a file that was late is tried again."""
_MAX_LATE = 256
_CHUNK = 16 << 10

# statx(2): include/uapi/linux/fcntl.h, stat.h
_FROM_HERE = -100  # AT_FDCWD
_NO_AUTOMOUNT_DONT_SYNC = 0x800 | 0x4000
_WANTED = 0x10A  # STATX_MODE, STATX_UID, STATX_INO
# stx_uid, stx_mode, stx_ino, stx_dev_major, stx_dev_minor
_STATX = struct.Struct("=20xI4xH2xQ96xII112x")
_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)


class _Job:
    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.done = threading.Event()
        self.data: bytes | None = None


class _Reader:
    """A thread that reads. One that waits for too long is abandoned, and ends after its read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] | None = None
        self._late: dict[Path, float] = {}

    def read(self, path: Path, limit: int) -> bytes | None:
        with self._lock:
            now = time.monotonic()
            if self._late.get(path, 0.0) > now:
                return None
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(
                    target=_work, args=(self._jobs,), name="procfile", daemon=True
                ).start()
            job = _Job(path, limit)
            self._jobs.put(job)
            if job.done.wait(PATIENCE_SECONDS):
                return job.data
            self._jobs.put(None)
            self._jobs = None
            if len(self._late) >= _MAX_LATE:
                self._late = {one: until for one, until in self._late.items() if until > now}
            if len(self._late) < _MAX_LATE:
                self._late[path] = now + HOLD_SECONDS
            return None


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            with job.path.open("rb") as file:
                job.data = take(file, job.limit)
        except OSError:
            job.data = None
        job.done.set()


_reader = _Reader()


def take(file: BinaryIO, limit: int) -> bytes:
    """Return up to ``limit`` bytes. ``file.read(limit)`` would allocate the limit, which costs more
    than these files, of a page or less."""
    parts: list[bytes] = []
    while limit > 0 and (part := file.read(min(limit, _CHUNK))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def read(path: Path, limit: int) -> bytes | None:
    """Return up to ``limit`` bytes of a file; None where it does not exist, may not be read, or is
    late."""
    return _reader.read(path, limit)


def identity(link: Path) -> tuple[int, int] | None:
    """Return device and inode number of what a link of /proc leads to; None where there is none.

    Neither a network's server nor the program of a FUSE file system is asked, who may not answer:
    os.stat() would wait for them, and could not be ended.
    """
    found = _status(link)
    if found is None:
        return None
    _, _, inode, major, minor = found
    return os.makedev(major, minor), inode


def owner(link: Path) -> tuple[int, int] | None:
    """Return user and mode of what a link of /proc leads to, in the same way."""
    found = _status(link)
    return None if found is None else (found[0], found[1])


def _status(link: Path) -> tuple[int, ...] | None:
    if _statx is None:
        return None
    found = ctypes.create_string_buffer(_STATX.size)
    if _statx(_FROM_HERE, os.fsencode(link), _NO_AUTOMOUNT_DONT_SYNC, _WANTED, found):
        return None
    return _STATX.unpack(found.raw)
