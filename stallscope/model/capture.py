"""The Capture: the one data type that collectors, importers, analyzers and reporters share. Its
fields are those of docs/capture-format.md with resolved references: threads hold their frames,
frames hold their module. Frames run from the innermost to the outermost.

This is the one declaration of those fields in Python: files are decoded into these types
(capturefile.py, captureformat.py), with the limits of their annotations. What the probe writes is
declared in pmp/capture/fields.h; tests/unit/test_captureformat.py compares both with the docs.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from stallscope.model.reading import Reading

__all__ = [
    "ADDED",
    "MEMORY",
    "OF_TABLES",
    "OPTIONAL",
    "SCHEMA",
    "SCHEMAS",
    "SCHEMA_WITH_SAME_NAMES",
    "SESSIONS",
    "Address",
    "BurstEnd",
    "Capture",
    "File",
    "Frame",
    "FrameModule",
    "Index",
    "Label",
    "Lock",
    "LockKind",
    "Module",
    "Note",
    "Process",
    "Reading",
    "Release",
    "Sample",
    "Stack",
    "Syscall",
    "Thread",
    "Trigger",
]

SCHEMA = "stallscope.capture/1"
SCHEMA_WITH_SAME_NAMES = "stallscope.capture/2"
"""Of a file in which frames refer to an earlier one for their names."""
SCHEMAS = (SCHEMA, SCHEMA_WITH_SAME_NAMES)

SESSIONS = "sessions"
"""Code of notes about missing data of the server's own tables."""

MEMORY = "memory"
"""The source of a lock: the server's own structures, read with the stacks."""

OPTIONAL = msgspec.Meta(extra={"written": "optional"})
"""Mark of a field: a file omits it where it has its default."""
ADDED = msgspec.Meta(extra={"written": "added"})
"""Mark of an optional field: importers and sessions write it, the probe never does."""
HEAD = msgspec.Meta(extra={"record": "capture"})
"""Mark of a field of Capture: it is in the first record of a file."""
END = msgspec.Meta(extra={"record": "end"})
"""Mark of a field of Capture: it is in the last record of a file."""
HEAD_OPTIONAL = msgspec.Meta(extra={"record": "capture", "written": "optional"})
END_OPTIONAL = msgspec.Meta(extra={"record": "end", "written": "optional"})
END_ADDED = msgspec.Meta(extra={"record": "end", "written": "added"})

Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Tid: TypeAlias = Index  # a report of the server has pthread_t instead of a TID
Pid = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]

if TYPE_CHECKING:
    Address: TypeAlias = int
    Stack: TypeAlias = "tuple[Frame, ...]"
    FrameModule: TypeAlias = "Module | None"
else:

    class _Resolved(type):
        """Mark of a type for which a file has another value: msgspec calls the reader to convert
        it."""

        def __instancecheck__(cls, value: object) -> bool:
            return True  # about the value that the reader's dec_hook returned

    class Address(metaclass=_Resolved):
        """An int; in files ``"0x7f00"``."""

    class Stack(metaclass=_Resolved):
        """Frames from the innermost to the outermost; in files the id of a stack, or null."""

    class FrameModule(metaclass=_Resolved):
        """A Module or None; in files its id, or null."""


# gc=False below: frames and threads are in no reference cycle, and a capture can have
# hundreds of thousands of them for the garbage collector to scan.


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
    AUTO_INC = "auto-inc"
    TABLE = "table"
    METADATA = "metadata"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> LockKind:
        return cls.UNKNOWN  # of a later version


OF_TABLES = frozenset({LockKind.ROW, LockKind.AUTO_INC, LockKind.TABLE, LockKind.METADATA})
"""Kinds that a server keeps for its tables: waiters sleep on something else."""


class Module(msgspec.Struct, frozen=True):
    process: Index
    path: str
    start: Address | None = None
    end: Address | None = None
    bias: Address | None = None
    build_id: str | None = None
    deleted: bool = False
    symbols: str | None = None
    cfi: str | None = None
    debug_file: str | None = None
    error: str | None = None


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame. ``symbol`` is the raw name as the source gave it, None where there is none."""

    symbol: str | None = None
    module: FrameModule = None
    pc: Address | None = None
    offset: Address | None = None
    symbol_offset: Index | None = None
    linkage: str | None = None
    kernel: Annotated[bool, OPTIONAL] = False
    process: Index | None = None
    source: Annotated[str | None, ADDED] = None
    """``file:line`` where the source named it."""

    def __str__(self) -> str:
        """Return the name, else module+0xoffset, else the address, else the source line."""
        if self.symbol is not None:
            return self.symbol
        if self.module is not None and self.offset is not None:
            return f"{self.module.path.rsplit('/', 1)[-1]}+{self.offset:#x}"
        if self.pc is not None:
            return f"{self.pc:#x}"
        return self.source or "??"


class Lock(msgspec.Struct, frozen=True):
    process: Index
    address: Address
    kind: LockKind
    futex: Address | None = None
    owner_tid: Tid | None = None
    owner_raw: Annotated[Index | None, OPTIONAL] = None
    """The owner's TID in the lock word, where the process has no such thread."""
    readers: Index | None = None
    waiters: Index = 0
    symbol: str | None = None
    stable: bool = True
    source: str = "futex"
    created: Annotated[str | None, OPTIONAL] = None
    """``file:line`` that created it, from a server's report or its memory: it identifies the
    lock."""
    mode: Annotated[str | None, OPTIONAL] = None
    """How it is held: ``exclusive``, ``wait exclusive``, ``SX``, ``for I/O``; of
    PostgreSQL the mode that is waited for."""
    locked_at: Annotated[str | None, ADDED] = None
    """``file:line`` that last took it in exclusive mode."""


