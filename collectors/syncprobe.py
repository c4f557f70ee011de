# SPDX-License-Identifier: Apache-2.0
"""What a sync costs in a folder, measured by writing and syncing a file of our own there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError, UsageError

__all__ = ["MAX_BYTES", "MAX_SECONDS", "Probed", "measure"]

MAX_BYTES = 64 << 20
"""Of the file."""
MAX_SECONDS = 5.0
MAX_SYNCS = 3000
_SIZES = (512, 65_536, 4096, 1 << 20, 16_384, 262_144)
"""Bytes before one sync: without variety the rate cannot be known."""
_SPARE = 1.1
_NOT_HERE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
"""O_TMPFILE where the file system, or the kernel, does not have it."""


class Probed(msgspec.Struct, frozen=True):
    """Sums over syncs: N in bytes, t in ns."""

    call: str
    """``fsync`` or ``fdatasync``."""
    syncs: int
    sum_t: float
    sum_n: float
    sum_nn: float
    sum_nt: float
    sum_tt: float


def measure(
    folder: Path,
    *,
    ended: Callable[[], bool] = lambda: False,
    seconds: float = MAX_SECONDS,
) -> tuple[Probed, ...]:
    """Write to a file in the folder and sync it, by both calls in turns, until time is up.

    The file has no name, or loses it at once: it is gone at any end of this process. ``ended`` is
    asked before each sync. Raises: UsageError where the folder is none, StallscopeError where it
    has too little space or cannot be written to.
    """
    if not folder.is_dir():
        raise UsageError(f"--probe-dir {folder}: no such directory")
    _check_space(folder)
    sums = {"fsync": [0.0] * 6, "fdatasync": [0.0] * 6}
    calls = {"fsync": os.fsync, "fdatasync": os.fdatasync}
    data = os.urandom(max(_SIZES))  # no file system may compress it, or leave it out
    try:
        with _file(folder) as descriptor:
            deadline = time.monotonic() + seconds
            offset = 0
            # Each size by both calls.
            turns = itertools.cycle((size, call) for size in _SIZES for call in calls)
            for size, call in itertools.islice(turns, MAX_SYNCS):
                if ended() or time.monotonic() >= deadline:
                    break
                if offset + size > MAX_BYTES:
                    offset = 0
                os.pwrite(descriptor, data[:size], offset)
                offset += size
                begun = time.perf_counter_ns()
                calls[call](descriptor)
                _add(sums[call], size, time.perf_counter_ns() - begun)
    except OSError as error:
        raise StallscopeError(f"--probe-dir {folder}: {error.strerror or error}") from error
    return tuple(Probed(call, int(values[0]), *values[1:]) for call, values in sums.items())


def _check_space(folder: Path) -> None:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < MAX_BYTES * _SPARE:
        raise StallscopeError(
            f"--probe-dir {folder}: {free >> 20} MiB are free, and {MAX_BYTES >> 20} MiB and some"
            " to spare are needed; name another folder of the same file system's disk"
        )


@contextlib.contextmanager
def _file(folder: Path) -> Iterator[int]:
    descriptor = _open(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    name = folder / f".stallscope-sync-{os.getpid()}-{os.urandom(6).hex()}"
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    name.unlink()
    return descriptor


def _add(sums: list[float], size: int, ns: int) -> None:
    for index, value in enumerate((1, ns, size, size * size, size * ns, ns * ns)):
        sums[index] += value
