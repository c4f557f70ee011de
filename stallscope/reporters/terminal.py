# SPDX-License-Identifier: Apache-2.0
"""The report for people: verdict, blocker, wait chains, groups, missing data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from stallscope.analyzers.analysis import Analysis, Blocker, Finding, Group
from stallscope.analyzers.names import display
from stallscope.analyzers.releases import when
from stallscope.analyzers.waits import WAITING
from stallscope.base.text import clean, one_line
from stallscope.model.capture import Frame, Thread
from stallscope.reporters import facts, waittree
from stallscope.reporters.connection import connection_query
from stallscope.reporters.counts import blocker_thread, trust
from stallscope.reporters.lines import Line, break_name, short_name, threads_text, wrap
from stallscope.reporters.sentence import Speaker, remedies
from stallscope.reporters.sessions import frequent_statements, has_ended, session
from stallscope.reporters.trigger import why as why_taken

__all__ = ["Options", "render", "stall"]

_BLOCKER_FRAMES = 30
_GROUP_FRAMES = 12
_OTHER_FINDINGS = 5
_RELEASES = 3
_RELEASE_FRAMES = 8
_SUBSYSTEMS = 6
_STATEMENTS = 2
"""How many statements of a group are shown, the most frequent first."""
_STATEMENT = 200
_QUERY = 2000


class Options(msgspec.Struct, frozen=True):
    """How much is shown."""

    width: int = 80
    top: int = 10
    """Groups; 0 is all."""
    full: bool = False
    """Whole names and stacks."""


def render(analysis: Analysis, options: Options) -> list[Line]:
    """Return the whole report, escaped for a terminal."""
    return list(_Report(analysis, options).lines())


def stall(analysis: Analysis, options: Options) -> list[Line]:
    """Return the part of the report about the stall: its blocker and wait chains."""
    return list(_Report(analysis, options).stall())


class _Report:
    def __init__(self, analysis: Analysis, options: Options) -> None:
        self.analysis = analysis
        self.capture = analysis.capture
        self.options = options
        self._wrap = partial(wrap, width=options.width)
        self.say = Speaker(analysis)

    def lines(self) -> Iterator[Line]:
        findings = self.analysis.findings
        yield from self._wrap(self.say.verdict(), style=self.say.style)
        if self.capture.trigger is not None:
            yield from self._wrap(why_taken(self.capture.trigger))
        yield from self.stall()
        if findings:
            yield from self._profile(findings[0])
            yield from self._why(findings[0])
        yield from self._cpu()
        yield from self._releases()
        yield from self._others()
        yield from self._groups()
        yield from self._title("Capture")
        for fact in facts.taken(self.analysis):
            yield from self._wrap(fact, indent="  ", hang="    ")
        yield from self._items("Not read, or unknown", facts.unread(self.capture))

    def stall(self) -> Iterator[Line]:
        findings = self.analysis.findings
        if findings and findings[0].blocker is not None:
            yield from self._blocker(findings[0].blocker)
        limits = waittree.ALL if self.options.full else waittree.Limits()
        tree = waittree.render(self.analysis, self.options.width, limits)
        if tree:
            yield from self._title("Who waits on what")
            yield from tree

    def _blocker(self, blocker: Blocker) -> Iterator[Line]:
        yield from self._title("Blocker" if blocker.certain else "Blocker, likely")
        head = f"{self.say.thread(blocker.tid)}, {blocker.state}"
        yield from self._wrap(f"{head} (known from: {blocker.source})", indent="  ")
        thread = blocker_thread(self.analysis, blocker)
        about = session(thread) if thread is not None else ""
        if about:
            yield from self._wrap(about, indent="  ", hang="    ")
        if blocker.sql:
            query = blocker.sql if self.options.full else one_line(blocker.sql, _QUERY)
            what = "last query" if has_ended(thread) else "query"
            yield from self._wrap(f"{what}: {query}", indent="  ", hang="    ")
        if thread is not None:
            yield from self._in_kernel(thread)
            find = connection_query(self.analysis, thread)
            if find is not None and thread.connection is None:
                yield from self._wrap(f"whose connection: {find}", indent="  ", hang="    ")
        yield from self._stack(blocker.frames, trust([thread] if thread else []))

    def _profile(self, finding: Finding) -> Iterator[Line]:
        """Say where the holders of the lock spend their time."""
        seen = finding.seen
        if seen is None or not seen.profile:
            return
        holders = "1 holder" if seen.holders == 1 else f"{seen.holders} holders"
        yield from self._title(f"What its {holders} did, by share of what was seen of them")
        for where, share in seen.profile:
            yield from self._wrap(where, indent=f"  {share:4.0%}  ", hang=" " * 8)

    def _cpu(self) -> Iterator[Line]:
        """Say where the server's CPU time goes."""
        use = self.analysis.cpu
        if use is None or not use.samples:
            return
        yield from self._title(
            f"CPU: {use.busy:.1f} of {use.cpus} busy with this server ({use.samples} samples)"
        )
        for item in use.shares:
            name = f" [{item.signature}]" if item.signature else ""
            yield from self._wrap(
                f"{' < '.join(map(self._name, item.where.split(' < ')))}{name}",
                indent=f"  {item.share:4.0%}  ",
                hang=" " * 8,
            )

    def _why(self, finding: Finding) -> Iterator[Line]:
        if len(finding.chain) > 1:
            yield from self._title("Wait chain, root first")
            for link in finding.chain:
                yield from self._wrap(self.say.link(link), indent="  ", hang="    ")
        for title, items in (
            ("Evidence", finding.evidence),
            ("Against it, or unknown", finding.against),
            ("What to do", remedies(self.analysis)),
        ):
            yield from self._items(title, items)
        # Web addresses must not be cut. They come from the catalog, not from the target.
        yield from self._items("References", finding.references, whole=True)

    def _in_kernel(self, thread: Thread) -> Iterator[Line]:
        """Yield lines that say what the thread does in the kernel: waits for a disk look like
        this."""
        call = thread.syscall
        parts = [f"state {thread.state}"] if thread.state != "?" else []
        if call is not None:
            parts.append(f"in the system call {call.name or call.nr}")
        if thread.kernel_frames:
            shown = thread.kernel_frames if self.options.full else thread.kernel_frames[:4]
            parts.append("kernel: " + " < ".join(map(str, shown)))
        if parts:
            yield from self._wrap(", ".join(parts), indent="  ", hang="    ")

    def _others(self) -> Iterator[Line]:
        """Name the other findings, without those that are in the verdict's chain."""
        chained = {link.signature for found in self.analysis.findings[:1] for link in found.chain}
        findings = [f for f in self.analysis.findings[1:] if f.signature not in chained]
        if findings:
            yield from self._title("Other findings")
        for finding in findings[:_OTHER_FINDINGS]:
            yield from self._wrap(self.say.finding(finding), indent="  ", hang="    ")
        if len(findings) > _OTHER_FINDINGS:
            yield Line(f"  … and {len(findings) - _OTHER_FINDINGS} more (--json has all)")

    def _releases(self) -> Iterator[Line]:
        """Name the threads that released locks after long waits, the latest first. Releases that
        woke idle threads are left out.
        """
        found = self.capture.releases
        if not self.options.full:
            pairs = zip(self.capture.threads, self.analysis.states, strict=True)
            wanted = {thread.lock for thread, state in pairs if state == WAITING}
            found = tuple(r for r in found if r.lock is not None and r.lock in wanted)
        shown = found if self.options.full else found[:_RELEASES]
        if shown:
            yield from self._title("Locks released after long waits, the latest first")
        for release in shown:
            lock = self.capture.lock_at(release.lock)
            what = "a lock" if lock is None else lock.symbol or f"{lock.address:#x}"
            times = "" if release.count == 1 else f", {release.count} times"
            head = f"{what} by {self.say.thread(release.tid)} {when(release)}{times}:"
            yield from self._wrap(head, indent="  ", hang="    ")
            names = [self._name(display(frame)) for frame in release.frames]
            if not self.options.full:
                names[_RELEASE_FRAMES:] = ["…"] if len(names) > _RELEASE_FRAMES else []
            yield from _flow(
                names or ["(no frame could be read)"], " " * 8, " " * 8, self.options.width
            )
        if len(found) > len(shown):
            yield Line(f"  … and {len(found) - len(shown)} more (--full shows them)")

    def _groups(self) -> Iterator[Line]:
        busy = [group for group in self.analysis.groups if not group.idle]
        idle = [group for group in self.analysis.groups if group.idle]
        top = self.options.top or len(busy)
        if busy or idle:
            yield from self._title("Threads by stack, innermost frame first")
            yield from self._subsystems()
        for group in busy[:top]:
            yield from self._group(group)
        if len(busy) > top:
            rest = sum(group.count for group in busy[top:])
            text = f"… {threads_text(rest)} in {len(busy) - top} more (--top 0 shows all)"
            yield from self._wrap(text, indent="  ", hang="    ")
        if idle and self.options.full:
            for group in idle:
                yield from self._group(group)
        elif idle:
            count = sum(group.count for group in idle)
            stacks = "1 stack" if len(idle) == 1 else f"{len(idle)} stacks"
            text = f"in {stacks} (--full shows them)"
            yield from self._wrap(text, indent=f"  {count:5d} idle    ", style="dim")

    def _subsystems(self) -> Iterator[Line]:
        """Say in one line in which parts of the server the threads are that have work."""
        shares = self.analysis.subsystems[:_SUBSYSTEMS]
        if shares:
            text = ", ".join(f"{item.subsystem} {item.share:.0%}" for item in shares)
            more = len(self.analysis.subsystems) - len(shares)
            rest = f", {more} more" if more else ""
            yield from self._wrap(f"in {text}{rest}", indent="  ", hang="     ", style="dim")

    def _group(self, group: Group) -> Iterator[Line]:
        head = f"  {group.count:5d} {group.state:<7} "
        threads = [self.capture.threads[i] for i in group.threads]
        doubts = trust(threads)
        if self.options.full:
            yield Line(head.rstrip())
            yield from self._stack(self._whole(group), doubts)
        else:
            names = [self._name(frame) for frame in group.frames] or ["(no frame could be read)"]
            if len(names) > _GROUP_FRAMES + 1:
                names[_GROUP_FRAMES:] = [f"… {len(names) - _GROUP_FRAMES} more"]
            yield from _flow(names, head, " " * 16, self.options.width)
            if doubts:
                yield from self._wrap(doubts, indent=" " * 16)
        yield from self._statements(threads)

    def _statements(self, threads: Sequence[Thread]) -> Iterator[Line]:
        found = frequent_statements(threads)
        shown = found if self.options.full else found[:_STATEMENTS]
        for count, text in shown:
            line = f"{count} x {one_line(text, _QUERY if self.options.full else _STATEMENT)}"
            yield from self._wrap(line, indent=" " * 16, hang=" " * 20, style="cyan")
        if len(found) > len(shown):
            yield Line(f"{'':16}… {len(found) - len(shown)} more statements", "dim")

    def _whole(self, group: Group) -> Sequence[str]:
        """Return the unchanged names of the group's first thread."""
        if not group.threads:
            return group.frames
        frames = self.capture.threads[group.threads[0]].frames
        if len(frames) < len(group.frames):
            return group.frames
        return [_whole(frame) for frame in frames[: len(group.frames)]]

    def _stack(self, frames: Sequence[str], doubts: str) -> Iterator[Line]:
        shown = frames if self.options.full else frames[:_BLOCKER_FRAMES]
        for i, frame in enumerate(shown):
            yield from self._wrap(self._name(frame), indent=f"    #{i:<3} ", hang=" " * 9)
        if len(frames) > len(shown):
            yield Line(f"    … {len(frames) - len(shown)} more (--full shows them)")
        if not frames:
            yield Line("    (no frame could be read)")
        if doubts:
            yield from self._wrap(doubts, indent="    ")

    def _name(self, frame: str) -> str:
        if self.options.full:
            return clean(frame)
        return short_name(frame)

    def _title(self, title: str) -> Iterator[Line]:
        yield Line("")
        yield from self._wrap(title, style="bold")

    def _items(self, title: str, items: Sequence[str], *, whole: bool = False) -> Iterator[Line]:
        if items:
            yield from self._title(title)
        for item in items:
            yield from self._wrap(item, indent="  - ", hang="    ", whole=whole)


def _whole(frame: Frame) -> str:
    where = [frame.module.path.rsplit("/", 1)[-1]] if frame.module and frame.symbol else []
    where += [frame.source] if frame.source else []
    return f"{frame}  ({', '.join(where)})" if where else str(frame)


def _flow(names: Sequence[str], head: str, hang: str, width: int) -> Iterator[Line]:
    """Lay names out, comma between them, breaking after commas, or in a name that fills a line."""
    line = head
    empty = True
    for i, name in enumerate(names):
        word = name + ("," if i < len(names) - 1 else "")
        if not empty and len(line) + len(word) > width:
            yield Line(line)
            line, empty = hang, True
        while len(line) + len(word) > width:
            end = break_name(word, width - len(line))
            yield Line(line + word[:end])
            word, line = word[end:], hang
        line += word
        empty = False
    yield Line(line)
