# SPDX-License-Identifier: Apache-2.0
"""Where the memory of a server grows: the lines of ``stallscope-probe growth``, and the result of
``stallscope memory`` and of imported heap dumps (``stallscope.memory/1``). Sizes are bytes. Frames
run from the innermost to the outermost.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stallscope.base.errors import StallscopeError

__all__ = [
    "GROWTH",
    "MAX_BYTES",
    "SCHEMA",
    "Growth",
    "GrowthStack",
    "Held",
    "Malloc",
    "MemoryReport",
    "MemoryStack",
    "MemoryThread",
    "Program",
    "ThreadName",
    "Toucher",
    "decode_growth",
    "decode_report",
    "encode",
    "is_report",
]

SCHEMA: Literal["stallscope.memory/1"] = "stallscope.memory/1"
GROWTH = "stallscope.growth/1"
MAX_BYTES = 256 << 20
"""The most bytes of a report, and of a line of the probe."""

Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Change = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class Held(msgspec.Struct, frozen=True):
    """What a process holds, summed over ``/proc/PID/smaps``."""

    rss: Bytes = 0
    anonymous: Bytes = 0
    swap: Bytes = 0
    huge: Bytes = 0
    """Part of ``anonymous`` in transparent huge pages."""
    hugetlb: Bytes = 0
    mapped: Bytes = 0
    """Mapped for itself alone and writable, touched or not."""
    mappings: Number = 0

    @property
    def own(self) -> int:
        """Return what belongs to the process: in memory, swapped out, or in huge pages."""
        return self.anonymous + self.swap + self.hugetlb


class Program(msgspec.Struct, frozen=True):
    """A tracepoint, and why it is not used."""

    name: str
    works: bool
    reason: str | None = None


class GrowthStack(msgspec.Struct, frozen=True):
    id: int
    frames: tuple[str, ...]


class Toucher(msgspec.Struct, frozen=True):
    """A stack of a thread that touched pages."""

    stack: int
    """``GrowthStack.id``; 0: not known."""
    tid: int
    kind: Literal["touch", "call", "populate"]
    """By the thread itself; by a system call; without a fault (direct I/O, mlock)."""
    faults: Number
    bytes: Bytes
    """Memory of its own that is there at the end, and was not at the start."""
    on_stack: bool = False
    hugetlb_bytes: Bytes = 0
    file_pages: Number = 0
    shared_pages: Number = 0
    gone_pages: Number = 0


class ThreadName(msgspec.Struct, frozen=True):
    tid: int
    name: str


class Malloc(msgspec.Struct, frozen=True, omit_defaults=True):
    """What glibc's malloc holds free; ``unknown`` says why that is not known."""

    unknown: str | None = None
    arenas: Number | None = None
    system_bytes: Bytes | None = None
    """Taken from the kernel."""
    free_bytes: Bytes | None = None
    """In free chunks between used ones."""
    top_bytes: Bytes | None = None
    """At the ends of the arenas."""
    partial: bool = False
    """``free_bytes`` is a lower limit."""


class Growth(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    """The last line of the probe."""

    pid: int
    seconds: float
    before: Held
    after: Held | None
    """None: the process has ended."""
    comm: str = ""
    exe: str | None = None
    ended: bool = False
    sampled: bool = False
    """Not every fault has a record: sums are estimates."""
    cut: bool = False
    """The process has more memory or mappings than are compared."""
    added_bytes: Bytes = 0
    freed_bytes: Bytes = 0
    seen_bytes: Bytes = 0
    populated_bytes: Bytes = 0
    malloc: Malloc | None = None
    faults: dict[str, int] = {}
    lost: dict[str, int] = {}
    programs: tuple[Program, ...] = ()
    stacks: tuple[GrowthStack, ...] = ()
    touchers: tuple[Toucher, ...] = ()
    threads: tuple[ThreadName, ...] = ()


class MemoryStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stack, and the memory that it made grow."""

    bytes: Change
    frames: tuple[str, ...]
    place: tuple[str, ...] = ()
    """Its frames without those that only allocate or copy."""
    threads: Number = 0
    faults: Number = 0
    allocations: Number = 0
    """Heap dumps."""
    kind: str = ""
    """``touch``, ``call``, ``populate``, ``stack`` (of the thread), ``hugetlb``."""


class MemoryThread(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thread that made memory grow, and its connection at the end, where that is known."""

    tid: int
    bytes: Bytes
    name: str = ""
    connection: int | None = None
    user: str | None = None
    host: str | None = None
    database: str | None = None
    query: str | None = None
    place: tuple[str, ...] = ()
    """Of its largest stack."""


class MemoryReport(msgspec.Struct, frozen=True):
    """The result."""

    schema: Literal["stallscope.memory/1"]
    source: Literal["live", "jemalloc", "heaptrack"]
    growth_bytes: Change | None
    """Of a process: from start to end. Of a heap dump: what is allocated. None: not known."""
    attributed_share: float | None
    """Part of what was added that has a stack; None: nothing was added, or it is not known."""
    stacks: tuple[MemoryStack, ...]
    path: str | None = None
    pid: int | None = None
    exe: str | None = None
    server: str | None = None
    seconds: float | None = None
    before: Held | None = None
    after: Held | None = None
    added_bytes: Bytes | None = None
    freed_bytes: Bytes | None = None
    attributed_bytes: Bytes | None = None
    estimated: bool = False
    heaviest: tuple[str, ...] = ()
    """The functions that hold at least half of it, from the outermost."""
    heaviest_bytes: Bytes = 0
    threads: tuple[MemoryThread, ...] = ()
    thread_stack_bytes: Bytes | None = None
    connections: Number | None = None
    bytes_per_connection: float | None = None
    connection_bytes: Bytes | None = None
    file_faults: Number | None = None
    shared_faults: Number | None = None
    malloc: Malloc | None = None
    faults: dict[str, int] = {}
    lost: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    complete: bool = True


def decode_growth(line: bytes) -> Growth | None:
    """Return the probe's last line; None for another line. Raises: StallscopeError."""
    try:
        kind = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).get("type")
        if kind is None or bytes(kind) != b'"end"':
            return None
        return msgspec.json.decode(line, type=Growth)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StallscopeError(f"stallscope-probe growth: invalid line: {error}") from error


def is_report(head: bytes) -> bool:
    """Return whether data begins like a saved report."""
    return head.lstrip()[:80].replace(b" ", b"").startswith(b'{"schema":"stallscope.memory/')


def decode_report(data: bytes, name: str) -> MemoryReport:
    """Return a saved report. Raises: StallscopeError."""
    try:
        return msgspec.json.decode(data, type=MemoryReport)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StallscopeError(f"{name}: not a valid memory report: {error}") from error


def encode(report: MemoryReport) -> bytes:
    """Return it as one line."""
    return msgspec.json.encode(report) + b"\n"
