# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom, as a forest: holders, what they hold, and who queues for it.

Lock words come first. Where none says who holds a lock, a finding does, that chose its blocker by
the frames. Each waiting thread stands in the forest once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stallscope.analyzers.analysis import Analysis, Finding
from stallscope.model.capture import LockKind

__all__ = ["Holder", "Place", "Queue", "forest"]

_OF_ONE_THREAD = frozenset({LockKind.COND, LockKind.SEM, LockKind.JOIN})
"""Kinds that threads sleep on one by one: none of them is what a queue is for."""

_MAX_DEPTH = 100
"""Owners from a root to a waiter; beyond, threads count as being behind the last one."""


class Place(msgspec.Struct, frozen=True):
    """Threads that wait alike."""

    count: int
    frames: tuple[str, ...]
    threads: tuple[int, ...]
    """Indexes into Capture.threads."""


class Queue(msgspec.Struct, frozen=True):
    """What threads wait for: a lock, or what a finding names."""

    count: int
    """Threads that wait for it directly, holders among them."""
    lock: int | None = None
    """Index into Capture.locks."""
    finding: int | None = None
    """Index into Analysis.findings, where a finding puts the threads here and no lock word."""
    places: tuple[Place, ...] = ()
    """Threads that block nobody, the largest number first."""
    holders: tuple[Holder, ...] = ()
    """Those that others wait for in turn, the one with most behind it first."""


class Holder(msgspec.Struct, frozen=True):
    """A thread that others wait for; ``thread`` is None where nobody knows it."""

    thread: int | None
    behind: int
    """Threads that wait for it, directly or through others."""
    queues: tuple[Queue, ...] = ()
    certain: bool = True
    closes: bool = False
    """It is in the tree already: here a cycle closes."""
    cycle: tuple[int, ...] = ()
    """Of the root of a cycle: its threads in order, each waiting for the next."""


_Want = tuple[int | None, int | None]
"""(lock, finding): what a thread waits for."""


def forest(analysis: Analysis) -> tuple[Holder, ...]:
    """Return the roots, the one with most threads behind it first."""
    return _Forest(analysis).roots()


