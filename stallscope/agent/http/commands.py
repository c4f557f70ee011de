# SPDX-License-Identifier: Apache-2.0
"""Commands that read the store, in a child of low priority: what a page shows of it can take
hundreds of MB, and seconds, and the disk can hang; the agent's own threads are not to wait."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from stallscope.base.package import module_command
from stallscope.base.priority import lower_priority
from stallscope.base.text import one_line

__all__ = ["BusyError", "CommandError", "Commands"]

NICE = 10
MAX_MEMORY = 2 << 30
MAX_CPU_SECONDS = 120
MAX_OUTPUT = 256 << 20
SECONDS = 60.0
"""For a whole command, with the time that the client takes to read its output."""
TURN_SECONDS = 5.0
"""How long a request waits for the command of another one."""
PIECE = 64 << 10
_END_SECONDS = 0.5
_EXIT_SECONDS = 10.0
"""From the end of its output to its exit: it has a low priority, and the host can be busy."""
_MOST_SAID = 4096


class BusyError(Exception):
    """Another command runs, or hangs."""


class CommandError(Exception):
    """The command printed nothing: its message, and whether what it was asked for exists."""

    def __init__(self, message: str, *, is_missing: bool) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class Commands:
    """Runs one command at a time. It may be used from several threads."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._hangs: subprocess.Popen[bytes] | None = None
        """A killed command that had not ended soon."""

    def run(self, words: list[str]) -> Iterator[bytes]:
        """Return what ``stallscope WORDS`` prints, piece by piece; it may be cut at a limit.

        Close the iterator to end the command. Raises: BusyError; CommandError where it fails before
        it prints anything.
        """
        pieces = self._begun(words)
        next(pieces)
        return pieces

    def _begun(self, words: list[str]) -> Generator[bytes, None, None]:
        with contextlib.closing(self._run(words)) as pieces:
            first = next(pieces, b"")
            yield b""  # from here on, closing this generator ends the command
            yield first
            yield from pieces

    def _run(self, words: list[str]) -> Generator[bytes, None, None]:
        end = time.monotonic() + self._seconds
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise BusyError("another request reads the store: try again in some seconds")
        try:
            self._await_killed()
            yield from self._output(words, end)
        finally:
            self._turn.release()

    def _await_killed(self) -> None:
        """Wait for a killed command as for one that runs: on a busy host its low priority keeps it
        from ending, and no disk does."""
        if self._hangs is not None:
            try:
                self._hangs.wait(TURN_SECONDS)
            except subprocess.TimeoutExpired:
                raise BusyError("the store's disk does not answer") from None
        self._hangs = None

    def _output(self, words: list[str], end: float) -> Iterator[bytes]:
        argv, environment = module_command("stallscope")
        with os.fdopen(os.memfd_create("stallscope-errors"), "w+b") as said:
            process = subprocess.Popen(
                [*argv, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**environment, "NO_COLOR": "1"},
                start_new_session=True,  # its low priority counts among all sessions
            )
            _limit(process.pid)
            printed = 0
            try:
                for piece in _pieces(process, end):
                    printed += len(piece)
                    if printed > MAX_OUTPUT:
                        return
                    yield piece
                if not printed:
                    raise self._failure(process, said.fileno())
            finally:
                self._end(process)

    def _failure(self, process: subprocess.Popen[bytes], said: int) -> CommandError:
        try:
            code = process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return CommandError(f"no answer within {self._seconds:g} s", is_missing=False)
        text = os.pread(said, _MOST_SAID, 0).decode("utf-8", "backslashreplace")
        why = one_line(text.rpartition("stallscope: ")[2]) or f"it ended with {code}"
        return CommandError(why, is_missing=code == 2)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        process.stdout.close()
        process.kill()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._hangs = process


def _pieces(process: subprocess.Popen[bytes], end: float) -> Iterator[bytes]:
    """Yield the output until its end, or until the time is over."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := end - time.monotonic()) > 0 and poll.poll(left * 1000):
        piece = os.read(descriptor, PIECE)
        if not piece:
            return
        yield piece


def _limit(pid: int) -> None:
    """Let it have less CPU time than the server, and be killed first when memory runs out."""
    lower_priority(pid, NICE)
    with contextlib.suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.prlimit(pid, resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("900")
