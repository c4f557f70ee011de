# SPDX-License-Identifier: Apache-2.0
"""What all importers share: the Capture under construction, and reading text line by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.model.capture import Capture, Frame, Lock, LockKind, Module, Note, Process, Thread

__all__ = [
    "MAX_FRAMES",
    "MAX_LINE",
    "MAX_THREADS",
    "Dump",
    "Format",
    "LineReader",
    "Loaded",
    "Pool",
    "basename",
    "line_format",
    "number",
    "read_lines",
    "squeeze",
]

MAX_THREADS = 500_000
MAX_FRAMES = 1_000
MAX_LINE = 65_536
MAX_DISTINCT = 200_000
"""Distinct frames of one dump: real ones have some thousands."""
MAX_NOTES = 1_000
_USUAL_LINE = 512
_ADDRESS = re.compile(r"0x[0-9a-f]{1,16}")
_BLANKS = re.compile(r"(\s{64})\s+")

Loaded = tuple[list[Capture], str]
"""The captures of one format, and the remaining text."""


class Format(msgspec.Struct, frozen=True):
    """One format: its name, a quick check, and its reader."""

    name: str
    sniff: Callable[[str], bool]
    """A quick check; never False for text that ``load`` can read."""
    load: Callable[[str, str], Loaded]


class Pool:
    """Frames, modules and stacks, each value one object, for one dump or several of a file."""

    def __init__(self) -> None:
        self.frames: dict[tuple[object, ...], Frame] = {}
        self.modules: dict[str, Module] = {}
        self.stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}

    def module(self, path: str) -> Module:
        """Return the module of a path."""
        module = self.modules.get(path)
        if module is None:
            module = self.modules[path] = Module(process=0, path=path)
        return module

    def stack(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        """Return the stack of these frames of this pool."""
        # They live as long as the pool, so their ids are unique.
        key = tuple(map(id, frames))
        stack = self.stacks.get(key)
        if stack is None:
            stack = self.stacks[key] = tuple(frames)
        return stack


class Dump:
    """One capture that grows; equal frames, and equal stacks, are one object."""

    def __init__(
        self,
        backend: str,
        name: str,
        *,
        pid: int = 0,
        exe: str | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.pid = pid
        self.exe = exe
        self.comm: str | None = None
        self.strings: dict[str, str] = {}
        self.others: list[Process] = []
        self.threads: list[Thread] = []
        self.locks: list[Lock] = []
        self.notes: list[Note] = []
        self.time_ns: int | None = None
        self._pool = pool or Pool()
        self._lock_index: dict[tuple[int, str], int] = {}
        self._process_index: dict[int, int] = {}
        self._cut = 0

    def process(self, pid: int, comm: str) -> int:
        """Return the index of a process; the first one is the dump's own."""
        if not self.pid:
            self.pid, self.comm = pid, comm
        if pid == self.pid:
            return 0
        index = self._process_index.get(pid)
        if index is None:
            self.others.append(Process(pid=pid, comm=comm))
            index = self._process_index[pid] = len(self.others)
        return index

    def frame(
        self,
        symbol: str | None,
        *,
        module: str | None = None,
        pc: int | None = None,
        source: str | None = None,
        offset: int | None = None,
        symbol_offset: int | None = None,
        kernel: bool = False,
    ) -> Frame:
        """Return the frame of these values; meaningless names become None."""
        if symbol in ("", "??", "[unknown]", "n/a", "<unknown>"):
            symbol = None
        elif symbol is not None and symbol.startswith("0x") and _ADDRESS.fullmatch(symbol):
            if pc is None:
                pc = int(symbol, 16)
            symbol = None
        key = (symbol, module, pc, source, offset, symbol_offset, kernel)
        frame = self._pool.frames.get(key)
        if frame is None:
            if len(self._pool.frames) >= MAX_DISTINCT:
                raise StallscopeError(
                    f"{self.name}: more than {MAX_DISTINCT} different frames in one dump: split it"
                )
            frame = self._pool.frames[key] = Frame(
                symbol=symbol,
                module=self._pool.module(module) if module else None,
                pc=pc,
                source=source,
                offset=offset,
                symbol_offset=symbol_offset,
                kernel=kernel,
            )
        return frame

    def lock(self, address: int, kind: LockKind, *, symbol: str | None = None, **more: Any) -> int:
        """Return the index of the lock; add it or its new facts."""
        key = (address, "" if address else symbol or "")
        index = self._lock_index.get(key)
        if index is None:
            index = self._lock_index[key] = len(self.locks)
            more.setdefault("source", "frames")
            self.locks.append(Lock(process=0, address=address, kind=kind, symbol=symbol, **more))
            return index
        known = self.locks[index]
        changes = {
            field: value
            for field, value in {"symbol": symbol, **more}.items()
            if value is not None and getattr(known, field) is None
        }
        if changes:
            self.locks[index] = msgspec.structs.replace(known, **changes)
        return index

    def knows_lock(self, address: int) -> bool:
        """Return whether some thread waits for the lock at this address."""
        return (address, "") in self._lock_index

    def thread(
        self,
        frames: Sequence[Frame],
        *,
        tid: int = 0,
        unwind: str = "complete",
        kernel_frames: Sequence[Frame] = (),
        **fields: Any,
    ) -> None:
        """Add a thread, innermost frame first; a stack that is too deep is cut, with a note."""
        if len(frames) > MAX_FRAMES:
            frames = frames[:MAX_FRAMES]
            self._cut += 1
            unwind = "limit"
        self.add(
            Thread(
                tid=tid,
                frames=self.stack(frames),
                kernel_frames=self.stack(kernel_frames[:MAX_FRAMES]) if kernel_frames else (),
                unwind=unwind,
                **fields,
            )
        )

    def add(self, thread: Thread) -> None:
        """Add a thread whose stack came from `stack`."""
        if len(self.threads) >= MAX_THREADS:
            raise StallscopeError(
                f"{self.name}: more than {MAX_THREADS} threads in one dump: split it"
            )
        self.threads.append(thread)

    def stack(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        """Return the stack of these frames, one object each; a tuple is one already."""
        return frames if type(frames) is tuple else self._pool.stack(frames)

    def _modules(self) -> tuple[Module, ...]:
        """Return the modules that the threads' frames are of, in their order."""
        stacks = {id(thread.frames): thread.frames for thread in self.threads}
        stacks.update((id(t.kernel_frames), t.kernel_frames) for t in self.threads)
        used = (frame.module for frames in stacks.values() for frame in frames)
        return tuple({id(module): module for module in used if module is not None}.values())

    def cut(self) -> None:
        """Count a stack that was too deep."""
        self._cut += 1

    def note(self, code: str, message: str) -> None:
        """Add a note about what is missing, up to a thousand."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(Note(code, message))

    def capture(self) -> Capture:
        """Return the capture; waiters are counted here."""
        waiters: dict[int, int] = {}
        for thread in self.threads:
            if thread.lock is not None:
                waiters[thread.lock] = waiters.get(thread.lock, 0) + thread.count
        if self._cut:
            self.note("frames-cut", f"stacks cut at {MAX_FRAMES} frames: {self._cut}")
        return Capture(
            backend=self.backend,
            processes=(
                Process(pid=self.pid, exe=self.exe, comm=self.comm, strings=self.strings),
                *self.others,
            ),
            threads=tuple(self.threads),
            locks=tuple(
                msgspec.structs.replace(lock, waiters=waiters.get(index, 0))
                for index, lock in enumerate(self.locks)
            ),
            modules=self._modules(),
            notes=tuple(self.notes),
            time_ns=self.time_ns,
            path=self.name,
        )


class LineReader:
    """An importer that sees one line at a time. It may find several captures in one text."""

    backend = ""
    """The backend of its captures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.captures: list[Capture] = []
        self.dump = Dump(self.backend, name)

    def line(self, line: str) -> bool:
        """Take a line; return False where it is not of the format."""
        raise NotImplementedError

    def end(self) -> None:
        """Make a capture of the lines so far, if they have threads, and begin the next."""
        if self.dump.threads:
            self.captures.append(self.dump.capture())
        self.dump = Dump(self.backend, self.name)

    def finish(self) -> list[Capture]:
        """Return what was read."""
        self.end()
        return self.captures


def squeeze(line: str) -> str:
    """Shorten the longest runs of blanks: regular expressions take quadratic time on them."""
    return line if len(line) <= _USUAL_LINE else _BLANKS.sub(r"\1", line)


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        line = squeeze(line[:MAX_LINE])
        yield line[:-1] if line.endswith("\r") else line


def read_lines(text: str, reader: LineReader) -> Loaded:
    """Give the reader every line; return its captures, and the lines that it refused."""
    rest = [line for line in _lines(text) if not reader.line(line)]
    captures = reader.finish()
    return captures, "\n".join(rest) if captures else text


def line_format(sniff: Callable[[str], bool], reader: type[LineReader]) -> Format:
    """Return the format of a reader that sees one line at a time."""
    return Format(reader.backend, sniff, lambda text, name: read_lines(text, reader(name)))


def basename(path: str) -> str:
    """Return the last part of a path."""
    return path.rsplit("/", 1)[-1]


_DIGITS = re.compile(r"\d{1,18}")


def number(text: str | None) -> int:
    """Return a decimal number of limited length, 0 for anything else."""
    if text is None or _DIGITS.fullmatch(text) is None:
        return 0
    value = int(text)
    return value if value < 2**31 else 0
