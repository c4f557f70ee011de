# SPDX-License-Identifier: Apache-2.0
"""A map over several processes that keeps the order and limits the number of open calls."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["count", "mapper"]

_AHEAD = 2
"""The most pieces for each process that wait for work or for the caller."""

_R = TypeVar("_R")

_lent: mmap.mmap | None = None
"""In a worker: the memory that its pieces come through."""


def count(limit: int) -> int:
    """Return how many processes may run at once here, at most ``limit``."""
    return max(1, min(limit, len(os.sched_getaffinity(0))))


@contextlib.contextmanager
def mapper(
    processes: int, size: int
) -> Iterator[Callable[[Callable[[bytes], _R], Iterable[bytes]], Iterator[_R]]]:
    """Give a function like `map` whose calls run in other processes; they end with the block.

    It takes pieces of at most ``size`` bytes, which go through memory that all of them share: a
    pipe would copy each piece four times.
    """
    slots = processes * (1 + _AHEAD)
    with (
        mmap.mmap(-1, slots * size) as memory,
        # Fork: a worker needs nothing but what is loaded already, and starts in a millisecond.
        multiprocessing.get_context("fork").Pool(processes, _borrow, (memory,)) as pool,
    ):
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(slots):
            free.put(slot)
        ended = threading.Event()

        def fed(
            function: Callable[[bytes], _R], pieces: Iterable[bytes]
        ) -> Iterator[tuple[Callable[[bytes], _R], int, int, int]]:
            for piece in pieces:
                slot = free.get()
                if ended.is_set():
                    return
                start = slot * size
                end = start + len(piece)
                if len(piece) > size:
                    raise ValueError(f"a piece of {len(piece)} bytes, the limit is {size}")
                memory[start:end] = piece
                yield function, slot, start, end

        def run(function: Callable[[bytes], _R], pieces: Iterable[bytes]) -> Iterator[_R]:
            for slot, result in pool.imap(_call, fed(function, pieces)):
                free.put(slot)
                yield result

        try:
            yield run
        finally:
            ended.set()  # lets the pool's own thread end where it waits for a slot
            free.put(0)


def _borrow(memory: mmap.mmap) -> None:
    global _lent
    _lent = memory


def _call(task: tuple[Callable[[bytes], _R], int, int, int]) -> tuple[int, _R]:
    function, slot, start, end = task
    assert _lent is not None
    return slot, function(_lent[start:end])
