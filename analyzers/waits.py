# SPDX-License-Identifier: Apache-2.0
"""How a thread waits, by its innermost frames, and whether it is idle, running or waiting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.analyzers.catalog import Catalog
from stallscope.model import Thread

__all__ = ["IDLE", "RUNNING", "WAITING", "Wait", "find", "state", "syscall_wait"]

IDLE = "idle"
RUNNING = "running"
WAITING = "waiting"

DISK = frozenset({"read", "write", "sync", "allocate"})
"""Kinds of wait that end when a device has done its work."""

_UNNAMED_LEAVES = 2
"""Innermost frames without a name that may stand before libc's function: its inner parts."""


class Wait(msgspec.Struct, frozen=True):
    """``kind`` as in the catalog; ``contends``: for what another thread holds."""

    kind: str
    contends: bool
    spins: bool
    frame: str
    """The frame that said so."""


def find(
    names: Sequence[str | None], masks: Sequence[int], helpers: Sequence[bool], catalog: Catalog
) -> tuple[Wait | None, int]:
    """Return how the stack waits, and the index of the first frame that is no part of waiting.

    The outermost of the waiting frames decides: a mutex's routine calls an event's, which calls
    a condition variable's, which calls futex.
    """
    start = 0
    while start < min(_UNNAMED_LEAVES, len(names)) and names[start] is None:
        start += 1
    if start and (start >= len(helpers) or not helpers[start]):
        start = 0
    depth = start
    wait: Wait | None = None
    contends = spins = False
    while depth < len(helpers) and helpers[depth]:
        for mask, kind in catalog.waits:
            if masks[depth] & mask:
                contends = contends or (kind.contends and kind.kind != "futex")
                spins = spins or kind.running
                wait = Wait(kind.kind, kind.contends, spins, names[depth] or "??")
        depth += 1
    if wait is None:
        return None, 0 if start == depth else depth
    if wait.kind == "cond" and not contends:
        return wait, depth
    return Wait(wait.kind, wait.contends or contends, spins, wait.frame), depth


def syscall_wait(thread: Thread, catalog: Catalog) -> Wait | None:
    """Return how the thread waits by the system call it is in, where the stack does not say."""
    name = thread.syscall.name if thread.syscall is not None else None
    if name is None:
        return None
    found = catalog.vocabulary.mask(name)
    for mask, kind in catalog.waits:
        if found & mask:
            return Wait(kind.kind, kind.contends, kind.running, name)
    return None


def state(thread: Thread, wait: Wait | None, *, idle: bool) -> str:
    """Say whether the thread is idle, running or waiting.

    Dumps do not give a state (``?``): there the frames decide. A thread that spins for a lock
    waits, although it runs.
    """
    if thread.state in ("Z", "X"):
        return IDLE
    if thread.on_cpu or thread.state == "R":
        if wait is not None and (wait.spins or (wait.contends and not thread.on_cpu)):
            return WAITING
        return RUNNING if not idle or thread.on_cpu else IDLE
    if idle:
        return IDLE
    if wait is not None or thread.lock is not None or thread.state in ("S", "D", "T", "t", "I"):
        return WAITING
    return RUNNING
