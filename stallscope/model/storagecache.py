# SPDX-License-Identifier: Apache-2.0
"""What the page cache holds of a server's files, as ``stallscope-probe cache`` prints it."""

from __future__ import annotations

import re

import msgspec

from stallscope.base import quantities
from stallscope.base.errors import StallscopeError

__all__ = [
    "CLASSES",
    "MAY_GO",
    "SCHEMA",
    "UNCACHEABLE",
    "CacheError",
    "CacheLine",
    "CachedFile",
    "Folder",
    "Keep",
    "LogFiles",
    "ProcessMemory",
    "Reads",
    "Uncached",
    "loads",
    "parse_keep",
]

SCHEMA = "stallscope.probe-cache/1"
CLASSES = ("redo", "doublewrite", "data", "undo", "binlog", "relay", "temporary", "other")
"""In the order in which they are shown."""
UNCACHEABLE = ("binlog", "relay", "redo")
"""Classes of which old files may be dropped from the cache."""
MAY_GO = "may-go"
"""The reason of a file that may leave the cache."""


class CacheError(StallscopeError):
    """The probe's line is not understood."""


class Uncached(msgspec.Struct, frozen=True):
    """Whether a file may leave the cache. Numbers are bytes, in whole pages."""

    reason: str
    """``may-go``, or why not: docs/commands/storage-cache.md has all of them."""
    clean_bytes: int = 0
    """Cached, in ranges without a dirty page: these can go."""
    unclean_bytes: int = 0
    """Cached, in ranges with pages that are dirty or being written."""
    freed_bytes: int | None = None
    """What left the cache; None: nothing was tried."""
    returned_bytes: int | None = None
    """What was cached again at the end of the time that was watched; None: not watched."""


class CachedFile(msgspec.Struct, frozen=True):
    """One file. Its path is the server's, and untrusted."""

    path: str
    kind: str = msgspec.field(name="class")
    size: int
    allocated_bytes: int
    """On the disk."""
    cached_bytes: int | None
    """In whole pages; None: not known, ``error`` says why."""
    dirty_bytes: int | None
    """None also where the kernel does not say."""
    writeback_bytes: int | None
    evicted_bytes: int | None
    recently_evicted_bytes: int | None
    readers: int
    """Descriptors of the server that only read."""
    writers: int
    deleted: bool
    filesystem: str
    memory: bool
    """The file system keeps its files in memory: they cannot leave it."""
    method: str
    error: str | None = None
    uncache: Uncached | None = None

    @property
    def is_open(self) -> bool:
        return self.readers + self.writers > 0


class ProcessMemory(msgspec.Struct, frozen=True):
    """Bytes of one process, of /proc/PID/status; None: not known."""

    pid: int
    rss_bytes: int | None
    anonymous_bytes: int | None
    mapped_file_bytes: int | None
    shared_memory_bytes: int | None
    swap_bytes: int | None


class Folder(msgspec.Struct, frozen=True):
    """A folder whose files were read."""

    path: str
    all: bool
    """All files in it and below; else those of a known class."""


class Reads(msgspec.Struct, frozen=True):
    """What the server read from disks in two times of the same length; None: not known."""

    elapsed_ms: float
    before_bytes: int | None = None
    after_bytes: int | None = None


class CacheLine(msgspec.Struct, frozen=True):
    """The probe's whole answer."""

    schema: str
    method: str
    """``cachestat``, or ``mincore``: then only ``cached_bytes`` is known."""
    page_bytes: int
    elapsed_ms: float
    limit_reached: bool
    late: bool
    special_files: int
    """FIFOs, sockets and devices in the folders: none was opened."""
    unreadable: int
    long_paths: int
    processes: tuple[ProcessMemory, ...]
    folders: tuple[Folder, ...]
    notes: tuple[str, ...]
    dropped: bool
    reads: Reads | None
    files: tuple[CachedFile, ...]


class Keep(msgspec.Struct, frozen=True):
    """What stays cached of each series of logs, from its newest file on, which counts."""

    unit: str
    """``files``, ``bytes`` or ``seconds``."""
    value: int


class LogFiles(msgspec.Struct, frozen=True):
    """Where a server keeps its files, as it says itself. Paths are its own, and absolute."""

    datadir: str | None = None
    folders: tuple[str, ...] = ()
    """Others that it keeps files in."""
    indexes: tuple[str, ...] = ()
    """Files that list its binary logs and relay logs."""
    dump_threads: int | None = None
    """Connections that send binary logs; None: this account does not see them."""
    buffer_pool_bytes: int | None = None


_SIZE = re.compile(r"[0-9.]+ ?(?:[KMGT](?:i?B)?|B)", re.ASCII)
_DURATION = re.compile(r"[0-9.]+ ?(?:s|sec|min|m|h|d|w)", re.ASCII)


def parse_keep(text: str) -> Keep:
    """Return what ``2`` (files), ``500M`` or ``10min`` keeps: units of sizes are in upper case,
    those of times in lower case. Raises: ValueError, with what is expected."""
    word = text.strip()
    try:
        if word.isascii() and word.isdigit() and len(word) < 10:
            return Keep("files", int(word))
        if _SIZE.fullmatch(word):
            return Keep("bytes", quantities.size(word))
        if _DURATION.fullmatch(word):
            return Keep("seconds", round(quantities.duration(word)))
    except ValueError:
        pass
    raise ValueError(
        f"{text[:40]!r} is no number of files (2), size (500M, 2G: upper case) or time (30s, 10min)"
    )


_decoder = msgspec.json.Decoder(CacheLine)


def loads(data: bytes) -> CacheLine:
    """Read the probe's line. Raises: CacheError."""
    try:
        line = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CacheError(f"stallscope-probe cache: not understood: {error}") from error
    if line.schema != SCHEMA:
        raise CacheError(f"stallscope-probe cache: {SCHEMA} is expected, not {line.schema[:60]!r}")
    return line
