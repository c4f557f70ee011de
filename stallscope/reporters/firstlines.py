# SPDX-License-Identifier: Apache-2.0
"""The first lines: what stalls, who holds it up, the statement that ends it, and what is not known.

They fit on a small terminal, and head the report, the incident, the notification and ``top``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from stallscope.analyzers import files
from stallscope.analyzers.analysis import Age, Analysis, Blocker, Ending, Finding
from stallscope.analyzers.scene import SAMPLE
from stallscope.analyzers.waittree import Holder, Queue, forest
from stallscope.base.text import clean, one_line
from stallscope.model.capture import OF_TABLES, Thread
from stallscope.reporters import facts
from stallscope.reporters.connection import kill_query, learn_command
from stallscope.reporters.counts import blocker_thread
from stallscope.reporters.lines import Line, short_name, threads_text, wrap
from stallscope.reporters.sentence import Speaker
from stallscope.reporters.sessions import (
    account,
    frequent_statements,
    has_ended,
    statement,
    who,
)
from stallscope.reporters.units import duration

__all__ = ["COLUMNS", "LINES", "age_text", "brief", "effect_text", "headline", "render"]

COLUMNS = 80
LINES = 24
"""The most lines: those of the smallest terminal."""
RIVAL = 0.15
"""A finding whose confidence is so near to the verdict's is shown with it."""
_TREE = 4
_REMEDIES = 3
_UNKNOWN = 2
_SAID = 3
_PLACE = 3
_STATEMENT = 400
_LEAST_EFFECT = 12
"""Columns that are worth the beginning of what a statement does."""
_EFFECT_INDENT = " " * 6
_ITEM_LINES = 2
"""The most lines of one remedy, and of one thing that is not known."""


def render(analysis: Analysis, width: int, *, more: str = "") -> list[Line]:
    """Return at most LINES lines. ``more``: how to see the rest, one sentence."""
    return _First(analysis, width).lines(more)


def brief(analysis: Analysis, width: int, rows: int) -> list[Line]:
    """Return what, who and the statements: the beginning of the first lines, in so many rows.

    A statement is never cut or left out: many long ones take more rows.
    """
    return _First(analysis, width).brief(rows)


def headline(analysis: Analysis) -> str:
    """Return what stalls and for how long, in one sentence."""
    say = Speaker(analysis)
    if not (say.total and analysis.findings):
        return say.verdict()
    finding = analysis.findings[0]
    lasted = f" {age_text(analysis.age)}" if analysis.age is not None else ""
    if finding.headline:
        return f"{say.server()}: {finding.headline}{lasted and f',{lasted}'}.{say.lost}"
    if finding.whole:
        many = f"{finding.threads} of {threads_text(say.total)}"
        return f"{say.server()}: the whole server stands still, {many}.{say.lost}"
    kind = finding.impact.kind
    what = f"{finding.threads} of {threads_text(say.total)}"
    what += " waits" if finding.threads == 1 else " wait"
    return f"{say.server()}: a {kind}{lasted}: {what}.{say.lost}"


def age_text(age: Age) -> str:
    """Return ``for 246 s`` or ``for at least 0.6 s``."""
    return f"for {'at least ' if age.at_least else ''}{duration(age.ns / 1e6)}"


def effect_text(analysis: Analysis, ending: Ending) -> str:
    """Return whom an ending hits, what it does, and how many threads go on."""
    thread = next(
        (t for t in analysis.capture.threads if _is_of(t, ending)),
        None,
    )
    finding = analysis.findings[0]
    likely = "" if ending.certain else "likely: "
    whose = account(thread) if thread is not None else ""
    whom = f"{whose}: " if whose else ""
    goes = "; 1 thread goes on" if finding.threads == 1 else f"; {finding.threads} threads go on"
    on = goes if ending.connection is not None else ""
    return f"{likely}{whom}{ending.effect}{on}"


def _is_of(thread: Thread, ending: Ending) -> bool:
    if ending.connection is None:
        return False
    return ending.connection in (thread.connection, thread.ns_tid or thread.tid)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


