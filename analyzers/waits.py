# SPDX-License-Identifier: Apache-2.0
"""How a thread waits, by its innermost frames, and whether it is idle, running or waiting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.analyzers.catalog import Catalog, WaitKind
from stallscope.model import Thread

__all__ = ["IDLE", "RUNNING", "WAITING", "Wait", "find", "skip_unnamed", "state", "syscall_wait"]

IDLE = "idle"
RUNNING = "running"
WAITING = "waiting"

DISK = frozenset({"read", "write", "sync", "allocate"})
"""Kinds of wait that end when a device has done its work."""

WORKS = DISK | {"io", "net"}
"""Kinds of wait in which a runnable thread does its own work: the kernel copies its data."""

MAX_UNNAMED_LEAVES = 8
"""Innermost frames without a name that may stand before libc's function: its inner parts.

glibc without its static symbols has three of them before pthread_cond_wait.
"""


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


def state(thread: Thread, wait: Wait | None, *, idle: bool) -> str:
    """Say whether the thread is idle, running or waiting.

    Dumps do not give a state (``?``): there the frames decide. A thread that spins for a lock
    waits, although it runs, and so does one that was woken and has not run yet. One that queues
    for a lock is not idle, whatever thread it is.
    """
    idle = idle and not (wait is not None and wait.queues)
    if thread.state in ("Z", "X"):
        return IDLE
    if thread.on_cpu:
        return WAITING if wait is not None and wait.spins else RUNNING
    if thread.state == "R" and not idle and (wait is None or wait.kind in WORKS):
        return RUNNING
    if idle:
        return IDLE
    if wait is not None or thread.lock is not None or thread.state in ("S", "D", "T", "t", "I"):
        return WAITING
    return RUNNING
