# SPDX-License-Identifier: Apache-2.0
"""The finding in one sentence, the same for all reporters."""

from __future__ import annotations

from functools import cached_property

from stallscope.analyzers.analysis import Analysis, Finding, Impact, Link, Seen
from stallscope.analyzers.scene import named_as_process
from stallscope.model.capture import Lock, LockKind, Thread
from stallscope.reporters.counts import count_states, count_threads, count_unseen, target_process
from stallscope.reporters.lines import threads_text

__all__ = ["Speaker", "often_text", "remedies"]

LEAST_CPU = 0.05
"""Of the samples: less is chance, and the work of statements that ask the server what it does."""
MOST_LOST = 0.1
"""Of the lines or threads of a dump: if more is lost, the first line says so."""


def often_text(seen: Seen) -> str:
    """Return in how many captures a finding is, and how much of the server's CPU time it takes."""
    text = f"{seen.captures} of {seen.of} captures"
    if seen.cpu is not None and seen.cpu >= LEAST_CPU:
        text += f"; on a CPU in {seen.cpu:.0%} of the samples"
    return text


def remedies(analysis: Analysis) -> tuple[str, ...]:
    """Return what to do about the verdict; how to find the holder only where it is not found."""
    if not analysis.findings:
        return ()
    known = analysis.endings and not analysis.endings[0].asks
    found = analysis.findings[0].remedies
    return tuple(text for text in found if not (known and text.startswith("Find ")))


def _is_nameless(thread: Thread) -> bool:
    return bool(thread.frames) and not any(frame.symbol for frame in thread.frames)


