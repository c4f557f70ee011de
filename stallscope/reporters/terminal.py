# SPDX-License-Identifier: Apache-2.0
"""The report for people: verdict first, then what it rests on, then what is not known."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from stallscope.analyzers.analysis import Analysis, Finding, Group, Link
from stallscope.analyzers.names import bare
from stallscope.analyzers.scene import named_as_process
from stallscope.model import Frame, Lock, LockKind, Thread
from stallscope.reporters.connection import connection_query
from stallscope.reporters.counts import (
    count_labels,
    count_states,
    count_threads,
    target_process,
    thread_of,
    trust,
)
from stallscope.text import clean

__all__ = ["Line", "Options", "print_lines", "render"]

_MAX_NAME = 100
"""Characters of one function's name, unless all is asked for."""
_BLOCKER_FRAMES = 30
_OTHER_FINDINGS = 5
_LOCKS = 8


class Line(msgspec.Struct, frozen=True):
    """One line of output and how it looks on a terminal."""

    text: str
    style: str = ""


class Options(msgspec.Struct, frozen=True):
    """How much is shown."""

    width: int = 80
    top: int = 10
    """Groups; 0 is all."""
    full: bool = False
    """Whole names and stacks."""


def render(analysis: Analysis, options: Options) -> list[Line]:
    """Return the whole report; nothing in it can steer a terminal."""
    return list(_Report(analysis, options).lines())


