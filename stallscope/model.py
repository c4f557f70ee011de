"""The Capture: the one data type in which collectors, importers, analyzers and reporters meet.

Field by field this is docs/capture-format.md with the indirections resolved: threads hold their
frames, frames hold their module. Frames run from the innermost to the outermost.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = [
    "SCHEMA",
    "Capture",
    "Frame",
    "Label",
    "Lock",
    "LockKind",
    "Module",
    "Note",
    "Process",
    "Syscall",
    "Thread",
]

SCHEMA = "stallscope.capture/1"


class Label(enum.StrEnum):
    """How far a stack can be trusted; see docs/capture-format.md."""

    VERIFIED = "verified"
    RACED = "raced"
    RUNNING = "running"
    TRUNCATED = "truncated"


class LockKind(enum.StrEnum):
    MUTEX = "mutex"
    RWLOCK = "rwlock"
    COND = "cond"
    SEM = "sem"
    JOIN = "join"
    INTERNAL = "internal"
    UNKNOWN = "unknown"


class Module(msgspec.Struct, frozen=True):
    process: int
    path: str
    start: int | None = None
    end: int | None = None
    bias: int | None = None
    build_id: str | None = None
    deleted: bool = False
    symbols: str | None = None
    cfi: str | None = None
    debug_file: str | None = None
    error: str | None = None


class Frame(msgspec.Struct, frozen=True):
    """One frame. ``symbol`` is the raw name as the source gave it, None where there is none."""

    symbol: str | None
    module: Module | None = None
    pc: int | None = None
    offset: int | None = None
    symbol_offset: int | None = None
    linkage: str | None = None
    kernel: bool = False
    process: int | None = None
    source: str | None = None
    """``file:line`` where the source named it."""

    def __str__(self) -> str:
        """Return the name, or module+0xoffset, or the bare address."""
        if self.symbol is not None:
            return self.symbol
        if self.module is not None and self.offset is not None:
            return f"{self.module.path.rsplit('/', 1)[-1]}+{self.offset:#x}"
        if self.pc is not None:
            return f"{self.pc:#x}"
        return "??"


class Lock(msgspec.Struct, frozen=True):
    process: int
    address: int
    kind: LockKind
    futex: int | None = None
    owner_tid: int | None = None
    owner_raw: int | None = None
    """The TID in memory, where it is no thread of the process."""
    readers: int | None = None
    waiters: int = 0
    symbol: str | None = None
    stable: bool = True
    source: str = "futex"


class Syscall(msgspec.Struct, frozen=True):
    nr: int
    name: str | None = None
    args: tuple[int, ...] = ()


class Thread(msgspec.Struct, frozen=True):
    tid: int
    """0 where the source does not say."""
    frames: tuple[Frame, ...]
    process: int = 0
    ns_tid: int | None = None
    name: str = ""
    state: str = "?"
    on_cpu: bool = False
    label: Label | None = None
    """None for imported dumps, which cannot say."""
    passes: int = 0
    stopped_ns: int = 0
    switches: int | None = None
    syscall: Syscall | None = None
    kernel_frames: tuple[Frame, ...] = ()
    unwind: str = "complete"
    live_reads: int = 0
    lock: int | None = None
    """Index into Capture.locks of the lock it waits for."""
    count: int = 1
    """Imported aggregates: how many threads this stands for."""


class Process(msgspec.Struct, frozen=True):
    pid: int
    ppid: int = 0
    start_time: int | None = None
    comm: str | None = None
    exe: str | None = None
    exe_deleted: bool = False
    cmdline: tuple[str, ...] = ()
    strings: dict[str, str] = msgspec.field(default_factory=dict)
    threads_lost: int = 0


class Note(msgspec.Struct, frozen=True):
    code: str
    message: str


class Capture(msgspec.Struct, frozen=True):
    backend: str
    """How it was taken (``bpf``, ``ptrace``, …) or the format it was imported from (``gdb``)."""
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    locks: tuple[Lock, ...] = ()
    modules: tuple[Module, ...] = ()
    notes: tuple[Note, ...] = ()
    time_ns: int | None = None
    host: dict[str, str | int] = msgspec.field(default_factory=dict)
    tool: dict[str, str] = msgspec.field(default_factory=dict)
    backend_reason: str | None = None
    snapshot_ns: int | None = None
    elapsed_ns: int | None = None
    stopped_ns: int = 0
    phases: dict[str, int] = msgspec.field(default_factory=dict)
    path: str | None = None
    """The file it was read from or written to."""
