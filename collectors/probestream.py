# SPDX-License-Identifier: Apache-2.0
"""Run ``stallscope-probe`` until the caller ends it, and read its lines."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from stallscope.collectors import probe
from stallscope.collectors.probe import PROBE, ProbeError

__all__ = ["Stream"]

_CHUNK = 1 << 18
_MAX_STDERR = 1 << 16
"""The most bytes of its stderr that are kept: the last line has the reason why it ended."""
_LONGEST_PAUSE = 1.5
"""The longest pause: a signal that asks for the end must be seen when no line comes. Longer than
from one line to the next, which come every second and a little later."""


class Stream:
    """A probe that runs until it is asked to end; use it as a context manager.

    It has a session of its own: Ctrl-C in a terminal reaches the caller alone, which ends the probe
    cleanly and still reads its last lines; and where the kernel schedules by session, its priority
    (pmp/base/priority.c) holds against the target's, too.
    """

    def __init__(self, args: Sequence[str], *, max_line: int, end_seconds: float = 10.0) -> None:
        self._max_line = max_line
        self._end_seconds = end_seconds
        self._end_by: float | None = None
        self._probe = probe.find()
        self.name = f"{PROBE} {args[0]}" if args else PROBE
        self._process = probe.start(self._probe, args, stdin=subprocess.PIPE, own_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        self._err = self._process.stderr.fileno()
        self._said = b""
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._out, self._err):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        probe.end(self._process)

    def end(self) -> None:
        """Ask it to end; it still prints its last lines. Safe to call from a signal handler."""
        if self._end_by is None:
            self._end_by = time.monotonic() + self._end_seconds
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it: it did not end when it was asked to."""
        self._process.kill()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def ending(self) -> bool:
        """Return whether it was asked to end."""
        return self._end_by is not None

    def say(self, text: str) -> None:
        """Write one line to its standard input; nothing where it has just ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._in, text.encode() + b"\n")

    def wake_on(self, descriptor: int) -> None:
        """End a pause of ``lines`` also when this descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        """Undo ``wake_on``."""
        self._selector.unregister(descriptor)

    def lines(self, patience: float, tick: Callable[[], float]) -> Iterator[bytes]:
        """Yield its lines, without the newline, until it has ended cleanly.

        ``patience``: seconds that may pass without a line. ``tick`` is called in each pause and
        returns the seconds after which it must be called again.

        Raises: ProbeError, UsageError with its own message where it failed.
        """
        buffer = bytearray()
        due = time.monotonic() + patience
        while True:
            pause = min(_LONGEST_PAUSE, tick(), max(0.0, self._due(due) - time.monotonic()))
            ready = {key.fd for key, _ in self._selector.select(pause)}
            if self._err in ready:
                self._listen()
            if self._out in ready:
                data = os.read(self._out, _CHUNK)
                if not data:
                    break
                searched = len(buffer)
                buffer += data
                yield from _take_lines(buffer, searched)
                if len(buffer) > self._max_line:
                    raise ProbeError(f"{self.name}: a line longer than {self._max_line} bytes")
                # The time that the caller spends on a line does not count.
                due = time.monotonic() + patience
            elif time.monotonic() > self._due(due):
                raise ProbeError(self._late(patience))
        self._finish()
        if buffer:
            raise ProbeError(f"{self.name} ended within a line")

    def _due(self, due: float) -> float:
        return due if self._end_by is None else min(due, self._end_by)

    def _late(self, patience: float) -> str:
        if self._end_by is not None:
            return f"{self.name} did not end within {self._end_seconds:g} s and was killed"
        return f"{self.name} sent nothing for {patience:g} s and was ended; see `stallscope doctor`"

    def _listen(self) -> None:
        data = os.read(self._err, _CHUNK)
        if data:
            self._said = (self._said + data)[-_MAX_STDERR:]
        else:
            self._selector.unregister(self._err)

    def _finish(self) -> None:
        """Take the exit code of a probe that has closed its output."""
        try:
            code = self._process.wait(self._end_seconds)
        except subprocess.TimeoutExpired:
            raise ProbeError(
                f"{self.name} closed its output and did not end; it was ended"
            ) from None
        if self._err in self._selector.get_map():
            with contextlib.suppress(BlockingIOError):
                self._listen()
        if code not in (0, 3):
            raise probe.failure(code, self._said, self._probe)


def _take_lines(buffer: bytearray, searched: int) -> Iterator[bytes]:
    """Remove whole lines from the buffer; there is no newline before ``searched``."""
    while (stop := buffer.find(b"\n", searched)) >= 0:
        line = bytes(buffer[:stop])
        del buffer[: stop + 1]
        searched = 0
        yield line
