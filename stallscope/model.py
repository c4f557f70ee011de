"""The Capture: the one data type in which collectors, importers, analyzers and reporters meet.

Field by field this is docs/capture-format.md with the indirections resolved: threads hold their
frames, frames hold their module. Frames run from the innermost to the outermost.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = [
    "SCHEMA",
    "SESSIONS",
    "Capture",
    "Frame",
    "Label",
    "Lock",
    "LockKind",
    "Module",
    "Note",
    "Process",
    "Release",
    "Syscall",
    "Thread",
    "Trigger",
]

SCHEMA = "stallscope.capture/1"

SESSIONS = "sessions"
"""Code of a note: what the server's own tables would have added to the capture."""

# gc=False below: nothing that a frame or thread holds can lead back to it, and a capture can have
# hundreds of thousands of them for the garbage collector to look at.


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
    ROW = "row"
    TABLE = "table"
    METADATA = "metadata"
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


class Frame(msgspec.Struct, frozen=True, gc=False):
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
        """Return the name, or module+0xoffset, or the address, or the source line."""
        if self.symbol is not None:
            return self.symbol
        if self.module is not None and self.offset is not None:
            return f"{self.module.path.rsplit('/', 1)[-1]}+{self.offset:#x}"
        if self.pc is not None:
            return f"{self.pc:#x}"
        return self.source or "??"


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
    created: str | None = None
    """``file:line`` that made it, where a server's report says so: it tells which lock it is."""
    mode: str | None = None
    """How it is held, in the words of the report: ``exclusive``, ``wait exclusive``."""
    locked_at: str | None = None
    """``file:line`` that took it last, in the mode that keeps others out."""


class Syscall(msgspec.Struct, frozen=True):
    nr: int
    name: str | None = None
    args: tuple[int, ...] = ()


class Thread(msgspec.Struct, frozen=True, gc=False):
    tid: int
    """0 where the source does not say; a server's report has its ``pthread_t`` instead."""
    frames: tuple[Frame, ...]
    process: int = 0
    ns_tid: int | None = None
    name: str = ""
    state: str = "?"
    on_cpu: bool = False
    label: Label | None = None
    """None for imported dumps, which cannot say."""
    label_reason: str | None = None
    """Why it is raced although it slept: ``live-reads``, ``vfork``, ``exec``, ``exit``."""
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
    waited_ns: int | None = None
    """For how long it has waited or worked, as the source says."""
    connection: int | None = None
    """The server's own number of the connection (``Id`` of the processlist)."""
    command: str | None = None
    """``Command`` of the processlist: ``Query``, ``Sleep``."""
    activity: str | None = None
    """What the server says it does: ``State`` of the processlist."""
    query: str | None = None
    """Its statement, normalized where an agent asked the server: literals are ``?``."""
    digest: str | None = None
    """Of the normalized statement: the same for all that differ in literals only."""
    user: str | None = None
    database: str | None = None
    own: bool | None = None
    """True: this connection asked the server for all this; it was not there before."""


class Release(msgspec.Struct, frozen=True, gc=False):
    """A lock that threads had waited long for was let go: by whom, when, and from where."""

    process: int
    tid: int
    frames: tuple[Frame, ...]
    lock: int | None = None
    """Index into Capture.locks; None: nobody waits for it any more."""
    name: str = ""
    """Of the thread, then."""
    label: Label | None = None
    ago_ns: int = 0
    """Before the capture; of the latest, where it stands for several."""
    waited_ns: int | None = None
    """For how long the longest waiter had waited."""
    count: int = 1
    """For how many with this stack it stands."""


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


class Trigger(msgspec.Struct, frozen=True):
    """The wait for whose sake a capture was taken; times are counted from its threshold on."""

    reason: str
    """``threshold``: it lasted too long; ``convoy``: too many threads waited for the same."""
    kind: str
    """As in stallscope.waits/1."""
    name: str | None = None
    """Of the lock or file."""
    address: int | None = None
    """Of the lock word."""
    pid: int = 0
    tid: int = 0
    length_ms: float | None = None
    """Of the wait so far, when it was learnt of."""
    threshold_ms: float | None = None
    waiters: int = 0
    delay_ms: float | None = None
    """From the threshold until the probe learnt of it."""
    copied_ms: float | None = None
    """Until the stacks of all threads were copied."""
    finished_ms: float | None = None
    """Until the capture was written."""
    suppressed: int = 0
    """Captures since the one before that were not taken, for they come too often."""


class Capture(msgspec.Struct, frozen=True):
    backend: str
    """How it was taken (``bpf``, ``ptrace``, …) or the format it was imported from (``gdb``)."""
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    locks: tuple[Lock, ...] = ()
    releases: tuple[Release, ...] = ()
    """Of the in-process library alone: the latest first."""
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
    trigger: Trigger | None = None
    """None where somebody asked for it."""
    path: str | None = None
    """The file it was read from or written to."""

    def lock_at(self, number: int | None) -> Lock | None:
        """Return the lock of this index, None where there is none."""
        if number is None or not 0 <= number < len(self.locks):
            return None
        return self.locks[number]

    @property
    def missing(self) -> list[Note]:
        """Return what of the process was not read; what SQL did not tell is no part of it."""
        return [note for note in self.notes if note.code != SESSIONS]

    @property
    def partial(self) -> bool:
        """Say whether something of the process was not read."""
        return bool(self.missing)
