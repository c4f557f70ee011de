# SPDX-License-Identifier: Apache-2.0
"""How a thread waits, by its innermost frames, and whether it is idle, running or waiting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.analyzers.catalog import Catalog, WaitKind
from stallscope.model.capture import Thread

__all__ = [
    "DISK",
    "IDLE",
    "INCOMPLETE",
    "MOST_STRANGE",
    "RUNNING",
    "UNSEEN",
    "WAITING",
    "WHOLE",
    "WORKS",
    "Wait",
    "find",
    "kernel_worker",
    "skip_strange",
    "skip_unnamed",
    "state",
    "syscall_wait",
    "unseen",
]

IO_WORKERS = frozenset({"io_wq_worker", "io_sq_thread"})
IDLE = "idle"
RUNNING = "running"
WAITING = "waiting"
INCOMPLETE = "incomplete"
"""Frames of its stack were lost, and those that are left show no wait for what others hold."""
UNSEEN = "unseen"
"""Of the in-process library: it sleeps in a call that the agent does not watch, as poll and read.
An
idle connection does, and so does a thread that waits for what the server built itself."""

WHOLE = frozenset({IDLE, UNSEEN})
"""A dump with such threads is one of a whole server: nobody has chosen what it shows."""
LOST = "lost"
"""How the unwinding of a thread ended, of which a dump lost frames."""

DISK = frozenset({"read", "write", "sync", "allocate"})
"""Kinds of wait that end when a device has done its work."""

WORKS = DISK | {"io", "net"}
"""Kinds of wait in which a runnable thread does its own work: the kernel copies its data."""

RESTS = frozenset({"Sleep", "Daemon", "Binlog Dump", "Binlog Dump GTID", "Delayed insert"})
"""Commands of the processlist whose threads wait to be given something to do."""

RESTING = (
    "waiting on empty queue",
    "waiting for next activation",
    "waiting for source to send event",
    "waiting for master to send event",
    "waiting for an event from coordinator",
    "waiting for work from sql thread",
    "waiting for more updates",
    "waiting for the slave i/o thread to update it",
    "waiting for background binlog tasks",
    "wsrep aborter idle",
    "wsrep applier idle",
)
"""Parts of a State, in lower case, with which a thread of the server or a replica is at rest."""

MAX_UNNAMED_LEAVES = 8
"""Innermost frames without a name that may stand before libc's function: its inner parts.

glibc without its static symbols has three of them before pthread_cond_wait.
"""


MOST_STRANGE = 2
"""Frames of which nothing is known that may stand in the middle of a wait: a library of another
version calls one function more, rarely two."""


class Wait(msgspec.Struct, frozen=True):
    """``kind`` as in the catalog; ``contends``: for what another thread holds."""

    kind: str
    contends: bool
    queues: bool
    """It waits in a lock's own routine, whatever thread it is: never idle."""
    spins: bool
    frame: str
    """The frame that said so."""


def skip_unnamed(names: Sequence[str | None], helpers: Sequence[bool]) -> int:
    """Return how many innermost frames without names belong to the function that waits."""
    start = 0
    while start < len(names) and names[start] is None:
        start += 1
    if start >= len(helpers) or start > MAX_UNNAMED_LEAVES or not helpers[start]:
        return 0
    return start


def skip_strange(
    masks: Sequence[int], helpers: Sequence[bool], strange: Sequence[bool], waiting: int
) -> tuple[int, ...]:
    """Return the indexes of the strange frames inside of a wait: a function that waits calls them.

    ``waiting``: the bits of the frames that say how a thread waits.
    """
    inside: list[int] = []
    index = 0
    while index < len(masks):
        if helpers[index]:
            index += 1
            continue
        end = index
        while end < len(masks) and end - index < MOST_STRANGE and strange[end]:
            end += 1
        if end == index or end >= len(masks) or not masks[end] & waiting:
            break
        inside += range(index, end)
        index = end
    return tuple(inside)


