# SPDX-License-Identifier: Apache-2.0
"""One capture with all that is known of its threads: what every judge of a stall looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from stallscope.analyzers.analysis import Blocker, WaiterGroup
from stallscope.analyzers.catalog import Catalog, Signature
from stallscope.analyzers.graph import Graph
from stallscope.analyzers.stacks import Shape, Stacks
from stallscope.analyzers.waits import DISK, IDLE, RUNNING, WAITING
from stallscope.model import Capture, Lock, LockKind, Thread

__all__ = ["Candidate", "Scene", "named_as_process", "wait", "waiter_groups"]

EXCERPT = 3
"""A dump of so few threads is a piece of one: small counts do not speak against a stall."""

MAX_WAITER_GROUPS = 10
MAX_LOCKS = 10


class Candidate(msgspec.Struct, frozen=True):
    """A thread that may be the blocker. ``strength``: how sure that is, added to the confidence."""

    thread: int
    source: str
    """``futex`` and the like: a lock word says so; ``frames``: it stands where a holder stands."""
    role: str
    strength: float
    chains: bool
    """Sure enough that what blocks it is the root of this stall."""
    share: float = 1.0
    """Of the waiters: how many it blocks."""
    via: tuple[int, ...] = ()
    """Owners between the waiters and this root."""
    certain: bool = True
    """False: only that nobody else is left speaks for it."""


class Scene:
    """One capture with all that is known of its threads."""

    def __init__(
        self,
        *,
        capture: Capture,
        catalog: Catalog,
        stacks: Stacks,
        states: Sequence[str],
        graph: Graph,
        rings: Sequence[tuple[int, ...]],
    ) -> None:
        self.capture = capture
        self.catalog = catalog
        self.stacks = stacks
        self.states = states
        self.graph = graph
        self.rings = rings

    def shape(self, thread: int) -> Shape:
        return self.stacks.shapes[thread]

    def weight(self, threads: Iterable[int]) -> int:
        """Return how many threads these stand for."""
        return sum(self.capture.threads[index].count for index in threads)

    @cached_property
    def total(self) -> int:
        return self.weight(range(len(self.capture.threads)))

    @cached_property
    def excerpt(self) -> bool:
        return self.total <= EXCERPT

    @cached_property
    def holders(self) -> dict[str, tuple[int, ...]]:
        """Signature id → threads in one of its holder frames, idle ones left out."""
        out: dict[str, list[int]] = {}
        for index, shape in enumerate(self.stacks.shapes):
            if shape.holder_of and self.states[index] != IDLE:
                for name in shape.holder_of:
                    out.setdefault(name, []).append(index)
        return {name: tuple(threads) for name, threads in out.items()}

    @cached_property
    def _fitting(self) -> dict[int, tuple[Signature, ...]]:
        """Waiting thread → the signatures that it can belong to; one where its lock has a name."""
        out: dict[int, tuple[Signature, ...]] = {}
        for index, state in enumerate(self.states):
            if state != WAITING:
                continue
            lock = self.lock_of(index)
            name = lock.symbol.partition("+")[0] if lock is not None and lock.symbol else ""
            by_lock = self.catalog.lock_names.get(name)
            if by_lock is not None and self._usable(self.catalog.by_id[by_lock], index):
                out[index] = (self.catalog.by_id[by_lock],)
                continue
            fits = tuple(s for s in self.shape(index).waiter_of if self._usable(s, index))
            if fits:
                out[index] = fits
        return out

    @cached_property
    def support(self) -> dict[str, int]:
        """Signature id → how many threads can be nothing else: they decide for those that can."""
        out: dict[str, int] = {}
        for index, fits in self._fitting.items():
            if len(fits) == 1:
                out[fits[0].id] = out.get(fits[0].id, 0) + self.capture.threads[index].count
        return out

    @cached_property
    def assigned(self) -> dict[int, Signature]:
        """Waiting thread → the signature that its wait belongs to.

        One whose holder is seen comes before those that need none; then what others decide.
        """

        def rank(signature: Signature) -> tuple[bool, bool, int]:
            seen = signature.holder_use == "required"
            return seen, self.support.get(signature.id, 0) > 0, -signature.precedence

        return {index: max(fits, key=rank) for index, fits in self._fitting.items()}

    def rivals(self, threads: Iterable[int], signature: Signature) -> tuple[str, ...]:
        """Return the signatures that fit some of these waiters as well, nothing deciding."""
        if self.support.get(signature.id) or signature.holder_use == "required":
            return ()
        return tuple(
            sorted({s.id for i in threads for s in self._fitting[i] if s is not signature})
        )

    def _usable(self, signature: Signature, thread: int) -> bool:
        if signature.holder_use != "required":
            return True
        return any(holder != thread for holder in self.holders.get(signature.id, ()))

    @cached_property
    def waiters(self) -> dict[str, tuple[int, ...]]:
        out: dict[str, list[int]] = {}
        for index, signature in self.assigned.items():
            out.setdefault(signature.id, []).append(index)
        return {name: tuple(threads) for name, threads in out.items()}

    @cached_property
    def active(self) -> tuple[int, ...]:
        """Threads that have something to do: the whole that a finding explains its share of.

        Background threads that wait for their own events are none of them.
        """
        out = []
        for index, state in enumerate(self.states):
            shape = self.shape(index)
            if state == IDLE:
                continue
            known = index in self.assigned or shape.session
            wait = shape.wait
            if state == WAITING and not known:
                known = self.capture.threads[index].lock is not None or (
                    wait is not None and (wait.contends or wait.kind in DISK)
                )
            if known or state == RUNNING:
                out.append(index)
        return tuple(out)

    @cached_property
    def syncing(self) -> frozenset[int]:
        """Threads inside fsync and the like."""
        return frozenset(
            index
            for index, shape in enumerate(self.stacks.shapes)
            if shape.wait is not None
            and shape.wait.kind == "sync"
            and self.states[index] == WAITING
        )

    def lock_of(self, thread: int) -> Lock | None:
        number = self.capture.threads[thread].lock
        if number is None or not 0 <= number < len(self.capture.locks):
            return None
        return self.capture.locks[number]

    def locks_of(self, threads: Iterable[int]) -> tuple[Lock, ...]:
        """Return the locks that the threads wait for, most waiters first, counted anew.

        A condition variable of one thread's own tells nothing and is left out.
        """
        counts: Counter[int] = Counter()
        for index in threads:
            number = self.capture.threads[index].lock
            if number is not None and 0 <= number < len(self.capture.locks):
                counts[number] += self.capture.threads[index].count
        out = []
        for number, count in counts.most_common():
            lock = self.capture.locks[number]
            if count > 1 or lock.symbol or lock.owner_tid or lock.kind is not LockKind.COND:
                out.append(msgspec.structs.replace(lock, waiters=count))
            if len(out) == MAX_LOCKS:
                break
        return tuple(out)

    def say(self, thread: int) -> str:
        """Name a thread in a sentence."""
        item = self.capture.threads[thread]
        name = f" ({item.name})" if item.name and not named_as_process(self.capture, item) else ""
        return f"thread {item.tid}{name}" if item.tid else "a thread without a number"

    def blocker(self, candidate: Candidate) -> Blocker:
        item = self.capture.threads[candidate.thread]
        return Blocker(
            tid=item.tid,
            name=item.name,
            frames=self.shape(candidate.thread).frames,
            state=self.states[candidate.thread],
            source=candidate.source,
            certain=candidate.certain,
        )

    def doing(self, thread: int) -> str:
        """Say what a thread does, for a sentence."""
        shape = self.shape(thread)
        item = self.capture.threads[thread]
        if self.states[thread] == IDLE:
            return f"is idle: {shape.idle.what}" if shape.idle else "is idle"
        if self.states[thread] == RUNNING:
            where = "is on a CPU" if item.on_cpu else "is running"
        elif shape.wait is not None and shape.wait.kind in DISK:
            where = f"waits for the disk ({shape.wait.frame})"
        else:
            where = "waits"
        return f"{where} in {shape.excerpt()}"


def named_as_process(capture: Capture, thread: Thread) -> bool:
    """Say whether a thread's name is the program's: then it tells nothing."""
    if not 0 <= thread.process < len(capture.processes):
        return False
    return thread.name == capture.processes[thread.process].comm


def wait(count: int) -> str:
    """Return ``1 thread waits`` or ``2 threads wait``, and so on."""
    return "1 thread waits" if count == 1 else f"{count} threads wait"


def waiter_groups(scene: Scene, members: Iterable[int]) -> tuple[WaiterGroup, ...]:
    """Group waiting threads by stack, largest first."""
    counts: Counter[tuple[str, ...]] = Counter()
    for index in members:
        counts[scene.shape(index).frames] += scene.capture.threads[index].count
    return tuple(
        WaiterGroup(count=count, frames=frames)
        for frames, count in counts.most_common(MAX_WAITER_GROUPS)
    )
