# SPDX-License-Identifier: Apache-2.0
"""Watch the waits of a live server: lines of ``stallscope.waits/1`` as the probe writes them."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors import pins, processes, rings
from stallscope.collectors.ownthreads import Ignoring
from stallscope.collectors.pins import Guard
from stallscope.collectors.probe import ProbeError
from stallscope.collectors.probecommands import command
from stallscope.collectors.probestream import Stream
from stallscope.collectors.processes import NotRunningError, Selector, Server
from stallscope.model import waitlines
from stallscope.model.waitlines import Notice, WaitLine

__all__ = ["Follower", "Options", "arguments", "ended_by_signals", "find_again", "watch"]

_GRACE_SECONDS = 60.0
"""Seconds that the probe may take beyond an interval: it reads symbols of large files once."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Options(msgspec.Struct, frozen=True):
    """The user's options for the watch."""

    interval: float = 1.0
    duration: float | None = None
    """None: until it is ended."""
    kinds: tuple[str, ...] = ()
    thresholds: tuple[str, ...] = ()
    """``MS`` or ``KIND=MS``."""
    top: int = 20
    events: bool = False
    uprobes: bool = True
    follow: bool = False
    force_kernel: bool = False
    backend: str = "auto"
    """``inproc``: by the in-process library; ``poll``: from /proc; ``auto``: the best that
    works."""
    ring: Path | None = None
    pack_dirs: tuple[Path, ...] = ()
    """Directories of packs, before the usual ones."""
    at_rest: bool = False
    """Attach nothing until a wait is past half of its threshold."""
    history: bool = False
    """Sample once a second what threads do."""


def arguments(pids: tuple[int, ...], options: Options) -> list[str]:
    """Return the probe's command line."""
    args = command(
        "waits",
        pids,
        backend=options.backend,
        ring=options.ring,
        force_kernel=options.force_kernel,
        interval=options.interval,
        top=options.top,
        uprobes=options.uprobes,
        at_rest=options.at_rest,
        history=options.history,
        thresholds=options.thresholds,
        pack_dirs=options.pack_dirs,
    )
    if options.duration is not None:
        args += ["--duration", f"{options.duration:.3f}"]
    for kind in options.kinds:
        args += ["--kind", kind]
    if options.events:
        args.append("--events")
    if options.follow:
        args.append("--follow")
    return args


class Follower:
    """Find the server again after it has ended, and give the probe its new process.

    ``find`` looks for it; it raises NotRunningError where it is not there, StallscopeError where
    it cannot be distinguished from others. ``report`` is given a sentence for the user.
    """

    def __init__(
        self, server: Server, find: Callable[[Server], Server], report: Callable[[str], None]
    ) -> None:
        self._server = server
        self._find = find
        self._report = report
        self._descriptor = -1
        self._pause = _FIRST_PAUSE
        self._due = 0.0
        self._said = ""

    @property
    def server(self) -> Server:
        """Return the server as it was last found."""
        return self._server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def begin(self, stream: Stream) -> None:
        """Watch for the end of the server's main process."""
        try:
            self._descriptor = os.pidfd_open(self._server.main.pid)
        except ProcessLookupError:
            self._lost()
        else:
            stream.wake_on(self._descriptor)

    def tick(self, stream: Stream) -> float:
        """Check whether the server has ended, or is back; return when to be called again."""
        if stream.ending:
            return math.inf
        if self._descriptor >= 0:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return math.inf
            stream.forget(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._lost()
        if time.monotonic() >= self._due and self._look(stream):
            return math.inf
        return max(0.0, self._due - time.monotonic())

    def _lost(self) -> None:
        self._report(f"{self._server.name} (pid {self._server.main.pid}) has ended; waiting for it")
        self._pause = _FIRST_PAUSE
        self._due = 0.0

    def _look(self, stream: Stream) -> bool:
        try:
            found = self._find(self._server)
        except NotRunningError:
            self._later("")
            return False
        except StallscopeError as error:
            self._later(str(error))
            return False
        old, new = self._server.main, found.main
        if (new.pid, new.start_time) == (old.pid, old.start_time):  # /proc still shows it
            self._later("")
            return False
        self._server = found
        self._said = ""
        for pid in found.pids:
            stream.say(f"target {pid}")
        self._report(f"watching {found.name} (pid {found.main.pid})")
        self.begin(stream)
        return True

    def _later(self, why: str) -> None:
        if why and why != self._said:
            self._report(why)
        self._said = why
        self._due = time.monotonic() + self._pause
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)


def find_again(
    name: str, selector: Selector, guard: Guard | None = None
) -> Callable[[Server], Server]:
    """Return how to find a server by name: of several programs the one that the server was, as
    ``guard`` knows it, or else as the process before was."""

    def find(old: Server) -> Server:
        known = Guard(pin=pins.of(old)) if guard is None else guard
        return processes.find_server(name, selector, choose=known.choose)

    return find


@contextmanager
def ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` on Ctrl-C, SIGTERM and SIGHUP; a second one interrupts at once.

    An ignored signal (nohup) stays ignored.
    """
    caught = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal caught
        caught += 1
        if caught > 1:
            raise KeyboardInterrupt
        end()

    before = {}
    for number in _END_SIGNALS:
        old = signal.getsignal(number)
        if old is not signal.SIG_IGN:
            before[number] = old
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def watch(
    pids: tuple[int, ...],
    options: Options,
    report: Callable[[str], None],
    follower: Follower | None = None,
) -> Generator[tuple[WaitLine, bytes], None, None]:
    """Yield each line, parsed and as bytes, the final one last.

    Ctrl-C and SIGTERM end the probe, and its final line still comes. ``report`` is given a sentence
    for the user about an error that does not end the watch. Raises: StallscopeError where the
    probe fails, or prints a line that does not match the schema.
    """
    seen = False
    try:
        with (
            Stream(arguments(pids, options), max_line=waitlines.MAX_LINE) as stream,
            ended_by_signals(stream.end),
        ):
            if follower is not None:
                follower.begin(stream)
            for item in _lines(stream, pids, options, report, follower):
                seen = True
                yield item
    except ProbeError as error:
        if seen or options.backend == "inproc":
            raise
        raise ProbeError(rings.advice(error, pids)) from error


def _lines(
    stream: Stream,
    pids: tuple[int, ...],
    options: Options,
    report: Callable[[str], None],
    follower: Follower | None,
) -> Iterator[tuple[WaitLine, bytes]]:
    ignoring = Ignoring(stream.say)

    def tick() -> float:
        return min(ignoring.tick(), math.inf if follower is None else follower.tick(stream))

    def take(notice: Notice) -> None:
        if notice.type in ("ready", "target"):
            ignoring.begin(pids if follower is None else follower.server.pids)
        elif not ignoring.answered(notice) and notice.message is not None:
            report(notice.message)

    final = False
    patience = options.interval + _GRACE_SECONDS
    try:
        for number, data in enumerate(stream.lines(patience, tick), 1):
            if final:
                raise ProbeError(f"{stream.name}: line {number} follows the final one")
            line = waitlines.loads(data, stream.name, number)
            if isinstance(line, Notice):
                take(line)
                continue
            final = line.final
            yield line, data
    finally:
        ignoring.close()
    if not final:
        raise ProbeError(f"{stream.name} ended without its final line")