class Syscall(msgspec.Struct, frozen=True):
    nr: int
    name: str | None = None
    args: tuple[Address, ...] = ()


class File(msgspec.Struct, frozen=True):
    """The file in whose system call a thread is blocked, and where it is."""

    path: str
    """As the process sees it."""
    mount: str | None = None
    """Its mount point on the host of the capture."""
    device: str | None = None
    type: str | None = None
    """Of the file system: ``ext4``."""


class Thread(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"frames": "stack", "kernel_frames": "kernel_stack"},
):
    tid: Tid
    """0 where the source does not say; a server's report has its ``pthread_t`` instead."""
    frames: Stack = ()
    process: Index = 0
    ns_tid: Annotated[Pid | None, OPTIONAL] = None
    name: str = ""
    state: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = "?"
    on_cpu: bool = False
    label: Label | None = None
    """None for imported dumps."""
    label_reason: Annotated[str | None, OPTIONAL] = None
    """Why it is raced although it slept: ``live-reads``, ``vfork``, ``exec``, ``exit``."""
    passes: Index = 0
    stopped_ns: Index = 0
    switches: Index | None = None
    syscall: Syscall | None = None
    file: Annotated[File | None, OPTIONAL] = None
    """Where it is in state D in a call of this file."""
    kernel_frames: Stack = ()
    unwind: str = "complete"
    live_reads: Annotated[Index, OPTIONAL] = 0
    lock: Index | None = None
    """Index into Capture.locks of the lock it waits for."""
    count: Annotated[Count, ADDED] = 1
    """Imported aggregates: how many threads this represents."""
    waited_ns: Annotated[Index | None, OPTIONAL] = None
    """For how long it has waited or run, according to the source."""
    connection: Annotated[Index | None, ADDED] = None
    """The server's own number of the connection (``Id`` of the processlist)."""
    command: Annotated[str | None, ADDED] = None
    """``Command`` of the processlist: ``Query``, ``Sleep``."""
    activity: Annotated[str | None, ADDED] = None
    """What it does according to the server: ``State`` of the processlist."""
    query: Annotated[str | None, ADDED] = None
    """Its statement, normalized where it was read over SQL: literals are ``?``."""
    digest: Annotated[str | None, ADDED] = None
    """Digest of the normalized statement: equal for statements that differ in literals only."""
    user: Annotated[str | None, ADDED] = None
    database: Annotated[str | None, ADDED] = None
    host: Annotated[str | None, ADDED] = None
    """Where its client is: an address or a name, without the port."""
    transaction: Annotated[bool | None, ADDED] = None
    """Whether its connection has an open transaction; None: the server did not say."""
    transaction_id: Annotated[Index | None, ADDED] = None
    """InnoDB's id of it, where it has one of its own."""
    own: Annotated[bool, OPTIONAL] = False
    """It serves a connection of stallscope itself."""
    age_ns: Annotated[Index | None, ADDED] = None
    """Since its statement began, or its last one, where it is idle."""
    transaction_ns: Annotated[Index | None, ADDED] = None
    """Since its transaction began."""
    autocommit: Annotated[bool | None, ADDED] = None
    """Whether its transaction ends with its statement, as the server says; None: not known."""
    source: Annotated[str | None, ADDED] = None
    """Where connection and statement come from: ``memory`` is the server's memory; None: SQL, or
    the imported file."""

    @property
    def rests(self) -> bool:
        """Whether its connection runs no statement, according to the server."""
        if self.command == "client backend":  # of PostgreSQL
            return (self.activity or "").startswith("idle")
        return self.command == "Sleep"


class Release(msgspec.Struct, frozen=True, gc=False, rename={"frames": "stack"}):
    """The release of a lock that threads had waited long for: by whom, when, and from where."""

    process: Index
    tid: Tid
    frames: Stack = ()
    lock: Index | None = None
    """Index into Capture.locks; None: no thread waits for it any more."""
    name: str = ""
    """Name of the thread at that time."""
    label: Label | None = None
    ago_ns: Index = 0
    """Time before the capture; of the latest release, where it represents several."""
    waited_ns: Index | None = None
    """For how long the longest waiter had waited."""
    count: Annotated[Count, OPTIONAL] = 1
    """How many releases with this stack it represents."""


