# SPDX-License-Identifier: Apache-2.0
"""Lines of ``stallscope.storage-files/1``, field by field in docs/probe.md: what a process wrote to
its files, and what it waited for until that was safe. All numbers are totals since the start."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stallscope.model.probelines import decode_line
from stallscope.model.waitlines import ProgramState

__all__ = [
    "MAX_LINE",
    "SCHEMA",
    "FileSums",
    "OtherSyncs",
    "ProcessIo",
    "StorageLine",
    "loads",
]

SCHEMA = "stallscope.storage-files/1"

MAX_LINE = 64 << 20
"""The most bytes of a line; that of a process with 16,384 files is far smaller."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Sum = Annotated[float, msgspec.Meta(ge=0, le=1e40)]
"""The kernel adds with 128 bits; a double keeps 15 digits of it."""


class FileSums(msgspec.Struct, frozen=True, kw_only=True):
    """What went to one file.

    A sync is an fsync, an fdatasync, or a write with O_SYNC or O_DSYNC, that has ended without an
    error. Its N is how many bytes were written to the file without O_DIRECT from the beginning of
    the sync before until its own beginning; for a write with O_SYNC or O_DSYNC, the bytes of that
    write. Its t is its time in ns.
    """

    path: str | None
    """As the process sees it; None: unknown."""
    file_class: str = msgspec.field(name="class")
    dev: str
    """The device of the file system as the kernel has it, MAJOR:MINOR."""
    ino: Count
    deleted: bool = False
    """It has no name any more, or got another one after it was closed."""
    metadata: bool = False
    """Pages of the file system itself, which no call has written to."""
    direct: bool = False
    """It was written with O_DIRECT."""
    dsync: bool = False
    """It was written with O_SYNC or O_DSYNC."""
    requests: Count
    """Writes that wrote something: of all system calls, libaio and io_uring."""
    requested_bytes: Count
    """Bytes that these wrote, as their callers count."""
    write_ns: Count
    """Time in these."""
    charged_bytes: Count | None
    """What the kernel adds to the process's ``write_bytes`` for this file: whole pages when they
    become dirty, and bytes of O_DIRECT; None: unknown (``charged_why_not`` of the line)."""
    mapped_bytes: Count | None = None
    """Of charged_bytes: pages that became dirty through a mapping (mmap)."""
    direct_bytes: Count = 0
    """Of requested_bytes: with O_DIRECT."""
    syncs: Count
    sync_ns: Count
    """Sum of t."""
    sync_max_ns: Count = 0
    """Of one sync."""
    sum_n: Sum
    sum_nn: Sum
    sum_nt: Sum
    sum_tt: Sum
    fsyncs: Count = 0
    """Of syncs, as ``fdatasyncs`` and ``dsync_writes``: their sum is ``syncs``."""
    fdatasyncs: Count = 0
    dsync_writes: Count = 0
    sync_errors: Count = 0
    """Syncs that failed; they are in no other number."""
    range_syncs: Count = 0
    """sync_file_range(2), which makes nothing safe: not in ``syncs``."""
    range_sync_ns: Count = 0


class OtherSyncs(msgspec.Struct, frozen=True):
    """Syncs that are not of one file."""

    msyncs: Count = 0
    msync_ns: Count = 0
    syncfs: Count = 0
    """syncfs(2) and sync(2)."""
    syncfs_ns: Count = 0


class ProcessIo(msgspec.Struct, frozen=True):
    """How much /proc/PID/io has grown since the start."""

    wchar: Count
    syscw: Count
    write_bytes: Count
    cancelled_write_bytes: Count


class StorageLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has done since the start; the last of a process is ``final``."""

    schema: str
    pid: int
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    final: bool = False
    ended: bool = False
    """The process has ended; the numbers are complete up to its end, ``io`` is from before."""
    files: tuple[FileSums, ...] = ()
    """By charged_bytes or requested_bytes, the largest first."""
    other_syncs: OtherSyncs = OtherSyncs()
    charged_why_not: str | None = None
    """Why charged_bytes is not known; None: it is known."""
    io: ProcessIo | None = None
    """None: /proc/PID/io cannot be read."""
    lost: dict[str, Count] = msgspec.field(default_factory=dict)
    programs: tuple[ProgramState, ...] = ()


_decoder = msgspec.json.Decoder(StorageLine)


def loads(data: bytes, source: str, number: int) -> StorageLine:
    """Read one line. ``source`` and ``number`` (from 1) name it in the error.

    Raises: StallscopeError saying what is wrong with it.
    """
    return decode_line(_decoder.decode, data, f"{source}: line {number}", SCHEMA, MAX_LINE)
