# SPDX-License-Identifier: Apache-2.0
"""What threads did lately, as the agent writes it for other processes.

Each agent has a folder, which it locks, with two files of lines that are written in turn: a full
one is followed by the other, which is emptied. Nothing is synced: after a power loss nobody needs
it. A line is an object, of the server that the following ones are of, or a list, a sample. Lines
are in the order in which they were written, whatever time they have: clocks are set.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stallscope.base import host
from stallscope.base.errors import StallscopeError
from stallscope.base.text import clean
from stallscope.base.times import Count, Moment
from stallscope.model.waitlines import ThreadRow, ThreadSample
from stallscope.store import files, layout, locking, owners
from stallscope.store.records import DAMAGE, encode

__all__ = [
    "MAX_BYTES",
    "MAX_OF_DEAD",
    "AgentHistory",
    "HistoryTarget",
    "HistoryWriter",
    "find",
    "prune",
]

SCHEMA = "stallscope.thread-history/1"
MAX_BYTES = 4 << 20
"""Of one file."""
MAX_OF_DEAD = 4
"""How many agents that have ended keep their history."""
MAX_SAMPLES = 4_000
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HistoryTarget(msgspec.Struct, frozen=True):
    """The server that samples are of."""

    agent: Count
    name: str
    pids: tuple[Count, ...]
    """The main process first."""
    boot: str = ""
    pid_namespace: Count = 0
    """Pids mean the same in one boot and one namespace."""
    turn: Count = 0
    """Which file this is, of all that were begun: the later one has the higher number."""
    schema: str = SCHEMA


class AgentHistory(msgspec.Struct, frozen=True):
    """What an agent wrote."""

    target: HistoryTarget
    samples: tuple[ThreadSample, ...]
    wrong: int = 0
    """Lines that could not be read."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    count: Count
    state: str | None = None
    call: str | None = None
    kind: str | None = None
    name: str | None = None
    channel: str | None = None


class _Sample(msgspec.Struct, frozen=True, array_like=True):
    time_ns: Moment
    threads: Count
    rows: tuple[_Row, ...] = ()


_target = msgspec.json.Decoder(HistoryTarget)
_sample = msgspec.json.Decoder(_Sample)


class HistoryWriter:
    """The one writer of an agent's history. Its methods raise StallscopeError."""

    def __init__(self, dest: Path, max_bytes: int = MAX_BYTES) -> None:
        self._above = dest / layout.HISTORY
        self.path = self._above
        """Its own folder, from the first sample on."""
        self._max_bytes = max_bytes
        self._held: locking.Held | None = None
        self._descriptor = -1
        self._turns = 0
        self._boot = host.boot_id()
        self._size = 0
        self._target: HistoryTarget | None = None
        self._closed = False

    def append(self, name: str, pids: tuple[int, ...], samples: Sequence[ThreadSample]) -> None:
        """Append samples of a server."""
        if self._closed or not samples:
            return
        target = self._head(name, pids)
        lines = b"".join(map(_line, samples))
        head = encode(target) + b"\n"
        try:
            if self._descriptor < 0 or self._size + len(head) + len(lines) > self._max_bytes:
                self._turn()
                target, self._target = self._head(name, pids), None
                head = encode(target) + b"\n"
            self._write(lines if target == self._target else head + lines)
        except OSError as error:
            raise StallscopeError(
                f"cannot write {self.path}: {files.one_line_of(error)}"
            ) from error
        self._target = target

    def _head(self, name: str, pids: tuple[int, ...]) -> HistoryTarget:
        namespace = host.pid_namespace()
        return HistoryTarget(
            os.getpid(), clean(name), pids, self._boot, namespace, max(1, self._turns)
        )

    def close(self) -> None:
        """Close it; the files stay for a while."""
        self._closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._held is not None:
            self._held.release()

    def _turn(self) -> None:
        """Continue with the other file, from its beginning."""
        first = self._turns == 0
        if first:
            files.make_folder(self._above)
            self.path, self._held = owners.take_folder(self._above)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with files.folder(self.path) as inside:
            if first:  # of an earlier process with this pid
                _remove_files(inside)
            place = layout.HISTORY_FILES[self._turns % len(layout.HISTORY_FILES)]
            descriptor = os.open(place, _OPEN, 0o600, dir_fd=inside)
        self._turns += 1
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StallscopeError(f"{self.path}: its files are not regular")
        os.ftruncate(descriptor, 0)
        self._descriptor, self._size = descriptor, 0

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)


def _line(sample: ThreadSample) -> bytes:
    rows = [[*msgspec.structs.astuple(row)] for row in sample.rows]
    return encode([sample.time_ns, sample.threads, rows]) + b"\n"


