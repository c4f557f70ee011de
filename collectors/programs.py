# SPDX-License-Identifier: Apache-2.0
"""Run a program of the user: without a shell, with a deadline, with limits on its output.

The run is over when the program itself has ended: a child that it leaves behind may keep its pipes
open. Output beyond a limit is read and dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec

from stallscope.base import trust
from stallscope.base.childenv import child_environment
from stallscope.base.priority import lower_priority
from stallscope.base.text import one_line

__all__ = [
    "LEAVE_SECONDS",
    "MAX_OUTPUT",
    "Program",
    "Result",
    "kill_group",
    "reap",
    "run_for_event",
]

MAX_OUTPUT = 4096
"""Bytes of each stream that are kept: the first ones."""
LEAVE_SECONDS = 2.0
_PIECE = 1 << 16
_LAST_PIECES = 16
"""The most bytes that can be in a pipe when its writer has ended: 64 KB, at most 1 MB (pipe(7))."""


class Result(msgspec.Struct, frozen=True):
    """``code`` is None where the program was late, and was killed with its session."""

    code: int | None
    out: bytes
    err: bytes


class Program:
    """A program that has been started, in a session of its own."""

    def __init__(
        self, command: Sequence[str], *, output: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it, without the secrets of the environment (this one where none is given);
        ``output``: read its standard output, not only its errors. Raises: OSError, also where
        another user can change what would run.
        """
        why = trust.command_reason(command)
        if why is not None:
            raise PermissionError(errno.EPERM, why)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=child_environment(environment),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def run(self, seconds: float, *, leave_children: bool) -> Result:
        """Wait for its end. ``leave_children``: do not kill them where the program ended in
        time."""
        process = self._process
        out, err = _Stream(process.stdout), _Stream(process.stderr)
        ended = os.pidfd_open(process.pid)
        try:
            in_time = _follow(ended, (out, err), time.monotonic() + seconds)
            if not (in_time and leave_children):
                # It was not waited for yet: the pid is still its own.
                self.end()
            code = reap(process)
        finally:
            os.close(ended)
            out.close()
            err.close()
        return Result(code if in_time else None, bytes(out.kept), bytes(err.kept))

    def end(self) -> None:
        """Kill it and all of its process group."""
        kill_group(self._process)


def run_for_event(command: Sequence[str], known: Mapping[str, str], seconds: float) -> str | None:
    """Run a command of the user because something happened; return why it failed, or None.

    ``known``: variables that say what happened, in addition to this process's own.
    """
    try:
        program = Program(command, output=False, environment={**os.environ, **known})
    except OSError as error:
        return f"cannot run {command[0]}: {error.strerror}"
    lower_priority(program.pid)
    result = program.run(seconds, leave_children=True)
    if result.code is None:
        return f"it took more than {seconds:g} s and was ended"
    if result.code == 0:
        return None
    said = one_line(result.err.decode("utf-8", "backslashreplace"), 200)
    return f"it ended with {result.code}: {said}"


def reap(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for a process that was killed; return its exit code. None: it is left behind, because it
    waits for a disk that does not answer."""
    try:
        return process.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and all of its process group."""
    if process.returncode is not None:
        return  # it was waited for: another process can have its pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _Stream:
    """Keeps the first bytes of a program's output."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self.kept = bytearray()
        self.fd = -1
        if pipe is not None:
            # Unbuffered: a buffer would read ahead, and block.
            self.fd = os.dup(pipe.fileno())
            os.set_blocking(self.fd, False)
            pipe.close()

    def read(self) -> bool:
        """Read a piece; say whether there was one."""
        if self.fd < 0:
            return False
        try:
            data = os.read(self.fd, _PIECE)
        except BlockingIOError:
            return False
        self.kept += data[: MAX_OUTPUT - len(self.kept)]
        if not data:
            self.close()
        return bool(data)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def _follow(ended: int, streams: Sequence[_Stream], deadline: float) -> bool:
    """Read until the program has ended; say whether it did in time."""
    while (left := deadline - time.monotonic()) > 0:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        for stream in streams:
            if stream.fd >= 0:
                poll.register(stream.fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(left * 1000)}
        for stream in streams:
            if stream.fd in ready:
                stream.read()
        if ended in ready:
            for stream in streams:
                for _ in range(_LAST_PIECES):
                    if not stream.read():
                        break
            return True
    return False