class _First:
    def __init__(self, analysis: Analysis, width: int) -> None:
        self.analysis = analysis
        self.capture = analysis.capture
        self.width = width
        self._wrap = partial(wrap, width=width)
        self.say = Speaker(analysis)

    def lines(self, more: str) -> list[Line]:
        last = list(self._wrap(more, style="dim")) if more else []
        if not self.analysis.findings:
            return [*self._calm()][: LINES - len(last)] + last
        finding = self.analysis.findings[0]
        head = self._head(finding)
        room = LINES - len(last) - len(head)
        blocks = [
            self._tree(),
            [] if self.analysis.endings else [*self._remedies(finding)],
            [*self._confidence(finding)],
        ]
        # What is not known comes before what can be read elsewhere.
        sizes = [len(block) for block in blocks]
        for number in (1, 0, 2):
            while sum(sizes) > room and sizes[number] > 0:
                sizes[number] -= 1
        for block, size in zip(blocks, sizes, strict=True):
            head += block[:size]
        return head[: LINES - len(last)] + last

    def brief(self, rows: int) -> list[Line]:
        if not self.analysis.findings:
            return list(self._wrap(self.say.verdict(), style=self.say.style))[:rows]
        finding = self.analysis.findings[0]
        full = [line for line in self._head(finding) if line.text]
        if len(full) <= rows:
            return full
        ends = list(self._ends_briefly(finding))
        begin = [*self._what(finding), *self._who(finding)]
        return begin[: max(1, rows - len(ends))] + ends

    def _ends_briefly(self, finding: Finding) -> Iterator[Line]:
        """Yield a row for each statement, with what it does as far as there is room."""
        if self._pasted():
            where = " in a shell" if self.analysis.endings[0].in_shell else ""
            head = f"To end it, paste{where}: "
            hang = " " * len(head)
            for number, ending in enumerate(self.analysis.endings):
                text = ending.statement
                room = self.width - len(head) - len(text) - len(" ()")
                likely = "" if ending.certain else "likely: "
                effect = _cut(f"{likely}{ending.effect}", room)
                text += f" ({effect})" if room >= _LEAST_EFFECT else ""
                indent = f"{'or: ':>{len(head)}}" if number else head
                yield from self._wrap(
                    text, indent=indent, hang=hang, style="bold green", whole=True
                )
            return
        for line in self._ends(finding):
            if line.text and not line.text.startswith(_EFFECT_INDENT):
                yield line

    def _head(self, finding: Finding) -> list[Line]:
        return [*self._what(finding), *self._who(finding), *self._ends(finding)]

    def _calm(self) -> Iterator[Line]:
        """Say what was checked: without it, that nothing was found says nothing."""
        yield from self._wrap(self.say.verdict(), style=self.say.style)
        yield from self._wrap(f"Checked: {'; '.join(facts.checked(self.analysis))}.")
        for place in self.analysis.waiting_in[:_TREE]:
            names = " < ".join(map(short_name, place.frames)) or "?"
            yield from self._wrap(names, indent=f"  {place.count:4d} in ", hang=" " * 10)
        yield from self._unknown(None)

    def _what(self, finding: Finding) -> Iterator[Line]:
        yield from self._wrap(headline(self.analysis), style="bold red")
        name = f" [{finding.signature}]" if finding.signature else ""
        locks = [lock for lock in finding.locks if lock.symbol and lock.kind in OF_TABLES]
        on = f": {clean(locks[0].symbol or '')}" if locks else ""
        yield from self._wrap(f"{finding.title}{on}{name}", style="bold")
        for other in self.analysis.findings[1:]:
            if other.headline:
                yield from self._wrap(f"also: {other.headline}", hang="      ")
        for other in self._rivals(finding):
            yield from self._wrap(f"or: {self.say.finding(other)}", hang="    ")

    def _rivals(self, finding: Finding) -> Sequence[Finding]:
        chained = {link.signature for link in finding.chain}
        if finding.headline:
            return ()
        return [
            other
            for other in self.analysis.findings[1:]
            if other.signature not in chained
            and not other.headline
            and other.victim_of is None
            and other.confidence >= finding.confidence - RIVAL
        ][:1]

    def _who(self, finding: Finding) -> Iterator[Line]:
        blocker = finding.blocker
        if finding.headline:
            for text in finding.evidence[:_SAID]:
                yield from self._few(text, "  ", "  ", _ITEM_LINES)
            return
        if blocker is None and finding.whole:
            return
        if blocker is None:
            yield from self._wrap("Who holds it: not known", hang="      ")
            threads = [self.analysis.capture.threads[index] for index in finding.members]
            yield from self._blocked_in(next(filter(files.is_frozen, threads), None))
            return
        thread = blocker_thread(self.analysis, blocker)
        about = who(thread) if thread is not None else ""
        likely = "" if blocker.certain else "likely "
        about = about or f"{self.say.thread(blocker.tid)}, {blocker.state}"
        yield from self._wrap(f"Who: {likely}{about}", hang="     ", style="bold")
        if blocker.sql:
            kind = "last" if has_ended(thread) else "runs"
            text = f"{kind}: {one_line(blocker.sql, _STATEMENT)}"
            yield from self._few(text, "     ", "     ", _ITEM_LINES)
        elif thread is None or thread.connection is None:
            where = " < ".join(short_name(frame) for frame in self._place(blocker))
            if where:
                yield from self._few(f"in {where}", "     ", "     ", _ITEM_LINES)
        if blocker.source != SAMPLE:  # another moment showed what it does
            yield from self._blocked_in(thread)

    def _blocked_in(self, thread: Thread | None) -> Iterator[Line]:
        file = files.text(thread, brief=True) if thread is not None else None
        if file is not None:
            yield from self._few(f"blocked in {file}", "     ", "     ", _ITEM_LINES)

    def _place(self, blocker: Blocker) -> tuple[str, ...]:
        # In this capture it is elsewhere: a sample of another moment showed what it does.
        if blocker.source == SAMPLE:
            return tuple(dict.fromkeys(blocker.frames))[:_PLACE]
        if blocker.thread is None or blocker.thread >= len(self.analysis.places):
            return ()
        return self.analysis.places[blocker.thread]

    def _ends(self, finding: Finding) -> Iterator[Line]:
        endings = self.analysis.endings
        yield Line("")
        ask = self._ask(finding)
        if ask is not None and (not endings or endings[0].asks):
            yield from self._question("Its connection is not known. Ask for it", ask)
            return
        learn = learn_command(self.analysis)
        if not endings and learn is not None and finding.kept:
            what = "Its connection" if finding.blocker is not None else "Who holds it"
            yield from self._wrap(
                f"{what} is not known: this release reports no threads. In a shell:", style="bold"
            )
            yield from self._wrap(learn, indent="  ", hang="    ", style="bold green")
            return
        if not endings:
            yield from self._wrap("No statement is known that ends it.", style="bold")
            return
        if endings[0].asks:
            yield from self._question("Who holds it is not known. Ask", endings[0].statement)
            yield from self._few(endings[0].effect, "      ", "      ", _ITEM_LINES)
            return
        each = "paste" if len(endings) == 1 else "paste one of these"
        where = "in a shell" if endings[0].in_shell else "in a client of this server"
        yield from self._wrap(f"To end it, {each} {where}:", style="bold")
        for ending in endings:
            yield from self._wrap(
                ending.statement, indent="  ", hang="    ", style="bold green", whole=True
            )
            yield from self._few(
                effect_text(self.analysis, ending), "      ", "      ", _ITEM_LINES + 1
            )

    def _pasted(self) -> bool:
        """Return whether there are statements that end it, not only questions."""
        endings = self.analysis.endings
        return bool(endings) and not endings[0].asks

    def _question(self, what: str, statement: str) -> Iterator[Line]:
        yield from self._wrap(f"{what}, then paste the answer:", style="bold")
        yield from self._wrap(statement, indent="  ", hang="    ", style="bold green")

    def _ask(self, finding: Finding) -> str | None:
        """Return the statement that makes the KILL, where only the thread is known."""
        blocker = finding.blocker
        if blocker is None or blocker.thread is None:
            return None
        return kill_query(self.analysis, self.capture.threads[blocker.thread])

    def _tree(self) -> list[Line]:
        roots = forest(self.analysis)
        verdict = self.analysis.findings[0]
        if not roots or verdict.whole or verdict.headline:
            return []
        found = [*_Chain(self.analysis, self.say).lines(roots[0])][:_TREE]
        return [Line(""), *(Line(_cut(text, self.width)) for text in found)]

    def _remedies(self, finding: Finding) -> Iterator[Line]:
        yield Line("")
        for remedy in finding.remedies[:_REMEDIES]:
            yield from self._few(remedy, "  - ", "    ", _ITEM_LINES)

    def _confidence(self, finding: Finding) -> Iterator[Line]:
        yield Line("")
        yield from self._wrap(
            f"Confidence {finding.confidence:.2f} in this name, from"
            f" {'; '.join(facts.checked(self.analysis))}."
        )
        yield from self._unknown(finding)

    def _unknown(self, finding: Finding | None) -> Iterator[Line]:
        items = [*(finding.against if finding is not None else ())]
        items += facts.unread(self.capture)
        for item in items[:_UNKNOWN]:
            yield from self._few(f"Not known: {item}", "", "  ", _ITEM_LINES)

    def _few(self, text: str, first: str, hang: str, most: int) -> list[Line]:
        """Wrap text to so many lines; a cut end is marked."""
        lines = list(self._wrap(text, indent=first, hang=hang))
        if len(lines) > most:
            cut = lines[most - 1].text
            lines[most - 1 :] = [Line(f"{cut[: self.width - 2]} …")]
        return lines


