# SPDX-License-Identifier: Apache-2.0
"""The wait chains as a tree: holder, lock, waiters; short also for many threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.waittree import Holder, Place, Queue, forest
from stallscope.base.text import one_line
from stallscope.model.capture import Thread
from stallscope.reporters.lines import Line, short_name, threads_text, wrap
from stallscope.reporters.sentence import Speaker
from stallscope.reporters.sessions import frequent_statements, session, statement

__all__ = ["ALL", "Limits", "TreeLine", "render"]

_STATEMENT = 120
_DEEPEST = 8
"""The most levels of the tree; each takes three columns."""


class Limits(msgspec.Struct, frozen=True):
    """How much is shown."""

    roots: int = 4
    branches: int = 5
    """The most branches of each kind below one line."""
    lines: int = 60
    depth: int = _DEEPEST
    blocker_described: bool = True
    """Its statement is elsewhere in the report."""


class TreeLine(Line, frozen=True):
    """A line of the tree; ``thread``: the index of its thread, or of one of them."""

    thread: int | None = None


ALL = Limits(roots=200, branches=200, lines=2000, depth=_DEEPEST)


def render(analysis: Analysis, width: int, limits: Limits = Limits()) -> list[TreeLine]:  # noqa: B008
    """Return the lines; none where no thread waits for another."""
    lines: list[TreeLine] = []
    for line in _Tree(analysis, width, limits).lines():
        if len(lines) >= limits.lines:
            lines.append(TreeLine("  … and more (--full shows it)", "dim"))
            break
        lines.append(line)
    return lines


class _Tree:
    def __init__(self, analysis: Analysis, width: int, limits: Limits) -> None:
        self.analysis = analysis
        self.capture = analysis.capture
        self.say = Speaker(analysis)
        found = analysis.findings[:1]
        self.blocker = found[0].blocker.thread if found and found[0].blocker else None
        self.width = width
        self.limits = limits

    def lines(self) -> Iterator[TreeLine]:
        roots = forest(self.analysis)
        for root in roots[: self.limits.roots]:
            if root.cycle:
                yield from self._ring(root)
            if root.thread is None:
                for queue in root.queues:
                    yield from self._queue(queue, "  ", "  ", 0, known=False)
            else:
                yield from self._holder(root, "  ", "  ", 0)
        rest = roots[self.limits.roots :]
        if rest:
            behind = sum(root.behind for root in rest)
            yield TreeLine(f"  … and {threads_text(behind)} behind {len(rest)} others", "dim")

    def _ring(self, root: Holder) -> Iterator[TreeLine]:
        tids = [self.capture.threads[index].tid for index in root.cycle]
        cycle = " -> ".join(map(str, (*tids, tids[0])))
        yield from self._wrap(
            f"deadlock cycle, each waits for the next: {cycle}", "  ", "    ", "bold red"
        )

    def _holder(self, holder: Holder, first: str, hang: str, depth: int) -> Iterator[TreeLine]:
        assert holder.thread is not None
        thread = self.capture.threads[holder.thread]
        who = self.say.thread(thread.tid)
        if holder.closes:
            yield from self._wrap(
                f"{who}, above: the cycle closes", first, hang, "bold red", holder.thread
            )
            return
        text = f"{who}, {self.analysis.states[holder.thread]}"
        if not holder.certain:
            text = f"likely {text}"
        is_blocker = holder.thread == self.blocker
        text += " (the blocker)" if is_blocker else ""
        if not (is_blocker and self.limits.blocker_described):
            text += _whose(thread)
        if depth:
            text += f", in {self._place(self.analysis.places[holder.thread])}"
        yield from self._wrap(text, first, hang, "" if depth else "bold", holder.thread)
        if depth >= self.limits.depth and holder.queues:
            yield TreeLine(f"{hang}└─ … {threads_text(holder.behind)} behind it", "dim")
            return
        shown = holder.queues[: self.limits.branches]
        rest = sum(queue.count for queue in holder.queues[len(shown) :])
        for i, queue in enumerate(shown):
            branch, stem = _branch(last=i == len(shown) - 1 and not rest)
            yield from self._queue(queue, hang + branch, hang + stem, depth + 1)
        if rest:
            locks = len(holder.queues) - len(shown)
            yield TreeLine(f"{hang}└─ … {threads_text(rest)} for {locks} more of its locks", "dim")

    def _queue(
        self, queue: Queue, first: str, hang: str, depth: int, *, known: bool = True
    ) -> Iterator[TreeLine]:
        yield from self._wrap(self._wanted(queue, known=known), first, hang, "yellow")
        holders = queue.holders[: self.limits.branches]
        places = queue.places[: self.limits.branches]
        rest = queue.count - sum(place.count for place in places)
        rest -= sum(self.capture.threads[holder.thread or 0].count for holder in holders)
        for i, place in enumerate(places):
            branch, stem = _branch(last=i == len(places) - 1 and not (holders or rest))
            yield from self._waiters(place, hang + branch, hang + stem)
        for i, holder in enumerate(holders):
            branch, stem = _branch(last=i == len(holders) - 1 and not rest)
            yield from self._holder(holder, hang + branch, hang + stem, depth + 1)
        if rest:
            behind = sum(holder.behind for holder in queue.holders[len(holders) :])
            more = f", {threads_text(behind)} behind them" if behind else ""
            yield TreeLine(f"{hang}└─ … {threads_text(rest)} more{more}", "dim")

    def _wanted(self, queue: Queue, *, known: bool) -> str:
        if queue.lock is not None:
            lock = msgspec.structs.replace(self.capture.locks[queue.lock], waiters=queue.count)
            return self.say.lock(lock, holder=not known)
        assert queue.finding is not None
        finding = self.analysis.findings[queue.finding]
        what = finding.signature or "an unknown wait"
        source = finding.blocker.source if finding.blocker is not None else "frames"
        holder = "" if known else "holder unknown, "
        return f"{what}: {holder}{queue.count} wait{'s' if queue.count == 1 else ''} [{source}]"

    def _waiters(self, place: Place, first: str, hang: str) -> Iterator[TreeLine]:
        threads = [self.capture.threads[index] for index in place.threads]
        if place.count == 1:
            text = f"{self.say.thread(threads[0].tid)}{_whose(threads[0])}, "
        else:
            text = f"{place.count} "
        text += f"in {self._place(place.frames)}"
        common = frequent_statements(threads)[:1] if place.count > 1 else []
        for count, query in common:
            text += f": {count} x {one_line(query, _STATEMENT)}"
        yield from self._wrap(text, first, hang, thread=place.threads[0])

    def _place(self, frames: Sequence[str]) -> str:
        return " < ".join(short_name(frame) for frame in frames) or "no known frame"

    def _wrap(
        self, text: str, first: str, hang: str, style: str = "", thread: int | None = None
    ) -> Iterator[TreeLine]:
        for line in wrap(text, self.width, indent=first, hang=hang, style=style):
            yield TreeLine(line.text, line.style, thread)


def _branch(*, last: bool) -> tuple[str, str]:
    """Return the prefix of a branch, and of the lines below it."""
    return ("└─ ", "   ") if last else ("├─ ", "│  ")


def _whose(thread: Thread) -> str:
    """Return its statement, else its connection, as a part of a sentence."""
    query = statement(thread, _STATEMENT)
    about = session(thread)
    number = f", connection {thread.connection}" if thread.connection is not None else ""
    return f"{number}: {query}" if query else f"; {about}" if about else ""
