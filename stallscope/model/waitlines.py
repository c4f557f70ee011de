# SPDX-License-Identifier: Apache-2.0
"""Lines of ``stallscope.waits/1``, field by field in docs/waits-schema.md."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stallscope.base.times import Moment
from stallscope.model import captureformat
from stallscope.model.capture import Trigger
from stallscope.model.probelines import decode_line

__all__ = [
    "MAX_LINE",
    "ROW_LOCK_FUNCTIONS",
    "SCHEMA",
    "Buckets",
    "ClassWaits",
    "Event",
    "Hits",
    "HolderStack",
    "Key",
    "KindWaits",
    "Notice",
    "ProgramState",
    "Rest",
    "Target",
    "ThreadRow",
    "ThreadSample",
    "WaitLine",
    "WaiterStack",
    "Waits",
    "Waker",
    "loads",
]

SCHEMA = "stallscope.waits/1"
_TYPE = "waits"

ROW_LOCK_FUNCTIONS = ("srv_suspend_mysql_thread", "lock_wait_suspend_thread", "lock_wait")
"""Groups of functions of the servers: without a symbol of one, a row wait cannot be distinguished
from idling."""

MAX_LINE = 64 << 20
"""The most bytes of a line; the largest of a probe, with thousands of keys, is far smaller."""

_MAX_MS = 1e15  # thirty thousand years

Count = Annotated[int, msgspec.Meta(ge=0)]
Threads = Annotated[int, msgspec.Meta(ge=0, le=1 << 22)]
"""Linux has no more."""
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=_MAX_MS)]
Buckets = tuple[tuple[Count, Count, Count], ...]
"""(from ns, to ns, count): to ns is inclusive."""


class Target(msgspec.Struct, frozen=True):
    """A process that is or was watched."""

    pid: int
    comm: str | None = None
    exe: str | None = None


class Waits(msgspec.Struct, frozen=True):
    """Waits that are counted together in an interval."""

    count: Count
    total_ms: Milliseconds
    max_ms: Milliseconds
    over: Count = 0
    """Longer than their threshold."""
    bytes: Count | None = None
    histogram: Buckets = ()


class KindWaits(Waits, frozen=True, kw_only=True):
    """All waits of one kind."""

    threshold_ms: Milliseconds | None = None
    in_flight: Count = 0


class ClassWaits(Waits, frozen=True, kw_only=True):
    """All waits of one kind for files of one class."""

    kind: str
    file_class: str = msgspec.field(name="class")


class WaiterStack(msgspec.Struct, frozen=True):
    """A stack of waits over the threshold; ``tid`` is the latest of its threads.

    Frames: innermost first.
    """

    count: Count
    frames: tuple[str, ...] = ()
    total_ms: Milliseconds = 0.0
    label: str | None = None
    tid: int | None = None
    comm: str | None = None


class HolderStack(msgspec.Struct, frozen=True):
    """A stack in which threads woke a long waiter; ``tid`` is the latest of them."""

    count: Count
    frames: tuple[str, ...] = ()
    tid: int | None = None
    comm: str | None = None
    label: str | None = None


class Key(Waits, frozen=True, kw_only=True):
    """All waits for one lock or file."""

    kind: str
    name: str
    address: str | None = None
    file_class: str | None = msgspec.field(name="class", default=None)
    pid: int | None = None
    in_flight: Count = 0
    longest_in_flight_ms: Milliseconds = 0.0
    owner_tid: int | None = None
    waiters: tuple[WaiterStack, ...] = ()
    holders: tuple[HolderStack, ...] = ()

    @property
    def longest_ms(self) -> float:
        """The longest wait, in flight or ended since the line before."""
        return max(self.max_ms, self.longest_in_flight_ms)


class Waker(msgspec.Struct, frozen=True):
    """The thread that ended a wait, and its stack at that time."""

    tid: int
    frames: tuple[str, ...] = ()


class Event(msgspec.Struct, frozen=True):
    """One wait over its threshold, as it was reported."""

    kind: str
    name: str | None = None
    in_flight: bool = False
    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    start_ns: Count | None = None
    """CLOCK_MONOTONIC."""
    length_ms: Milliseconds = 0.0
    """The length so far, where in flight."""
    received_ns: Count | None = None
    """Time at which the probe received it."""
    threshold_ms: Milliseconds | None = None
    waiters: Count = 0
    address: str | None = None
    owner_tid: int | None = None
    waker: Waker | None = None
    frames: tuple[str, ...] = ()
    label: str | None = None


class ProgramState(msgspec.Struct, frozen=True):
    """One wait program, and what is lost where it does not work on this host."""

    name: str
    ok: bool
    attach: str | None = None
    why_not: str | None = None


class Rest(msgspec.Struct, frozen=True):
    """A source that rests: it attaches nothing until a wait is long."""

    resting: bool
    """Now: nothing is attached."""
    interval_ms: Milliseconds | None = None
    """Between two polls of the threads."""
    threads: Threads = 0
    """In the latest poll."""
    arms: Count = 0
    """How often it attached the wait programs since the start."""
    refused: Count = 0
    """How often it could not."""
    why: str | None = None
    """Why it could not the last time."""


class ThreadRow(msgspec.Struct, frozen=True):
    """Threads that do the same at one moment."""

    count: Threads
    state: str | None = None
    """As in /proc; None: the rest of a sample, of which nothing else is known."""
    call: str | None = None
    """The system call; None: in user mode, or not known."""
    kind: str | None = None
    """The kind of wait; None: the call is none."""
    name: str | None = None
    """Of the lock, or the class of the file."""
    channel: str | None = None
    """The innermost function of the kernel that is not of the scheduler."""


class ThreadSample(msgspec.Struct, frozen=True):
    """What all threads did at one moment."""

    time_ns: Moment
    threads: Threads
    rows: tuple[ThreadRow, ...] = ()


class Hits(msgspec.Struct, frozen=True):
    """Calls of a function of the server that has a uprobe."""

    count: Count
    event: bool = False
    """The call is not a wait: it reports a deadlock."""


class WaitLine(msgspec.Struct, frozen=True):
    """The waits of one interval, or of the whole run where ``final``."""

    schema: str
    ts: float
    seconds: Annotated[float, msgspec.Meta(ge=0, le=_MAX_MS)]
    kinds: dict[str, KindWaits]
    keys: tuple[Key, ...]
    lost: dict[str, Count]
    targets: tuple[Target, ...] = ()
    source: str | None = None
    """``bpf``; ``inproc`` for the in-process library; ``poll`` where /proc is read."""
    in_flight_by: str = "timer"
    sampled: bool = False
    """Threads are polled: short waits are not seen."""
    interval_ns: Count | None = None
    """Where sampled: the polling interval."""
    longest_interval_ns: Count | None = None
    """The longest one: lengths are exact to within that."""
    classes: tuple[ClassWaits, ...] | None = None
    """None: classes are not known."""
    events: tuple[Event, ...] = ()
    server: dict[str, Hits] = msgspec.field(default_factory=dict)
    programs: tuple[ProgramState, ...] = ()
    call_added_ns: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """What attached wait programs add to each system call of the host; None: not measured."""
    rest: Rest | None = None
    """None: it was not asked to rest, or cannot."""
    history: tuple[ThreadSample, ...] = ()
    """The samples of threads since the line before, oldest first."""
    final: bool = False


class Notice(msgspec.Struct, frozen=True):
    """Other lines of the probe: ready, captured, ended, error, ..."""

    type: str
    pid: int | None = None
    message: str | None = None
    path: str | None = None
    """Path of the capture."""
    partial: bool = False
    trigger: Trigger | None = None
    """The wait for which the probe took a capture, or could not take it."""
    tid: int | None = None
    """A thread that is ignored from now on, or no longer: its number in its own pid namespace."""


class _Head(msgspec.Struct, frozen=True):
    type: str = _TYPE


_head_decoder = msgspec.json.Decoder(_Head)
# A line refers to addresses only.
_notice_decoder = msgspec.json.Decoder(
    Notice, dec_hook=lambda _, value: captureformat.address(value)
)
_decoder = msgspec.json.Decoder(WaitLine)


def _decode(data: bytes) -> WaitLine | Notice:
    if _head_decoder.decode(data).type != _TYPE:
        return _notice_decoder.decode(data)
    return _decoder.decode(data)


def loads(data: bytes, source: str, number: int) -> WaitLine | Notice:
    """Read one line. ``source`` and ``number`` (from 1) name it in the error.

    Raises: StallscopeError saying what is wrong with it.
    """
    return decode_line(_decode, data, f"{source}: line {number}", SCHEMA, MAX_LINE)