class _Chain:
    """The wait tree in a few lines: from the root along the longest queues."""

    def __init__(self, analysis: Analysis, say: Speaker) -> None:
        self.analysis = analysis
        self.threads = analysis.capture.threads
        self.say = say

    def lines(self, root: Holder) -> Iterator[str]:
        if root.thread is None:
            for queue in root.queues[:1]:
                yield from self._queue(queue, "")
            return
        yield self._holder(root)
        yield from self._behind(root, "")

    def _behind(self, holder: Holder, indent: str) -> Iterator[str]:
        for number, queue in enumerate(holder.queues[:2]):
            last = number == min(len(holder.queues), 2) - 1
            yield from self._queue(queue, f"{indent}{'└─ ' if last else '├─ '}")

    def _queue(self, queue: Queue, first: str) -> Iterator[str]:
        hang = " " * len(first)
        members = [self.threads[i] for place in queue.places for i in place.threads]
        yield f"{first}{self._wanted(queue)}: {queue.count} wait{self._statements(members)}"
        for holder in queue.holders[:1]:
            yield f"{hang}└─ {self._holder(holder)}"
            yield from self._behind(holder, f"{hang}   ")

    def _wanted(self, queue: Queue) -> str:
        if queue.lock is not None:
            lock = self.analysis.capture.locks[queue.lock]
            return clean(lock.symbol or f"{lock.kind} {lock.address:#x}")
        finding = self.analysis.findings[queue.finding or 0]
        return finding.signature or "an unknown wait"

    def _statements(self, members: Sequence[Thread]) -> str:
        common = frequent_statements(members)[:1]
        return "".join(f", {count} x {one_line(text, _STATEMENT)}" for count, text in common)

    def _holder(self, holder: Holder) -> str:
        assert holder.thread is not None
        thread = self.threads[holder.thread]
        likely = "" if holder.certain else "likely "
        if holder.closes:
            return f"{self.say.thread(thread.tid)}, above: the cycle closes"
        if thread.connection is None:
            return f"{likely}{self.say.thread(thread.tid)}"
        text = statement(thread, _STATEMENT)
        state = "idle" if thread.rests else text
        return f"{likely}connection {thread.connection}{f': {state}' if state else ''}"