class Sample(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"frames": "stack", "kernel_frames": "kernel_stack"},
):
    """What a thread ran at some moments since the capture before."""

    process: Index
    tid: Tid
    name: str = ""
    frames: Stack = ()
    kernel_frames: Stack = ()
    label: Label | None = None
    count: Annotated[Count, OPTIONAL] = 1
    """At how many moments in a row it had this stack."""


class BurstEnd(msgspec.Struct, frozen=True):
    """The last record of a burst."""

    wanted: Index
    """Captures that were to be taken."""
    taken: Index
    failed: Index = 0
    ended: str | None = None
    """Why there are fewer; None: all were taken."""


FROZEN = "cgroup_frozen"
"""A key of ``Process.strings``: ``1`` where its control group (version 2) was frozen."""


class Process(msgspec.Struct, frozen=True):
    pid: Pid
    ppid: Pid = 0
    start_time: Index | None = None
    comm: str | None = None
    exe: str | None = None
    exe_deleted: bool = False
    cmdline: tuple[str, ...] = ()
    strings: dict[str, str] = msgspec.field(default_factory=dict)
    threads_lost: Index = 0


class Note(msgspec.Struct, frozen=True):
    code: str
    message: str


class Trigger(msgspec.Struct, frozen=True):
    """The wait that triggered a capture; times are counted from its threshold."""

    reason: str
    """``threshold``: it was too long; ``convoy``: too many threads waited for the same lock."""
    kind: str
    """As in stallscope.waits/1."""
    name: str | None = None
    """Name of the lock or file."""
    address: Address | None = None
    """Address of the lock word."""
    pid: Pid = 0
    tid: Pid = 0
    length_ms: Milliseconds | None = None
    """How long the wait had lasted when the probe learned of it."""
    threshold_ms: Milliseconds | None = None
    waiters: Index = 0
    delay_ms: Milliseconds | None = None
    """From the threshold until the probe learned of the wait."""
    copied_ms: Milliseconds | None = None
    """From the threshold until the stacks of all threads were copied."""
    finished_ms: Milliseconds | None = None
    """From the threshold until the capture was written."""
    suppressed: Index = 0
    """Captures since the previous one that were not taken, to limit their rate."""


class Capture(msgspec.Struct, frozen=True):
    backend: Annotated[str, HEAD]
    """How it was taken (``bpf``, ``ptrace``, …) or the format it was imported from (``gdb``)."""
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    locks: tuple[Lock, ...] = ()
    releases: tuple[Release, ...] = ()
    """Of the in-process library only: the latest first."""
    modules: tuple[Module, ...] = ()
    notes: tuple[Note, ...] = ()
    time_ns: Annotated[Index | None, HEAD] = None
    host: Annotated[dict[str, str | int], HEAD] = msgspec.field(default_factory=dict)
    tool: Annotated[dict[str, str], HEAD] = msgspec.field(default_factory=dict)
    backend_reason: Annotated[str | None, HEAD] = None
    snapshot_ns: Annotated[Index | None, HEAD] = None
    elapsed_ns: Annotated[Index | None, END] = None
    stopped_ns: Annotated[Index, END] = 0
    phases: Annotated[dict[str, Index], END] = msgspec.field(default_factory=dict)
    trigger: Trigger | None = None
    """None where a user requested it."""
    moment: Annotated[Index, HEAD_OPTIONAL] = 0
    """Its number in a burst; of a later capture of one, the fields below are about the time since
    the capture before."""
    samples: tuple[Sample, ...] = ()
    """What ran since."""
    unchanged: Annotated[Index, END_OPTIONAL] = 0
    """Threads that did not run since: they are the same objects in both captures."""
    ended: Annotated[tuple[Index, ...], END_OPTIONAL] = ()
    """TIDs of threads that ended since."""
    sample_period_ns: Annotated[Index, END_OPTIONAL] = 0
    """Between two samples of a CPU; 0: what ran was not sampled."""
    sample_window_ns: Annotated[Index, END_OPTIONAL] = 0
    sample_cpus: Annotated[Index, END_OPTIONAL] = 0
    samples_lost: Annotated[Index, END_OPTIONAL] = 0
    reading: Annotated[Reading | None, END_ADDED] = None
    """What became of the lines of the file; None: it was not imported."""
    later: tuple[Capture, ...] = ()
    """The later captures of the burst that this is the first capture of."""
    burst: BurstEnd | None = None
    """How the burst ended; None: it is no burst."""
    path: str | None = None
    """The file it was read from or written to."""

    def lock_at(self, number: int | None) -> Lock | None:
        """Return the lock of this index, None where there is none."""
        if number is None or not 0 <= number < len(self.locks):
            return None
        return self.locks[number]

    @property
    def moments(self) -> tuple[Capture, ...]:
        """Return all captures of the burst, or this one alone."""
        return (self, *self.later)

    @property
    def missing(self) -> list[Note]:
        """Return notes about parts of the process that were not read; notes about SQL do not
        count."""
        return [note for note in self.notes if note.code != SESSIONS]

    @property
    def partial(self) -> bool:
        """Return whether a part of the process was not read."""
        return bool(self.missing)