class _Forest:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.threads = analysis.capture.threads
        self.owner: dict[int, int | None] = {}
        self.want: dict[int, _Want] = {}
        self.likely: set[int] = set()
        for edge in analysis.edges:
            self._place(edge.waiter, edge.owner, (edge.lock, None))
        for number, finding in self._nearest_first():
            self._of_finding(number, finding)
        self._of_locks()
        self.held: dict[int | None, dict[_Want, list[int]]] = {}
        for waiter, owner in self.owner.items():
            self.held.setdefault(owner, {}).setdefault(self.want[waiter], []).append(waiter)
        self.behind = self._count_behind()

    def _count_behind(self) -> dict[int, int]:
        """Return how many threads are behind each, however far; in cycles, only up to the cycle."""
        behind: dict[int, int] = {}
        open_waiters: dict[int, int] = {}
        for owner, wants in self.held.items():
            if owner is not None:
                open_waiters[owner] = sum(len(waiters) for waiters in wants.values())
        ready = [waiter for waiter in self.owner if waiter not in open_waiters]
        while ready:
            waiter = ready.pop()
            owner = self.owner.get(waiter)
            if owner is None:
                continue
            behind[owner] = (
                behind.get(owner, 0) + self.threads[waiter].count + behind.get(waiter, 0)
            )
            open_waiters[owner] -= 1
            if not open_waiters[owner]:
                ready.append(owner)
        return behind

    def _place(self, waiter: int, owner: int | None, want: _Want) -> None:
        self.owner[waiter] = owner
        self.want[waiter] = want

    def _nearest_first(self) -> list[tuple[int, Finding]]:
        """Return victims before what they are victims of, which counts their threads too."""
        depth: dict[str | None, int] = {}
        by_id = {finding.signature: finding for finding in self.analysis.findings}
        for finding in self.analysis.findings:
            root, steps = finding.victim_of, 0
            while root in by_id and steps < len(by_id):
                root, steps = by_id[root].victim_of, steps + 1
            depth[finding.signature] = steps
        numbered = enumerate(self.analysis.findings)
        return sorted(numbered, key=lambda item: -depth[item[1].signature])

    def _of_finding(self, number: int, finding: Finding) -> None:
        blocker = finding.blocker
        owner = None if blocker is None else blocker.thread
        for waiter in finding.members:
            if waiter in self.owner or self.analysis.states[waiter] != "waiting":
                continue
            if owner is not None and self._leads(owner, waiter):
                continue
            lock = self._lock(waiter)
            nearest = owner if finding.pending in (None, waiter) else finding.pending
            self._place(waiter, nearest, (lock, None if lock is not None else number))
            if blocker is not None and owner is not None and not blocker.certain:
                self.likely.add(owner)

    def _leads(self, start: int, target: int) -> bool:
        """Return whether ``start`` is, or waits for, the thread ``target``."""
        node: int | None = start
        seen: set[int] = set()
        while node is not None and node not in seen:
            if node == target:
                return True
            seen.add(node)
            node = self.owner.get(node)
        return False

    def _of_locks(self) -> None:
        """Add the waiters of a lock whose owner is unknown."""
        for waiter, state in enumerate(self.analysis.states):
            if state == "waiting" and waiter not in self.owner:
                lock = self._lock(waiter)
                if lock is not None:
                    self._place(waiter, None, (lock, None))

    def _lock(self, waiter: int) -> int | None:
        number = self.threads[waiter].lock
        locks = self.analysis.capture.locks
        if number is None or not 0 <= number < len(locks):
            return None
        return None if locks[number].kind in _OF_ONE_THREAD else number

    def roots(self) -> tuple[Holder, ...]:
        cycles = self._cycles()
        starts = [
            owner
            for owner in self.held
            if owner is not None and owner not in self.owner and owner not in cycles
        ]
        found = [self._holder(start, ()) for start in starts]
        done: set[int] = set()
        for member, cycle in cycles.items():
            if member not in done:
                done.update(cycle)
                found.append(msgspec.structs.replace(self._holder(member, ()), cycle=cycle))
        # What nobody is known to hold: each is a root of its own.
        for want, waiters in self.held.get(None, {}).items():
            queue = self._queue(want, waiters, ())
            found.append(Holder(thread=None, behind=_behind([queue]), queues=(queue,)))
        return tuple(sorted(found, key=lambda root: (-root.behind, root.thread or 0)))

    def _cycles(self) -> dict[int, tuple[int, ...]]:
        """Return each member of a cycle with the cycle, from itself on."""
        out: dict[int, tuple[int, ...]] = {}
        done: set[int] = set()
        for start in self.owner:
            trail: dict[int, int] = {}
            node: int | None = start
            while node is not None and node not in done and node not in trail:
                trail[node] = len(trail)
                node = self.owner.get(node)
            if node is not None and node in trail:
                cycle = tuple(trail)[trail[node] :]
                for i, member in enumerate(cycle):
                    out[member] = cycle[i:] + cycle[:i]
            done.update(trail)
        return out

    def _holder(self, thread: int, above: tuple[int, ...]) -> Holder:
        certain = thread not in self.likely
        if thread in above:
            return Holder(thread, 0, certain=certain, closes=True)
        wants = self.held.get(thread, {})
        if len(above) >= _MAX_DEPTH:
            return Holder(thread, self.behind.get(thread, 0), certain=certain)
        queues = [self._queue(want, waiters, (*above, thread)) for want, waiters in wants.items()]
        queues.sort(key=lambda queue: -queue.count)
        return Holder(thread, _behind(queues), tuple(queues), certain)

    def _queue(self, want: _Want, waiters: Sequence[int], above: tuple[int, ...]) -> Queue:
        lock, finding = want
        holding = [waiter for waiter in waiters if waiter in self.held or waiter in above]
        holders = sorted((self._holder(t, above) for t in holding), key=lambda h: -h.behind)
        rest = [waiter for waiter in waiters if waiter not in self.held and waiter not in above]
        places = self._places(rest)
        return Queue(self._weight(waiters), lock, finding, places, tuple(holders))

    def _places(self, waiters: Sequence[int]) -> tuple[Place, ...]:
        known = self.analysis.places
        by_place: dict[tuple[str, ...], list[int]] = {}
        for waiter in waiters:
            frames = known[waiter] if waiter < len(known) else ()
            by_place.setdefault(frames, []).append(waiter)
        found = [
            Place(self._weight(threads), frames, tuple(threads))
            for frames, threads in by_place.items()
        ]
        return tuple(sorted(found, key=lambda place: (-place.count, place.frames)))

    def _weight(self, threads: Iterable[int]) -> int:
        return sum(self.threads[index].count for index in threads)


def _behind(queues: Iterable[Queue]) -> int:
    return sum(queue.count + sum(holder.behind for holder in queue.holders) for queue in queues)
