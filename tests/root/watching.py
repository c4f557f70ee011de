# SPDX-License-Identifier: Apache-2.0
"""A probe that watches waits, as ``stallscope-probe waits``."""

from __future__ import annotations

import select
import signal
import subprocess
import time
from types import TracebackType
from typing import Self

from servers import PATIENCE

from stallscope import probe
from stallscope.waitlines import Event, Key, Notice, WaitLine, loads

__all__ = ["Watcher", "key_of"]


class Watcher:
    """One running probe; use it as a context manager, which waits until it is ready.

    Its standard input is a pipe: its end ends the probe, unless there is a duration.
    """

    def __init__(self, *options: str, pids: tuple[int, ...]) -> None:
        words = [word for pid in pids for word in ("--pid", str(pid))]
        self.argv = [str(probe.find()), "waits", *words, *options]
        self.notices: list[Notice] = []
        self.lines: list[WaitLine] = []
        self._buffer = b""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        ready = self.read()
        assert ready == Notice("ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def read(self) -> WaitLine | Notice | None:
        """Return what it says next; None at the end."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self.process.stdout], [], [], left)[0], "the probe says nothing"
            data = self.process.stdout.read(1 << 20)
            if not data:
                assert not self._buffer, "a line without an end"
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        said = loads(line, "stallscope-probe", len(self.lines) + len(self.notices) + 1)
        if isinstance(said, Notice):
            self.notices.append(said)
        else:
            self.lines.append(said)
        return said

    def send(self, command: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + b"\n")

    def ask(self, command: bytes) -> Notice:
        """Send a command and return its answer; lines in between are kept."""
        self.send(command)
        while not isinstance(said := self.read(), Notice):
            assert said is not None
        return said

    def line(self) -> WaitLine:
        """Return the next line."""
        while not isinstance(said := self.read(), WaitLine):
            assert said is not None, "the probe has ended"
        return said

    def rest(self) -> WaitLine:
        """Read to the end; return the last line, which holds the totals."""
        while self.read():
            continue
        assert self.process.wait(PATIENCE) == 0
        last = self.lines[-1]
        assert last.final
        assert not any(line.final for line in self.lines[:-1])
        return last

    def finish(self) -> WaitLine:
        """Tell it to quit; return the totals."""
        self.send(b"quit")
        return self.rest()

    def stop(self, number: int = signal.SIGTERM) -> WaitLine:
        """End it by a signal; return the totals."""
        self.process.send_signal(number)
        return self.rest()

    @property
    def events(self) -> list[Event]:
        """All events told so far."""
        return [event for line in self.lines for event in line.events]


def key_of(line: WaitLine, kind: str, name: str | None = None) -> Key:
    """Return the one key of that kind, and of that name where it is given."""
    (found,) = [key for key in line.keys if key.kind == kind and (name is None or key.name == name)]
    return found
