# SPDX-License-Identifier: Apache-2.0
"""The wait graph: thread → lock → owner; its roots and its cycles."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

from stallscope.analyzers.analysis import Edge
from stallscope.model.capture import OF_TABLES, Capture, LockKind

__all__ = ["Graph", "build"]

_OWNERLESS = frozenset({LockKind.COND, LockKind.SEM})
"""Kinds without an owner: another thread has to act, and the lock word does not name it."""


class Graph:
    """Each thread waits for at most one owner."""

    def __init__(self, edges: Sequence[Edge], unstable: AbstractSet[int]) -> None:
        self.edges = tuple(edges)
        self.by_waiter = {edge.waiter: edge for edge in edges}
        self.unstable = unstable
        """Locks whose two reads differed, or that a waiter has been granted: their owner may be of
        another moment."""

    @cached_property
    def ends(self) -> dict[int, tuple[int, int]]:
        """Waiter → (root, how many owners away it is); the root of a cycle is its least member."""
        ends: dict[int, tuple[int, int]] = {}
        for cycle in self.cycles():
            for member in cycle:
                ends[member] = (min(cycle), 1)
        for start in self.by_waiter:
            trail: list[int] = []
            node = start
            while node in self.by_waiter and node not in ends:
                trail.append(node)
                node = self.by_waiter[node].owner
            root, depth = ends.get(node, (node, 0))
            for passed in reversed(trail):
                depth += 1
                ends[passed] = (root, depth)
        return ends

    def path(self, thread: int) -> tuple[int, ...]:
        """Return the owners from the thread's own to the root; ends early in a cycle."""
        seen = {thread}
        out: list[int] = []
        edge = self.by_waiter.get(thread)
        while edge is not None and edge.owner not in seen:
            seen.add(edge.owner)
            out.append(edge.owner)
            edge = self.by_waiter.get(edge.owner)
        return tuple(out)

    def cycles(self) -> tuple[tuple[int, ...], ...]:
        """Return each cycle of threads once, as indexes."""
        done: set[int] = set()
        cycles: list[tuple[int, ...]] = []
        for start in self.by_waiter:
            trail: dict[int, int] = {}
            node = start
            while node not in done and node not in trail:
                trail[node] = len(trail)
                edge = self.by_waiter.get(node)
                if edge is None:
                    break
                node = edge.owner
            else:
                if node in trail:
                    cycles.append(tuple(trail)[trail[node] :])
            done.update(trail)
        return tuple(cycles)


def build(capture: Capture) -> Graph:
    """Link each waiting thread with the owner of its lock, where the capture has both."""
    by_tid: dict[tuple[int, int], int] = {}
    for index, thread in enumerate(capture.threads):
        if thread.tid:
            by_tid.setdefault((thread.process, thread.tid), index)
            by_tid.setdefault((-1, thread.tid), index)
    edges: list[Edge] = []
    unstable = {index for index, lock in enumerate(capture.locks) if not lock.stable}
    for index, thread in enumerate(capture.threads):
        if thread.lock is None or not 0 <= thread.lock < len(capture.locks):
            continue
        lock = capture.locks[thread.lock]
        if not lock.owner_tid or lock.kind in _OWNERLESS:
            continue
        owner = by_tid.get((lock.process, lock.owner_tid), by_tid.get((-1, lock.owner_tid)))
        if owner is not None:
            edges.append(Edge(waiter=index, owner=owner, lock=thread.lock, source=lock.source))
        # No connection waits for a lock of tables that it has itself: it was granted, and the
        # thread has not run since. In a burst its wait is from an earlier capture.
        if owner == index and lock.kind in OF_TABLES:
            unstable.add(thread.lock)
    graph = Graph(edges, unstable)
    # A lock whose owner changed during the capture closes no cycle: the new owner may have been
    # waiting for it when its stack was read.
    cycles = graph.cycles()
    doubtful = {
        member for cycle in cycles for member in cycle if graph.by_waiter[member].lock in unstable
    }
    if not doubtful:
        return graph
    # A waiter that owns its lock has just got it, and blocked nobody before.
    late = {graph.by_waiter[cycle[0]].lock for cycle in cycles if len(cycle) == 1} & unstable
    return Graph(
        [edge for edge in edges if edge.waiter not in doubtful and edge.lock not in late], unstable
    )
