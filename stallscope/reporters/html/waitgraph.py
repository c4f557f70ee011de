# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom, with few enough nodes to draw, however many threads there are.

Each thread that others wait for is a node; all others share a node for each lock and place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.waittree import Holder, Place, Queue, forest
from stallscope.base.text import clean, one_line
from stallscope.model.capture import Lock, Thread
from stallscope.reporters.lines import short_name, threads_text
from stallscope.reporters.sentence import Speaker
from stallscope.reporters.sessions import frequent_statements, statement, who

__all__ = ["MAX_BRANCHES", "MAX_NODES", "MAX_ROOTS", "build", "walk"]

MAX_ROOTS = 10
MAX_BRANCHES = 6
"""The most places of a queue, its holders, and queues of a holder; the rest is one node."""
MAX_NODES = 120
_TIDS = 200
_STATEMENT = 200


def build(analysis: Analysis, files: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return ``nodes`` (their index is their number) and ``links`` from what blocks to what waits.

    A node: ``kind`` (``thread``, ``lock``, ``group``), ``text``, ``note``, ``state``, ``count``,
    ``tids`` (a few of them), ``root``, ``cycle``, ``blocker`` (of the verdict), ``query``,
    ``file``. A link:
    from, to, threads, source. ``left_out``: threads that are behind none of the nodes. ``files``:
    what threads waited for in files, by their TIDs.
    """
    return _Drawing(analysis, files or {}).value()


class _Drawing:
    def __init__(self, analysis: Analysis, files: Mapping[int, str]) -> None:
        self.analysis = analysis
        self.files = files
        self.threads = analysis.capture.threads
        self.say = Speaker(analysis)
        self.nodes: list[dict[str, Any]] = []
        self.links: list[list[Any]] = []
        self.alone: dict[int, int] = {}
        """Thread → its own node."""
        first = analysis.findings[0].blocker if analysis.findings else None
        self.blocker = None if first is None else first.thread
        self.sources = {(edge.owner, edge.lock): edge.source for edge in analysis.edges}

    def value(self) -> dict[str, Any]:
        roots = forest(self.analysis)
        for root in roots[:MAX_ROOTS]:
            if root.thread is not None:
                self.nodes[self._holder(root)]["root"] = True
            for queue in root.queues if root.thread is None else ():
                self.nodes[self._queue(queue, None)]["root"] = True
            for index in root.cycle:
                if index in self.alone:
                    self.nodes[self.alone[index]]["cycle"] = True
        left_out = sum(root.behind for root in roots[MAX_ROOTS:])
        return {"nodes": self.nodes, "links": self.links, "left_out": left_out}

    def _holder(self, holder: Holder) -> int:
        assert holder.thread is not None
        index = holder.thread
        known = self.alone.get(index)
        if known is not None:  # where a cycle closes
            return known
        thread, state = self.threads[index], self.analysis.states[index]
        name = self._name(index)
        number = self.alone[index] = self._node(
            "thread",
            name if holder.certain else f"likely {name}",
            _about(thread) or _place(self.analysis.places[index]),
            state=state,
            count=thread.count,
            tids=[thread.tid],
        )
        self._file(number, thread)
        if thread.query:
            self.nodes[number]["query"] = statement(thread, _STATEMENT)
        if index == self.blocker:
            self.nodes[number]["blocker"] = True
        shown = holder.queues[:MAX_BRANCHES] if len(self.nodes) < MAX_NODES else ()
        for queue in shown:
            self._queue(queue, number)
        rest = holder.queues[len(shown) :]
        if rest:
            count = sum(queue.count for queue in rest)
            self._more(number, count, f"for {len(rest)} more of its locks")
        return number

    def _queue(self, queue: Queue, holder: int | None) -> int:
        source = self._source(queue, holder)
        if queue.lock is not None:
            lock = self.analysis.capture.locks[queue.lock]
            node = self._node("lock", *self._lock(lock, free=holder is None), count=queue.count)
        else:
            finding = self.analysis.findings[queue.finding or 0]
            name = finding.signature or "an unknown wait"
            note = f"{finding.title}, holder unknown" if holder is None else finding.title
            node = self._node("lock", name, note, count=queue.count)
        if holder is not None:
            self.links.append([holder, node, queue.count, source])
        for place in queue.places[:MAX_BRANCHES]:
            self._group(node, place, source)
        rest = queue.places[MAX_BRANCHES:]
        if rest:
            count = sum(place.count for place in rest)
            self._more(node, count, f"in {len(rest)} more places")
        for waiter in queue.holders[:MAX_BRANCHES]:
            self.links.append([node, self._holder(waiter), 1, source])
        others = queue.holders[MAX_BRANCHES:]
        if others:
            behind = sum(item.behind for item in others)
            self._more(node, len(others), f"{threads_text(behind)} behind them")
        return node

    def _source(self, queue: Queue, holder: int | None) -> str:
        """Return the source for these threads' waiting for this one."""
        owners = [index for index, number in self.alone.items() if number == holder]
        if owners and queue.lock is not None:
            return self.sources.get((owners[0], queue.lock), "frames")
        if queue.finding is not None:
            blocker = self.analysis.findings[queue.finding].blocker
            return blocker.source if blocker is not None else "frames"
        lock = queue.lock
        return "frames" if lock is None else self.analysis.capture.locks[lock].source

    def _lock(self, lock: Lock, *, free: bool) -> tuple[str, str]:
        holder = f", {self.say.holder(lock)}" if free else ""
        return lock.symbol or f"{lock.address:#x}", f"{lock.kind}{holder}"

    def _group(self, parent: int, place: Place, source: str) -> None:
        first = place.threads[0]
        alone = place.count == 1
        node = self._node(
            "group",
            self._name(first) if alone else threads_text(place.count),
            _place(place.frames),
            state=self.analysis.states[first],
            count=place.count,
            tids=[self.threads[index].tid for index in place.threads[:_TIDS]],
        )
        if alone:
            self._file(node, self.threads[first])
        common = frequent_statements(self.threads[index] for index in place.threads)[:1]
        for count, text in common:
            often = "" if alone else f"{count} x "
            self.nodes[node]["query"] = f"{often}{one_line(text, _STATEMENT)}"
        self.links.append([parent, node, place.count, source])

    def _file(self, node: int, thread: Thread) -> None:
        file = self.files.get(thread.tid) if thread.tid else None
        if file:
            self.nodes[node]["file"] = one_line(_short(file), 160)

    def _name(self, index: int) -> str:
        """Return how people call it: its connection, where that is known."""
        thread = self.threads[index]
        if thread.connection is not None:
            return f"connection {thread.connection}"
        return self.say.thread(thread.tid)

    def _more(self, parent: int, count: int, note: str) -> None:
        node = self._node("group", f"{threads_text(count)} more", note, count=count)
        self.links.append([parent, node, count, "more"])

    def _node(
        self,
        kind: str,
        text: str,
        note: str,
        *,
        state: str = "",
        count: int = 0,
        tids: Sequence[int] = (),
    ) -> int:
        node = {
            "kind": kind,
            "text": one_line(text, 160),
            "note": one_line(note, 240),
            "state": clean(state),
            "count": count,
            "tids": list(tids),
        }
        self.nodes.append(node)
        return len(self.nodes) - 1


def _about(thread: Thread) -> str:
    """Return user, client and what it does: the connection's number is the title of its box."""
    text = who(thread)
    return text if thread.connection is None else text.partition(", ")[2]


def _short(file: str) -> str:
    """Return a file with the folder it is in: boxes are narrow."""
    what, _, path = file.partition(" of ")
    parts = path.rsplit("/", 2)
    return f"{what} of {'…/' if len(parts) > 2 else ''}{'/'.join(parts[-2:])}"


def _place(frames: Sequence[str]) -> str:
    return " < ".join(map(short_name, frames[:2])) or "no known frame"


def walk(graph: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the nodes as a tree, root first, each with its depth; each node occurs once."""
    below: dict[int, list[int]] = defaultdict(list)
    for one, other, *_ in graph["links"]:
        below[one].append(other)
    done: set[int] = set()
    nodes = graph["nodes"]
    for start in (i for i, node in enumerate(nodes) if node.get("root")):
        stack = [(0, start)]
        while stack:
            depth, number = stack.pop()
            if number in done:
                continue
            done.add(number)
            yield depth, nodes[number]
            stack += [(depth + 1, child) for child in reversed(below[number])]