def find(
    names: Sequence[str | None], masks: Sequence[int], helpers: Sequence[bool], catalog: Catalog
) -> tuple[Wait | None, int]:
    """Return how the stack waits, and the index of the first frame that is no part of waiting.

    The outermost of the waiting frames decides: a mutex's routine calls an event's, which calls
    a condition variable's, which calls futex.
    """
    depth = 0
    last: WaitKind | None = None
    frame = ""
    queues = spins = False
    while depth < len(helpers) and helpers[depth]:
        for mask, kind in catalog.waits:
            if masks[depth] & mask:
                queues = queues or kind.queues
                spins = spins or kind.running
                last, frame = kind, names[depth] or "??"
        depth += 1
    if last is None:
        return None, depth
    return Wait(last.kind, last.contends or queues, queues, spins, frame), depth


def syscall_wait(thread: Thread, catalog: Catalog) -> Wait | None:
    """Return how the thread waits by the system call it is in, where the stack does not say."""
    name = thread.syscall.name if thread.syscall is not None else None
    if name is None:
        return None
    found = catalog.vocabulary.mask(name)
    for mask, kind in catalog.waits:
        if found & mask:
            return Wait(kind.kind, kind.contends, kind.queues, kind.running, name)
    return None


def kernel_worker(thread: Thread) -> bool:
    """Return whether it is a thread of io_uring: the kernel's own, without a stack to be read."""
    return not thread.frames and any(str(f) in IO_WORKERS for f in thread.kernel_frames)


def unseen(thread: Thread) -> bool:
    """Return whether nothing is known of a thread but that it sleeps, or not even that."""
    known = thread.frames or thread.kernel_frames or thread.syscall or thread.lock is not None
    return not known and thread.unwind == "not-tried" and thread.state in ("S", "I", "?")


_WAITING_ACTIVITIES = ("waiting", "locked", "user lock", "table lock", "sleeping before ")
"""How ``State`` of a processlist begins where a connection waits for others."""


def _reported(thread: Thread) -> str:
    """Return what the server's own list says about a thread whose stack it does not show."""
    activity = (thread.activity or "").lower()
    if thread.command in RESTS or any(rest in activity for rest in RESTING):
        return IDLE
    if thread.lock is not None or activity.startswith(_WAITING_ACTIVITIES):
        return WAITING
    return RUNNING


def state(thread: Thread, wait: Wait | None, *, idle: bool, leafless: bool = False) -> str:
    """Return whether the thread is idle, running, waiting, incomplete or unseen.

    Dumps do not give a state (``?``): there the frames decide. A thread that spins for a lock
    waits, although it runs, and so does one that was woken and has not run yet. One that queues
    for a lock is not idle, whatever thread it is. ``leafless``: it is in functions that only wait,
    and those of libc are missing.
    """
    found = _state(thread, wait, idle=idle, leafless=leafless)
    if thread.unwind == LOST and found in (IDLE, RUNNING) and not thread.on_cpu:
        return INCOMPLETE
    return found


def _state(thread: Thread, wait: Wait | None, *, idle: bool, leafless: bool) -> str:
    idle = idle and not (wait is not None and wait.queues)
    if not thread.frames and (thread.command or thread.activity):
        return _reported(thread)
    if thread.state in ("Z", "X"):
        return IDLE
    # Linux' io_uring/io-wq.c and sqpoll.c: at rest it sleeps in this function itself.
    if kernel_worker(thread) and str(thread.kernel_frames[0]) in IO_WORKERS:
        return IDLE
    if thread.on_cpu:
        return WAITING if wait is not None and wait.spins else RUNNING
    if thread.state == "R" and not idle and (wait is None or wait.kind in WORKS):
        return RUNNING
    if unseen(thread):
        return UNSEEN
    if idle:
        return IDLE
    if wait is not None or thread.lock is not None or thread.state in ("S", "D", "T", "t", "I"):
        return WAITING
    return WAITING if leafless and thread.state == "?" else RUNNING
