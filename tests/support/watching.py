# SPDX-License-Identifier: Apache-2.0
"""Probes that watch waits, with what they say as it comes, and what they leave attached.

Two commands do: ``serve`` (:class:`Watcher`), among whose lines may be captures, and ``waits``
(:class:`Waits`), whose lines are read as its users read them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from stallscope.model.waitlines import Event, Key, Notice, WaitLine, loads
from tests.support.servers import PATIENCE

__all__ = ["Line", "Waits", "Watcher", "key_of", "watcher"]

Line = dict[str, Any]


class Probe:
    """A ``stallscope-probe`` that takes commands; what it says is read at once, in a thread."""

    def __init__(self, command: str, *options: str, pids: tuple[int, ...]) -> None:
        words = [word for pid in pids for word in ("--pid", str(pid))]
        self.argv = [str(probe.find()), command, *options, *words]
        self.changed = threading.Condition()
        self.ended = False
        self.unfinished = b""
        """The line that it was about to say when it ended."""
        self._reader = threading.Thread(target=self._read, daemon=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        """Start it. Its standard input is a pipe, whose end ends it."""
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._reader.start()

    def say(self, command: str | bytes) -> None:
        """Send one command."""
        assert self.process.stdin is not None
        data = command.encode() if isinstance(command, str) else command
        self.process.stdin.write(data + b"\n")

    def wait(self) -> int:
        """Wait for its end, and until all that it has said is read; return its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def kill(self) -> None:
        """End it at once; it may have ended before.

        All that it has said is read before the pipe is closed: who reads from one that is closed
        dies of that.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def take(self, data: bytes) -> None:
        """Take one line, in the thread that reads; a slow reader here delays the probe."""
        raise NotImplementedError

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := self.process.stdout.read(1 << 20):
            *lines, self.unfinished = (self.unfinished + data).split(b"\n")
            for line in lines:
                self.take(line)
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Watcher(Probe):
    """``stallscope-probe serve`` and all that it has said so far."""

    def __init__(self, *options: str, pids: tuple[int, ...]) -> None:
        super().__init__("serve", *options, pids=pids)
        self.lines: list[Line] = []
        self.captures: list[Capture] = []
        """Those that are among the lines, without a file."""
        self._records: list[bytes] = []

    def ask(self, command: str, *types: str) -> Line:
        """Send one command and return the first line of these types that follows."""
        start = len(self.lines)
        self.say(command)
        return self.line(lambda line: line["type"] in types, command, start=start)

    def line(self, wanted: Callable[[Line], bool], what: str, *, start: int = 0) -> Line:
        """Return the first line, from number ``start`` on, that is wanted; wait for it.

        Each line is parsed once: a reader slower than a storm holds the probe up.
        """
        at = start
        deadline = time.monotonic() + PATIENCE
        with self.changed:
            while True:
                for line in self.lines[at:]:
                    if wanted(line):
                        return line
                at = max(at, len(self.lines))
                left = deadline - time.monotonic()
                assert not self.ended, f"it ended without {what}: {self.lines[start:][-5:]}"
                assert left > 0, f"no {what}; last lines: {self.lines[start:][-5:]}"
                self.changed.wait(left)

    def event(self, wanted: Callable[[Line], bool], what: str) -> Line:
        """Return the first event that is wanted; wait for it."""
        line = self.line(lambda line: line["type"] == "event" and wanted(line["event"]), what)
        event = line["event"]
        assert isinstance(event, dict)
        return event

    def events(self) -> list[Line]:
        return [line["event"] for line in self.lines if line["type"] == "event"]

    def capture(self, number: int = 0) -> Capture:
        """Return one of the captures that went without a file; wait for it."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.captures) > number or self.ended, PATIENCE)
            assert len(self.captures) > number, f"{len(self.captures)} captures"
            return self.captures[number]

    def quit(self) -> int:
        """Let it end by itself; return its exit code."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
        return self.wait()

    def take(self, data: bytes) -> None:
        if self._records or data.startswith(b'{"type":"capture",'):
            self._records.append(data)  # parsed as a whole
            if data.startswith(b'{"type":"end",'):
                capture = capturefile.loads(b"\n".join([*self._records, b""]), "serve")
                self._records = []
                with self.changed:
                    self.captures.append(capture)
                    self.changed.notify_all()
        else:
            line = json.loads(data)
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()


@contextmanager
def watcher(*pids: int, options: tuple[str, ...] = ("--watch", "--events")) -> Iterator[Watcher]:
    """Run a serving probe on these processes until the block ends."""
    found = Watcher(*options, pids=pids)
    found.start()
    try:
        found.line(lambda line: line["type"] == "ready", "line that it is ready")
        yield found
        found.quit()
    finally:
        found.kill()


class Waits(Probe):
    """``stallscope-probe waits``; as a context manager it waits until it is ready.

    ``notices`` and ``lines`` are what was read of it so far.
    """

    def __init__(self, *options: str, pids: tuple[int, ...]) -> None:
        super().__init__("waits", *options, pids=pids)
        self.notices: list[Notice] = []
        self.lines: list[WaitLine] = []
        self._said: list[WaitLine | Notice | StallscopeError] = []

    def __enter__(self) -> Self:
        self.start()
        ready = self.read()
        assert ready == Notice("ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def take(self, data: bytes) -> None:
        said: WaitLine | Notice | StallscopeError
        try:
            said = loads(data, "stallscope-probe", len(self._said) + 1)
        except StallscopeError as error:
            said = error
        with self.changed:
            self._said.append(said)
            self.changed.notify_all()

    def read(self) -> WaitLine | Notice | None:
        """Return what it says next; None at the end."""
        at = len(self.lines) + len(self.notices)
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._said) > at or self.ended, PATIENCE), (
                "the probe says nothing"
            )
            if len(self._said) <= at:
                return None
            said = self._said[at]
        if isinstance(said, StallscopeError):
            raise said
        if isinstance(said, Notice):
            self.notices.append(said)
        else:
            self.lines.append(said)
        return said

    def ask(self, command: bytes) -> Notice:
        """Send a command and return its answer; lines in between are kept."""
        self.say(command)
        while not isinstance(said := self.read(), Notice):
            assert said is not None
        return said

    def line(self, wanted: Callable[[WaitLine], bool] = lambda _: True) -> WaitLine:
        """Return the next line that is wanted."""
        while not (isinstance(said := self.read(), WaitLine) and wanted(said)):
            assert said is not None, f"the probe has ended: {self.lines[-3:]}"
        return said

    def key(self, wanted: Callable[[Key], bool]) -> Key:
        """Read on to the first lock or file that is wanted."""
        return next(filter(wanted, self.line(lambda line: any(map(wanted, line.keys))).keys))

    def rest(self) -> WaitLine:
        """Read to the end; return the last line, which holds the totals."""
        while self.read():
            continue
        assert self.wait() == 0
        assert not self.unfinished
        last = self.lines[-1]
        assert last.final
        assert not any(line.final for line in self.lines[:-1])
        return last

    def finish(self) -> WaitLine:
        """Ask it to quit; return the totals."""
        self.say("quit")
        return self.rest()

    def stop(self, number: int = signal.SIGTERM) -> WaitLine:
        """End it by a signal; return the totals."""
        self.process.send_signal(number)
        return self.rest()

    @property
    def events(self) -> list[Event]:
        """All events reported so far."""
        return [event for line in self.lines for event in line.events]


def key_of(line: WaitLine, kind: str, name: str | None = None) -> Key:
    """Return the one key of that kind, and of that name where it is given."""
    (found,) = [key for key in line.keys if key.kind == kind and is_named(key, name)]
    return found


def is_named(key: Key, name: str | None) -> bool:
    """Return whether a key has that name; a path of which only the end is known begins with
    ``...``.

    Where a file is mounted is looked up later, and on a slow machine it is closed by then.
    """
    known = key.name or ""
    return name in (None, known) or (known.startswith(".../") and str(name).endswith(known[3:]))
