# SPDX-License-Identifier: Apache-2.0
"""Pieces of a live process's memory, read by ``stallscope-probe memory``: nothing is written to the
process, and none of its threads is stopped."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from stallscope.collectors import probe
from stallscope.collectors.probe import PROBE, ProbeError

__all__ = ["Memory", "MemoryThread", "Piece", "open_memory"]

Piece = tuple[int, int]
"""Address and size in bytes."""

MAX_PIECES = 200_000
MAX_BYTES = 16 << 20
"""Of one request; more is asked in several."""
MAX_LINE = 64 << 20
_WORD = 8
_SESSIONS = (1 << 64) - 1
"""In place of a count of pieces."""
_ADDRESSES = (1 << 64) - 1

Number = Annotated[int, msgspec.Meta(ge=0)]


class MemoryThread(msgspec.Struct, frozen=True):
    tid: Number
    ns_tid: Number
    """Its number in the pid namespace of the process: what the server itself reports."""
    fs_base: Number
    """Address of its thread control block, which ``pthread_self()`` returns; 0: not known."""


class _Head(msgspec.Struct, frozen=True):
    exe: str | None
    exe_start: Number
    threads: tuple[MemoryThread, ...]


class Memory:
    """The memory of a process, from :func:`open_memory`."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._deadline = deadline
        head = self._head()
        self.threads = head.threads
        self.exe = head.exe
        """Path of the program, as the process sees it."""
        self.exe_start = head.exe_start
        """Where the beginning of the program's file is in memory; 0: not known."""

    def read(self, pieces: Sequence[Piece]) -> list[bytes]:
        """Return the bytes of each piece from its beginning on: fewer where not all is readable.

        Raises: ProbeError.
        """
        found: list[bytes] = []
        begin = size = 0
        for at, (_, length) in enumerate(pieces):
            if at - begin >= MAX_PIECES or size + length > MAX_BYTES:
                found += self._read(pieces[begin:at])
                begin, size = at, 0
            size += length
        return found + self._read(pieces[begin:])

    def sessions(self, layout: str) -> bytes:
        """Return the probe's line of what the connections run: of the threads in ``threads``.

        Raises: ProbeError.
        """
        text = layout.encode()
        request = array("Q", [_SESSIONS, len(text)]).tobytes() + text
        size = int.from_bytes(self._exchange(request, _WORD), "little")
        if size > MAX_LINE:
            raise ProbeError(f"{PROBE} memory: a line of {size} bytes")
        return self._exchange(b"", size)

    def _read(self, pieces: Sequence[Piece]) -> list[bytes]:
        if not pieces:
            return []
        request = array("Q", [len(pieces)])
        for address, size in pieces:
            # What is computed from the process's memory can be beyond all addresses.
            request.extend((address & _ADDRESSES, size))
        sizes = _WORD * len(pieces) + sum(size for _, size in pieces)
        answer = self._exchange(request.tobytes(), sizes)
        done = array("Q", answer[: _WORD * len(pieces)])
        found = []
        at = _WORD * len(pieces)
        for (_, size), length in zip(pieces, done, strict=True):
            found.append(answer[at : at + min(size, length)])
            at += size
        return found

    def _exchange(self, request: bytes, size: int) -> bytes:
        """Write and read at once: both pipes hold less than a request and its answer."""
        answer = bytearray()
        todo = memoryview(request)
        while len(answer) < size:
            reads, writes, _ = select.select(
                [self._out], [self._in] if todo else [], [], self._left()
            )
            if writes:
                todo = todo[self._put(todo[:65536]) :]
            if reads:
                self._take(answer, size - len(answer))
        return bytes(answer)

    def _put(self, request: memoryview) -> int:
        try:
            return os.write(self._in, request)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise self._ended() from None

    def _take(self, answer: bytearray, most: int) -> None:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._out, min(most, 1 << 20))
            if not piece:
                raise self._ended()
            answer += piece

    def _head(self) -> _Head:
        line = bytearray()
        while not line.endswith(b"\n"):
            select.select([self._out], [], [], self._left())
            self._take(line, MAX_LINE - len(line))
        try:
            return msgspec.json.decode(line, type=_Head)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProbeError(f"{PROBE} memory: its answer cannot be read: {error}") from None

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ProbeError(f"{PROBE} memory did not answer in time")
        return left

    def _ended(self) -> Exception:
        try:
            _, err = self._process.communicate(timeout=self._left())
        except subprocess.TimeoutExpired:
            return ProbeError(f"{PROBE} memory did not answer in time")
        return probe.failure(self._process.returncode, err, probe.find())


@contextlib.contextmanager
def open_memory(pid: int, seconds: float) -> Iterator[Memory]:
    """Open the memory of a process; ``seconds`` are for all that is read of it.

    Raises: ProbeError, ProbeMissingError.
    """
    process = probe.start(probe.find(), ["memory", "--pid", str(pid)], stdin=subprocess.PIPE)
    try:
        yield Memory(process, time.monotonic() + seconds)
    finally:
        probe.end(process)