def print_lines(lines: Sequence[Line], stream: TextIO) -> None:
    """Print plain text, or colours where the stream is a terminal that wants them."""
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain:
        for line in lines:
            stream.write(line.text + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in lines:
        console.print(Text(line.text, style=line.style), soft_wrap=True)


class _Report:
    def __init__(self, analysis: Analysis, options: Options) -> None:
        self.analysis = analysis
        self.capture = analysis.capture
        self.options = options
        self.total = count_threads(analysis)
        self.names = {
            t.tid: t.name
            for t in self.capture.threads
            if t.tid and not named_as_process(self.capture, t)
        }

    def lines(self) -> Iterator[Line]:
        findings = self.analysis.findings
        yield from self._wrap(self._verdict(), style="bold red" if findings else "bold green")
        if findings:
            yield from self._why(findings[0])
        yield from self._cycles()
        yield from self._others()
        yield from self._groups()
        yield from self._facts()
        yield from self._unread()

    def _verdict(self) -> str:
        if not self.total:
            return f"{self._server()}: no thread in it: nothing to say."
        if not self.analysis.findings:
            return f"{self._server()}: no stall found; {self._states()}."
        finding = self.analysis.findings[0]
        blocker = finding.blocker
        by = "; the blocker is not known"
        if blocker is not None:
            likely = "" if blocker.certain else "likely "
            by = f"; {likely}blocked by {self._thread(blocker.tid)}, {blocker.state}"
        return f"{self._server()}: {self._finding(finding)}{by}."

    def _finding(self, finding: Finding) -> str:
        if finding.signature is None:  # its title counts the threads itself
            what = f"{finding.title}, {finding.threads} of {self.total} threads"
        else:
            what = (
                f"{finding.threads} of {_threads(self.total)}: {finding.title}"
                f" [{finding.signature}]"
            )
        return f"{what} (confidence {finding.confidence:.2f})"

    def _server(self) -> str:
        analysis = self.analysis
        index = target_process(analysis)
        process = None if index is None else self.capture.processes[index]
        exe = process.exe.rsplit("/", 1)[-1] if process is not None and process.exe else None
        comm = process.comm if process is not None else None
        name = exe or comm or analysis.server or "this dump"
        if analysis.version:
            name += f" {analysis.version}"
        if process is not None and process.pid:
            name += f" (pid {process.pid})"
        return name

    def _thread(self, tid: int) -> str:
        name = self.names.get(tid)
        return f"thread {tid or '?'}" + (f' "{name}"' if name else "")

    def _states(self) -> str:
        states = count_states(self.analysis)
        parts = [f"{states[name]} {name}" for name in ("waiting", "running", "idle")]
        return f"{_threads(self.total)}: " + ", ".join(parts)

    def _why(self, finding: Finding) -> Iterator[Line]:
        blocker = finding.blocker
        if blocker is not None:
            yield from self._title("Blocker" if blocker.certain else "Blocker, likely")
            head = f"{self._thread(blocker.tid)}, {blocker.state}"
            yield from self._wrap(f"{head} (known from: {blocker.source})", indent="  ")
            thread = thread_of(self.analysis, blocker.tid)
            if thread is not None:
                yield from self._in_kernel(thread)
                query = connection_query(self.analysis, thread)
                if query is not None:
                    text = f"whose connection: {query}"
                    yield from self._wrap(text, indent="  ", hang="    ")
            if blocker.sql:
                yield from self._wrap(f"SQL: {blocker.sql}", indent="  ")
            yield from self._stack(blocker.frames, trust([thread] if thread else []))
        if finding.locks:
            yield from self._title("Locks")
            for lock in finding.locks[:_LOCKS]:
                yield from self._wrap(self._lock(lock), indent="  ", hang="    ")
            if len(finding.locks) > _LOCKS:
                yield Line(f"  … and {len(finding.locks) - _LOCKS} more")
        if len(finding.chain) > 1:
            yield from self._title("Chain, root first")
            for link in finding.chain:
                yield from self._wrap(self._link(link), indent="  ", hang="    ")
        for title, items in (
            ("Evidence", finding.evidence),
            ("Against it, or not known", finding.against),
            ("What to do", finding.remedies),
        ):
            yield from self._items(title, items)
        # Web addresses: half of one cannot be opened. They are the catalog's, not the target's.
        yield from self._items("References", finding.references, whole=True)

    def _link(self, link: Link) -> str:
        waiters = f"{_threads(link.threads)} {'waits' if link.threads == 1 else 'wait'}"
        parts = [waiters] if link.threads else []
        if link.tid:
            parts.append(
                f"blocked by {self._thread(link.tid)}" if parts else self._thread(link.tid)
            )
        return f"{link.signature}: {', '.join(parts) or 'no thread waits'}"

    def _in_kernel(self, thread: Thread) -> Iterator[Line]:
        """Say what the thread does in the kernel: waits for a disk look like this."""
        call = thread.syscall
        parts = [f"state {thread.state}"] if thread.state != "?" else []
        if call is not None:
            parts.append(f"in the system call {call.name or call.nr}")
        if thread.kernel_frames:
            shown = thread.kernel_frames if self.options.full else thread.kernel_frames[:4]
            parts.append("kernel: " + " < ".join(map(str, shown)))
        if parts:
            yield from self._wrap(", ".join(parts), indent="  ", hang="    ")

    def _lock(self, lock: Lock) -> str:
        name = lock.symbol or f"{lock.address:#x}"
        where = f" at {lock.address:#x}" if lock.symbol else ""
        if lock.owner_tid:
            holder = f"held by {self._thread(lock.owner_tid)}"
        elif lock.owner_raw:
            holder = f"its word names {lock.owner_raw}, which is no thread of the process"
        elif lock.readers:
            holder = f"held by {lock.readers} reader{'' if lock.readers == 1 else 's'}"
        elif lock.kind is LockKind.MUTEX and lock.source == "futex":
            holder = "free when it was read"
        else:
            holder = "holder not known"
        unstable = "" if lock.stable else "; it changed while it was read"
        waiters = f"{lock.waiters} wait{'s' if lock.waiters == 1 else ''} [{lock.source}]"
        return f"{name} ({lock.kind}{where}): {holder}, {waiters}{unstable}"

    def _cycles(self) -> Iterator[Line]:
        if self.analysis.cycles:
            yield from self._title("Threads that wait for each other in a ring")
        for cycle in self.analysis.cycles:
            ring = " -> ".join(str(tid) for tid in (*cycle, cycle[0]))
            yield from self._wrap(ring, indent="  ", style="bold red")

    def _others(self) -> Iterator[Line]:
        """Name the other findings; those that the verdict explains stand in its chain."""
        chained = {link.signature for found in self.analysis.findings[:1] for link in found.chain}
        findings = [f for f in self.analysis.findings[1:] if f.signature not in chained]
        if findings:
            yield from self._title("Also seen")
        for finding in findings[:_OTHER_FINDINGS]:
            yield from self._wrap(self._finding(finding), indent="  ", hang="    ")
        if len(findings) > _OTHER_FINDINGS:
            yield Line(f"  … and {len(findings) - _OTHER_FINDINGS} more (--json has all)")

    def _groups(self) -> Iterator[Line]:
        busy = [group for group in self.analysis.groups if not group.idle]
        idle = [group for group in self.analysis.groups if group.idle]
        top = self.options.top or len(busy)
        if busy or idle:
            yield from self._title("Threads by stack, innermost frame first")
        for group in busy[:top]:
            yield from self._group(group)
        if len(busy) > top:
            rest = sum(group.count for group in busy[top:])
            yield Line(f"  … {_threads(rest)} in {len(busy) - top} more (--top 0 shows all)")
        if idle and self.options.full:
            for group in idle:
                yield from self._group(group)
        elif idle:
            count = sum(group.count for group in idle)
            stacks = "1 stack" if len(idle) == 1 else f"{len(idle)} stacks"
            yield Line(f"  {count:5d} idle    in {stacks} (--full shows them)", "dim")

    def _group(self, group: Group) -> Iterator[Line]:
        head = f"  {group.count:5d} {group.state:<7} "
        doubts = trust([self.capture.threads[i] for i in group.threads])
        if self.options.full:
            yield Line(head.rstrip())
            yield from self._stack(self._whole(group), doubts)
            return
        names = [self._name(frame) for frame in group.frames] or ["(no frame could be read)"]
        yield from _flow(names, head, " " * 16, self.options.width)
        if doubts:
            yield from self._wrap(doubts, indent=" " * 16)

    def _whole(self, group: Group) -> Sequence[str]:
        """Return the names of the group's first thread as its files have them."""
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
        name = clean(bare(frame))
        if len(name) <= _MAX_NAME:
            return name
        # Both ends tell: the namespace, and the function.
        return f"{name[: _MAX_NAME // 3]}…{name[-(_MAX_NAME - _MAX_NAME // 3 - 1) :]}"

    def _facts(self) -> Iterator[Line]:
        capture = self.capture
        yield from self._title("Capture")
        backend = f"backend: {capture.backend}"
        if capture.backend_reason:
            reason = capture.backend_reason.removeprefix(f"{capture.backend}: ")
            backend += f" ({reason})"
        yield from self._wrap(backend, indent="  ", hang="    ")
        yield from self._wrap(self._states(), indent="  ")
        labels = count_labels(self.analysis)
        if any(labels.values()):
            text = ", ".join(f"{count} {label}" for label, count in labels.items())
            yield from self._wrap(f"stacks: {text}", indent="  ")
        else:
            text = "stacks: as the dump has them; it does not say how exact they are"
            yield from self._wrap(text, indent="  ")
        yield from self._wrap(self._stopped(), indent="  ", hang="    ")
        times = [
            f"{name} {value / 1e6:.1f} ms"
            for name, value in (("snapshot", capture.snapshot_ns), ("capture", capture.elapsed_ns))
            if value is not None
        ]
        if times:
            yield Line(f"  {', '.join(times)}")
        if capture.path is not None:
            yield from self._wrap(f"file: {capture.path}", indent="  ")
        elif self.analysis.inputs:
            source = self.analysis.inputs[0]
            yield from self._wrap(f"file: {source['path']} ({source['format']})", indent="  ")

    def _stopped(self) -> str:
        capture = self.capture
        stopped = [t for t in capture.threads if t.stopped_ns > 0]
        if stopped:
            longest = max(capture.stopped_ns, *(t.stopped_ns for t in stopped)) / 1e6
            count = sum(t.count for t in stopped)
            return f"{_threads(count)} stopped, the longest for {longest:.3f} ms"
        if not any(t.label is not None for t in capture.threads):
            return "threads stopped: the dump does not say"
        return "0 threads stopped (stopped_ns 0)"

    def _unread(self) -> Iterator[Line]:
        notes = Counter(f"{note.message} [{note.code}]" for note in self.capture.notes)
        items = [text if n == 1 else f"{text} ({n} times)" for text, n in notes.items()]
        cut: dict[str, int] = {}
        for thread in self.capture.threads:
            if thread.unwind not in ("complete", "not-tried") or not thread.frames:
                why = thread.unwind if thread.unwind != "complete" else "not-tried"
                cut[why] = cut.get(why, 0) + thread.count
        items += [
            (
                f"1 stack ends before its outermost frame ({why})"
                if count == 1
                else f"{count} stacks end before their outermost frame ({why})"
            )
            for why, count in sorted(cut.items())
            if why != "not-tried"
        ]
        if cut.get("not-tried"):
            items.append(f"{_threads(cut['not-tried'])} without a stack")
        yield from self._items("Not read, or not known", items)

    def _title(self, title: str) -> Iterator[Line]:
        yield Line("")
        yield Line(title, "bold")

    def _items(self, title: str, items: Sequence[str], *, whole: bool = False) -> Iterator[Line]:
        if items:
            yield from self._title(title)
        for item in items:
            yield from self._wrap(item, indent="  - ", hang="    ", whole=whole)

    def _wrap(
        self,
        text: str,
        *,
        indent: str = "",
        hang: str | None = None,
        style: str = "",
        whole: bool = False,
    ) -> Iterator[Line]:
        """Wrap text; ``whole`` leaves words that are longer than a line as they are."""
        for line in textwrap.wrap(
            clean(" ".join(text.split())),
            width=self.options.width,
            initial_indent=indent,
            subsequent_indent=" " * len(indent) if hang is None else hang,
            break_on_hyphens=False,
            break_long_words=not whole,
        ) or [indent]:
            yield Line(line, style)


def _whole(frame: Frame) -> str:
    where = [frame.module.path.rsplit("/", 1)[-1]] if frame.module and frame.symbol else []
    where += [frame.source] if frame.source else []
    return f"{frame}  ({', '.join(where)})" if where else str(frame)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


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
            room = width - len(line)
            yield Line(line + word[:room])
            word, line = word[room:], hang
        line += word
        empty = False
    yield Line(line)