class Speaker:
    """Makes sentences about one analysis; names in them are not escaped."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.total = count_threads(analysis)
        self._names = {
            t.tid: t.name
            for t in analysis.capture.threads
            if t.tid and not named_as_process(analysis.capture, t)
        }

    def verdict(self) -> str:
        """Return the main sentence of the report."""
        if not self.total:
            return f"{self.server()}: it contains no threads."
        if not self.analysis.findings:
            return f"{self.server()}: {self.nothing()}; {self.states()}.{self.lost}"
        finding = self.analysis.findings[0]
        if finding.headline:
            return f"{self.server()}: {self.finding(finding)}.{self.lost}"
        blocker = finding.blocker
        by = "; the blocker is unknown"
        if blocker is not None:
            likely = "" if blocker.certain else "likely "
            by = f"; {likely}blocked by {self.thread(blocker.tid)}, {blocker.state}"
        return f"{self.server()}: {self.finding(finding)}{by}.{self.lost}"

    @property
    def calm(self) -> bool:
        """Whether all was read, and no thread waits for others."""
        return not (self.analysis.findings or self.analysis.waiting_in or self.lost)

    @property
    def style(self) -> str:
        """Return the colour of the main sentence."""
        return (
            "bold red" if self.analysis.findings else "bold green" if self.calm else "bold yellow"
        )

    @cached_property
    def lost(self) -> str:
        """Return a warning, after a blank, if much of a dump was lost; else an empty text."""
        parts = []
        reading = self.analysis.capture.reading
        if reading is not None and reading.lost_share > MOST_LOST:
            parts.append(f"{reading.lost_share:.0%} of the dump's lines cannot be read")
        cut = count_states(self.analysis)["incomplete"]
        if cut > MOST_LOST * self.total:
            parts.append(f"frames of {cut} of {threads_text(self.total)} are lost")
        nameless = sum(t.count for t in self.analysis.capture.threads if _is_nameless(t))
        if nameless > MOST_LOST * self.total:
            parts.append(f"{nameless} of {threads_text(self.total)} have no name of a function")
        return f" Warning: {' and '.join(parts)}." if parts else ""

    def nothing(self) -> str:
        """Return what there is to say without a finding: that all is well only where nobody waits
        for others."""
        places = self.analysis.waiting_in
        if not places:
            return "no stall found" + (" in what could be read" if self.lost else "")
        count = sum(place.count for place in places)
        most = " < ".join(places[0].frames) or "?"
        waiters = "1 thread waits" if count == 1 else f"{count} threads wait"
        return f"no stall is named, but {waiters}: {places[0].count} in {most}"

    def impact(self, impact: Impact) -> str:
        """Return how much of the server a finding holds up."""
        return f"a {impact.kind}: {impact.share:.0%} of active threads"

    def finding(self, finding: Finding) -> str:
        """Return how many threads stall in what, how much that is, and the confidence."""
        if finding.headline:
            name = f"{finding.title} [{finding.signature}]"
            return f"{finding.headline}: {name} (confidence {finding.confidence:.2f})"
        if finding.signature is None:  # its title counts the threads itself
            what = f"{finding.title}, {finding.threads} of {self.total} threads"
        else:
            what = (
                f"{finding.threads} of {threads_text(self.total)}: {finding.title}"
                f" [{finding.signature}]"
            )
        often = "" if finding.seen is None else f", in {often_text(finding.seen)}"
        return f"{what} ({self.impact(finding.impact)}; confidence {finding.confidence:.2f}{often})"

    def server(self) -> str:
        """Return the server's program, version and process."""
        analysis = self.analysis
        index = target_process(analysis)
        process = None if index is None else analysis.capture.processes[index]
        exe = process.exe.rsplit("/", 1)[-1] if process is not None and process.exe else None
        comm = process.comm if process is not None else None
        name = exe or comm or analysis.server or "this dump"
        if analysis.version:
            name += f" {analysis.version}"
        if process is not None and process.pid:
            name += f" (pid {process.pid})"
        return name

    def thread(self, tid: int) -> str:
        """Return a thread's number, and its name where it has one of its own."""
        name = self._names.get(tid)
        who = f"thread {tid}" if tid else "a thread without a number"
        return who + (f' "{name}"' if name else "")

    def states(self) -> str:
        """Return how many threads wait, run and idle."""
        states = count_states(self.analysis)
        parts = [f"{states[name]} {name}" for name in ("waiting", "running", "idle")]
        if states["incomplete"]:
            parts.append(f"{states['incomplete']} incomplete, their frames were lost")
        unseen = count_unseen(self.analysis)
        where = (
            f" ({unseen} of them sleep in calls that the library does not watch)" if unseen else ""
        )
        return f"{threads_text(self.total)}: " + ", ".join(parts) + where

    def link(self, link: Link) -> str:
        """Return one link of the chain."""
        waiters = f"{threads_text(link.threads)} {'waits' if link.threads == 1 else 'wait'}"
        parts = [waiters] if link.threads else []
        if link.tid:
            parts.append(f"blocked by {self.thread(link.tid)}" if parts else self.thread(link.tid))
        return f"{link.signature}: {', '.join(parts) or 'no thread waits'}"

    def lock(self, lock: Lock, *, holder: bool = True) -> str:
        """Return what a lock is, who holds it (unless shown elsewhere) and how many wait for it."""
        name = lock.symbol or f"{lock.address:#x}"
        shown = lock.symbol and lock.address and lock.kind is not LockKind.ROW  # a record has none
        where = f" at {lock.address:#x}" if shown else ""
        unstable = "" if lock.stable else "; it changed while it was read"
        waiters = f"{lock.waiters} wait{'s' if lock.waiters == 1 else ''} [{lock.source}]"
        held = f"{self.holder(lock)}, " if holder else ""
        return f"{name} ({lock.kind}{where}): {held}{waiters}{unstable}"

    def holder(self, lock: Lock) -> str:
        """Return who holds a lock, or why nobody is named."""
        if lock.owner_tid:
            return f"held by {self.thread(lock.owner_tid)}"
        if lock.owner_raw:
            return f"its word names {lock.owner_raw}, which is not a thread of the process"
        if lock.readers:
            return f"held by {lock.readers} reader{'' if lock.readers == 1 else 's'}"
        if lock.kind is LockKind.MUTEX and lock.source == "futex":
            return "free when it was read"
        return "holder unknown"
