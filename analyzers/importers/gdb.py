# SPDX-License-Identifier: Apache-2.0
"""gdb, pstack, gstack and quickstack text: ``thread apply all bt`` or ``bt full``, whole or torn.

What gdb does not say stays unknown: the state of a thread is ``?``, its label None. Where gdb
printed the address of the lock that a thread waits for, the capture has that lock, without owner.
"""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.importers import gdb_scan
from stallscope.analyzers.importers.dump import MAX_FRAMES, MAX_THREADS, Dump, Loaded, Pool
from stallscope.model.capture import Capture, Frame, LockKind, Thread

__all__ = ["MAX_FRAMES", "MAX_THREADS", "Reader", "load"]

MAX_POOL = 200_000
"""Distinct frames of a file after which the next dump begins with none."""


def load(text: str, name: str) -> Loaded:
    """Read all dumps in the text, one Capture each."""
    reader = Reader(name)
    piece = gdb_scan.scan(text)
    return [*reader.add(piece), *reader.finish()], piece.rest


class Reader:
    """Puts the scanned pieces of a file together, in order, and separates one dump from the
    next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pool = Pool()
        self._start(gdb_scan.DumpStart())

    def _start(self, start: gdb_scan.DumpStart) -> None:
        if len(self.pool.frames) > MAX_POOL:
            self.pool = Pool()
        self.dump = Dump("gdb", self.name, pid=start.pid, exe=start.exe, pool=self.pool)
        self.seen: set[int] = set()
        self.numbers: set[int] = set()

    def add(self, piece: gdb_scan.Scan) -> Iterator[Capture]:
        """Take the next piece; yield the dumps that it ends."""
        frames = [self._frame(raw) for raw in piece.frames]
        stacks: dict[int, tuple[Frame, ...]] = {}
        for item in piece.items:
            if isinstance(item, gdb_scan.DumpStart):
                if self.dump.threads:
                    yield self.dump.capture()
                    self._start(item)
                elif item.pid:
                    self.dump.pid, self.dump.exe = item.pid, item.exe
                continue
            if (item.tid and item.tid in self.seen) or (item.number in self.numbers):
                yield self.dump.capture()
                self._start(gdb_scan.DumpStart())
            if piece.quickstack:
                self.dump.backend = "quickstack"
            stack = stacks.get(item.stack)
            if stack is None:
                stack = self.dump.stack([frames[i] for i in piece.stacks[item.stack]])
                stacks[item.stack] = stack
            self._thread(item, stack)

    def _frame(self, raw: gdb_scan.RawFrame) -> Frame:
        symbol, pc, source, library = raw
        return self.dump.frame(symbol, module=library, pc=pc, source=source)

    def _thread(self, item: gdb_scan.RawThread, stack: tuple[Frame, ...]) -> None:
        dump = self.dump
        if item.number == 1 and not dump.pid:
            dump.pid = item.tid
        if not stack:
            dump.note("no-frames", f"thread {item.tid} has no frames in {self.name}")
            return
        unwind = item.unwind
        if item.continues:
            if dump.threads:
                self._continue(dump.threads.pop(), item, stack)
                return
            unwind = "lost" if unwind == "complete" else unwind  # its first frames are not here
        if item.cut:
            dump.cut()
        lock = None
        if item.lock is not None:
            address, kind, symbol = item.lock
            lock = dump.lock(address, LockKind(kind), symbol=symbol)
        dump.add(
            Thread(
                item.tid,
                stack,
                name=item.name,
                count=item.count,
                lock=lock,
                unwind=unwind,
            )
        )
        if item.tid:
            self.seen.add(item.tid)
        if item.number:
            self.numbers.add(item.number)

    def _continue(self, before: Thread, item: gdb_scan.RawThread, stack: tuple[Frame, ...]) -> None:
        """Put the rest of a stack behind its start, which the piece before had."""
        if len(before.frames) == MAX_FRAMES and before.unwind == "limit":
            self.dump.add(before)  # cut already
            return
        whole = item.first <= len(before.frames)
        ends = [before.unwind, item.unwind, "complete" if whole else "lost"]
        self.dump.thread(
            [*before.frames, *stack],
            tid=before.tid,
            name=before.name,
            count=before.count,
            lock=before.lock,
            unwind=next((end for end in ends if end != "complete"), "complete"),
        )

    def finish(self) -> Iterator[Capture]:
        """Yield the last dump."""
        if self.dump.threads:
            yield self.dump.capture()
