# SPDX-License-Identifier: Apache-2.0
"""What a sync costs in a folder, measured by writing and syncing a file of our own there.

A process of its own does that: what waits for a disk that does not answer cannot be ended.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.package import module_command
from stallscope.collectors.programs import reap

__all__ = ["MAX_BYTES", "MAX_SECONDS", "Probed", "measure", "measure_apart"]

MAX_BYTES = 64 << 20
"""Of the file."""
MAX_SECONDS = 5.0
MAX_SYNCS = 3000
LATE_SECONDS = 30.0
"""For the last sync, beside the time that is measured."""
_ASK_SECONDS = 0.1
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


class _Answer(msgspec.Struct, frozen=True):
    probed: tuple[Probed, ...] = ()
    error: str | None = None
    is_usage: bool = False


def measure_apart(
    folder: Path, *, ended: Callable[[], bool] = lambda: False, seconds: float = MAX_SECONDS
) -> tuple[Probed, ...]:
    """Measure in a process of its own, which is left behind where the disk does not answer.

    Raises: UsageError, StallscopeError.
    """
    argv, environment = module_command(__name__)
    process = subprocess.Popen(
        [*argv, str(folder), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the caller, who says that it is to end
    )
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + seconds + LATE_SECONDS
    try:
        while not select.select([process.stdout], [], [], _ASK_SECONDS)[0]:
            if ended():
                process.stdin.close()
            if time.monotonic() > deadline:
                why = f"its disk has not answered for {LATE_SECONDS:g} s"
                raise StallscopeError(f"--probe-dir {folder}: {why}")
        answer = msgspec.json.decode(process.stdout.read(), type=_Answer)
    except msgspec.MsgspecError:
        raise StallscopeError(f"--probe-dir {folder}: the measuring process failed") from None
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        reap(process)
    if answer.error is None:
        return answer.probed
    raise UsageError(answer.error) if answer.is_usage else StallscopeError(answer.error)


def main(arguments: list[str]) -> None:
    """Measure until the other end of standard input is closed, or time is up."""
    folder, seconds = arguments
    try:
        found = measure(Path(folder), ended=_is_over, seconds=float(seconds))
        answer = _Answer(found)
    except StallscopeError as error:
        answer = _Answer(error=str(error), is_usage=isinstance(error, UsageError))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


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


if __name__ == "__main__":
    main(sys.argv[1:])
