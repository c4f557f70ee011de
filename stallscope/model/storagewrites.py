# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a server went: what was measured, and ``stallscope.storage-writes/1``, which
docs/commands/storage-writes.md explains field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.base.times import Moment
from stallscope.model.storage import ProcessIo, StorageLine

__all__ = [
    "CLASSES",
    "MAX_BYTES",
    "SCHEMA",
    "Amplification",
    "ClassWrites",
    "DeviceWrites",
    "DiskRow",
    "FileWrites",
    "HostWrites",
    "Measured",
    "Point",
    "Unaccounted",
    "WritesReport",
    "class_bytes",
    "is_saved",
    "loads",
]

SCHEMA = "stallscope.storage-writes/1"
CLASSES = ("redo", "doublewrite", "data", "undo", "binlog", "relay", "temporary", "other")
MAX_BYTES = 16 << 20
"""The most bytes of a saved report; with all its limits used it has a fourth of that."""
_MARK = b'"stallscope.storage-writes/1"'
_HEAD = 200

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Real = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Text = Annotated[str, msgspec.Meta(max_length=4200)]
Items = msgspec.Meta(max_length=4096)


class DiskRow(msgspec.Struct, frozen=True):
    """A row of /proc/diskstats."""

    name: str
    write_bytes: int
    writes: int
    flushes: int | None = None


class HostWrites(msgspec.Struct, frozen=True):
    """What the host had written at one moment."""

    io: Mapping[int, ProcessIo]
    """Totals of the server's processes since their start."""
    others: Mapping[tuple[int, int], int]
    """write_bytes of all other processes by pid and start time."""
    disks: Mapping[str, DiskRow]
    """By ``MAJOR:MINOR``."""
    hidden: int = 0
    """Other processes that may not be read."""


class Measured(msgspec.Struct, frozen=True):
    """All that was read of one server, and nothing concluded from it."""

    name: str
    """The server's program."""
    pid: int
    """Of its main process."""
    lines: tuple[StorageLine, ...]
    """The final line of each process."""
    series: tuple[tuple[float, Mapping[str, int]], ...]
    """Bytes by class since the start, at times in seconds since then."""
    first: HostWrites
    last: HostWrites
    began: Mapping[int, int]
    """write_bytes of the processes that began meanwhile and still run, by pid."""
    sources: Mapping[str, str] = {}
    """The kernel's name of the block device below a file system without one, by its number."""
    time_ns: int = 0
    """When it began, by the wall clock."""
    notes: tuple[str, ...] = ()


class ClassWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What went to the files of one class."""

    file_class: Text = msgspec.field(name="class")
    bytes: Count | None
    requests: Count
    requested_bytes: Count
    files: Count
    share: Real | None = None
    bytes_per_second: Real | None = None
    mean_request_bytes: Real | None = None
    bytes_per_commit: Real | None = None
    bytes_per_row: Real | None = None
    direct_bytes: Count = 0
    mapped_bytes: Count | None = None
    syncs: Count = 0
    estimated: Text | None = None


class FileWrites(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    path: Text | None
    file_class: Text = msgspec.field(name="class")
    bytes: Count | None
    requests: Count
    requested_bytes: Count
    dev: Text
    deleted: bool = False
    direct: bool = False
    dsync: bool = False
    metadata: bool = False
    """Blocks of the file system itself."""


class DeviceWrites(msgspec.Struct, frozen=True, kw_only=True):
    """A file system's device."""

    dev: Text
    name: Text | None
    """None: it has none, as tmpfs."""
    bytes: Count | None
    """Written to the device by everybody, by /proc/diskstats."""
    server_bytes: Count | None
    """Charged to the server for files on it."""
    flushes: Count | None = None


class Unaccounted(msgspec.Struct, frozen=True):
    """Bytes that are in no class, or not as they seem; None: how many is not known."""

    what: Text
    bytes: Count | None
    why: Text


class Amplification(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios; None: unknown."""

    database_bytes: Count | None = None
    """Charged to data, doublewrite and undo."""
    database_requested_bytes: Count = 0
    database_per_row_byte: Real | None = None
    all_per_row_byte: Real | None = None
    all_per_log_byte: Real | None = None
    charged_per_requested: Real | None = None
    doublewrite_factor: Real | None = None
    """Requested bytes of data, doublewrite and undo by those of data and undo."""


class Point(msgspec.Struct, frozen=True):
    """What was written until ``seconds`` since the point before."""

    seconds: Real
    bytes: Annotated[dict[str, Count], Items]


class WritesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of a server went."""

    schema: Text
    seconds: Real
    classes: Annotated[tuple[ClassWrites, ...], Items]
    process_write_bytes: Count | None
    """How much write_bytes of /proc/PID/io grew, of all its processes."""
    time_ns: Moment = 0
    server: Text = ""
    pid: Count = 0
    processes: Count = 1
    family: Text | None = None
    version: Text | None = None
    bytes: Count | None = None
    requested_bytes: Count = 0
    requests: Count = 0
    accounted: Real | None = None
    """``bytes`` by ``process_write_bytes``."""
    charged_why_not: Text | None = None
    process: ProcessIo | None = None
    commits: Real | None = None
    commits_source: Text | None = None
    commits_exact: bool | None = None
    rows: Real | None = None
    rows_source: Text | None = None
    row_bytes: Real | None = None
    row_bytes_source: Text | None = None
    log_bytes: Real | None = None
    amplification: Amplification = Amplification()
    counters: Annotated[dict[str, Real], Items] = {}
    settings: Annotated[dict[str, Text], Items] = {}
    devices: Annotated[tuple[DeviceWrites, ...], Items] = ()
    other_processes_bytes: Count | None = None
    """None: none of them may be read."""
    other_processes_hidden: Count = 0
    unaccounted: Annotated[tuple[Unaccounted, ...], Items] = ()
    files: Annotated[tuple[FileWrites, ...], Items] = ()
    files_left_out: Count = 0
    series: Annotated[tuple[Point, ...], Items] = ()
    lost: Annotated[dict[str, Count], Items] = {}
    notes: Annotated[tuple[Text, ...], Items] = ()


_decoder = msgspec.json.Decoder(WritesReport)


def is_saved(head: bytes) -> bool:
    """Return whether a file that begins so is a saved report."""
    return head.lstrip()[:1] == b"{" and _MARK in head[:_HEAD]


def loads(data: bytes, source: str) -> WritesReport:
    """Read a saved report. Raises: StallscopeError saying what is wrong with it."""
    if len(data) > MAX_BYTES:
        raise StallscopeError(f"{source}: larger than {MAX_BYTES >> 20} MiB, which no report is")
    try:
        report = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StallscopeError(f"{source} is not {SCHEMA}: {one_line(str(error), 200)}") from error
    if report.schema != SCHEMA:
        shown = one_line(report.schema, 40)
        raise StallscopeError(f"{source} is {shown!r}, and this stallscope reads {SCHEMA}")
    return report


def class_bytes(line: StorageLine) -> dict[str, int]:
    """Return the bytes of a line by class: charged where that is known, else requested."""
    found: dict[str, int] = {}
    for file in line.files:
        count = file.requested_bytes if file.charged_bytes is None else file.charged_bytes
        found[file.file_class] = found.get(file.file_class, 0) + count
    return found