def find(dest: Path, pids: Iterable[int]) -> AgentHistory | None:
    """Return what the running agent wrote that watches one of these processes; None: there is none.

    Raises: StallscopeError where the store cannot be read.
    """
    wanted = set(pids)
    found: list[AgentHistory] = []
    try:
        with files.folder(dest) as top, files.folder(layout.HISTORY, top) as inside:
            for name in filter(layout.is_history_name, files.names(inside)):
                if _runs(name, inside):
                    one = _read(name, inside)
                    if one is not None and wanted & _pids(one.target):
                        found.append(one)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StallscopeError(f"cannot read {dest}: {files.one_line_of(error)}") from error
    return max(found, key=lambda one: one.samples[-1].time_ns if one.samples else 0, default=None)


def _runs(name: str, inside: int) -> bool:
    held = locking.is_held(name, inside)
    # Where locks do not work: pids of others mean nothing here, and are sorted out by their file.
    return Path("/proc", name.partition("-")[0]).exists() if held is None else held


def _pids(target: HistoryTarget) -> set[int]:
    """Return the pids of a target, as they are known here."""
    here = (host.boot_id(), host.pid_namespace())
    return set(target.pids) if (target.boot, target.pid_namespace) == here else set()


def _touched(name: str, inside: int) -> float:
    """Return when a folder or one of its files was last changed; 0: it cannot be read."""
    try:
        times = [os.stat(name, dir_fd=inside, follow_symlinks=False).st_mtime]
        with files.folder(name, inside) as below:
            found = [files.regular(file, below) for file in layout.HISTORY_FILES]
    except OSError:
        return 0.0
    return max([*times, *(status.st_mtime for status in found if status is not None)])


def _read(name: str, inside: int) -> AgentHistory | None:
    """Read the files of one agent; None where none of them names its server."""
    parts: list[tuple[HistoryTarget, list[ThreadSample]]] = []
    wrong = 0
    with contextlib.suppress(FileNotFoundError), files.folder(name, inside) as below:
        for file in layout.HISTORY_FILES:
            with contextlib.suppress(FileNotFoundError, StallscopeError):
                samples: list[ThreadSample] = []
                target, not_read = _take(files.read(file, below, 2 * MAX_BYTES), samples)
                wrong += not_read
                if target is not None:
                    parts.append((target, samples))
    if not parts:
        return None
    parts.sort(key=lambda part: part[0].turn)
    together = [sample for _, samples in parts for sample in samples]
    return AgentHistory(parts[-1][0], tuple(together[-MAX_SAMPLES:]), wrong)


def _take(data: bytes, samples: list[ThreadSample]) -> tuple[HistoryTarget | None, int]:
    """Decode one file, whose last line may be incomplete; return the last server that has samples
    in it, and how many lines could not be read."""
    wrong = 0
    last: HistoryTarget | None = None
    target: HistoryTarget | None = None
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            if line.startswith(b"{"):
                target = _target.decode(line)
                continue
            found = _sample.decode(line)
            rows = tuple(ThreadRow(*msgspec.structs.astuple(row)) for row in found.rows)
        except DAMAGE:
            wrong += 1
            continue
        samples.append(ThreadSample(found.time_ns, found.threads, rows))
        last = target or last
    return last, wrong


def prune(dest: Path) -> None:
    """Remove the history of agents that have ended, but for the last few.

    Nothing is removed that is not from stallscope. Raises: OSError.
    """
    folder = dest / layout.HISTORY
    with contextlib.suppress(FileNotFoundError), files.folder(folder) as inside:
        dead = [
            (_touched(name, inside), name)
            for name in filter(layout.is_history_name, files.names(inside))
            if _has_ended(folder, name, inside)
        ]
        dead.sort(reverse=True)
        for _, name in dead[MAX_OF_DEAD:]:
            _remove(folder / name, name, inside)


def _has_ended(folder: Path, name: str, inside: int) -> bool:
    if name.isdecimal():  # of an earlier version, whose lock counts all the same
        return locking.is_held(name, inside) is False
    return owners.is_abandoned(folder, name, inside)


def _remove(path: Path, name: str, inside: int) -> None:
    """Remove one folder, unless an agent has taken it meanwhile."""
    try:
        held = locking.take(path)
    except (locking.Locked, OSError):
        return
    try:
        with files.folder(name, inside) as below:
            _remove_files(below)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=inside)
    finally:
        held.release()


def _remove_files(inside: int) -> None:
    for name in layout.HISTORY_FILES:
        if files.regular(name, inside) is not None:
            os.unlink(name, dir_fd=inside)
