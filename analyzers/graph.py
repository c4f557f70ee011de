# SPDX-License-Identifier: Apache-2.0
"""The wait graph: thread → lock → owner; who is at the root, and who waits in a ring."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.analyzers.analysis import Edge
from stallscope.model import Capture, LockKind

__all__ = ["Graph", "build"]

_OWNED = frozenset(
    {LockKind.MUTEX, LockKind.RWLOCK, LockKind.INTERNAL, LockKind.JOIN, LockKind.UNKNOWN}
)
"""Kinds whose owner is who must act next. A condition variable has none."""


class Graph:
    """Each thread waits for at most one owner."""

    def __init__(self, edges: Sequence[Edge], unstable: frozenset[int]) -> None:
        self.edges = tuple(edges)
        self.by_waiter = {edge.waiter: edge for edge in edges}
        self.unstable = unstable
        """Locks whose two reads differed: an owner that may have been another's moment."""

    def path(self, thread: int) -> tuple[int, ...]:
        """Return the owners from the thread's own to the root; ends early in a ring."""
        seen = {thread}
        out: list[int] = []
        edge = self.by_waiter.get(thread)
        while edge is not None:
            if edge.owner in seen:
                break
            seen.add(edge.owner)
            out.append(edge.owner)
            edge = self.by_waiter.get(edge.owner)
        return tuple(out)

    def cycles(self) -> tuple[tuple[int, ...], ...]:
        """Return each ring of threads once, as indexes."""
        done: set[int] = set()
        rings: list[tuple[int, ...]] = []
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
                    rings.append(tuple(trail)[trail[node] :])
            done.update(trail)
        return tuple(rings)


def build(capture: Capture) -> Graph:
    """Link each waiting thread with the owner of its lock, where the capture has both."""
    by_tid: dict[tuple[int, int], int] = {}
    for index, thread in enumerate(capture.threads):
        if thread.tid:
            by_tid.setdefault((thread.process, thread.tid), index)
            by_tid.setdefault((-1, thread.tid), index)
    edges: list[Edge] = []
    unstable = frozenset(index for index, lock in enumerate(capture.locks) if not lock.stable)
    for index, thread in enumerate(capture.threads):
        if thread.lock is None or not 0 <= thread.lock < len(capture.locks):
            continue
        lock = capture.locks[thread.lock]
        if not lock.owner_tid or lock.kind not in _OWNED:
            continue
        owner = by_tid.get((lock.process, lock.owner_tid), by_tid.get((-1, lock.owner_tid)))
        if owner is not None:
            edges.append(Edge(waiter=index, owner=owner, lock=thread.lock, source=lock.source))
    return Graph(edges, unstable)
