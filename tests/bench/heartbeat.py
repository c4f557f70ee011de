# SPDX-License-Identifier: Apache-2.0
"""Read the ticks of a heartbeat thread inside a target (tests/targets/heartbeat.h)."""

from __future__ import annotations

import itertools
import mmap
import struct
from bisect import bisect_left, bisect_right
from pathlib import Path

from tests.bench.stats import BenchError
from tests.support.servers import wait_until

__all__ = ["Heartbeat"]

MAGIC = 0x7461656274726165
TICKS = 1 << 20
HEADER = struct.Struct("=QQQQ")


class Heartbeat:
    """The ring of one heartbeat. Times are CLOCK_MONOTONIC nanoseconds, as time.monotonic_ns()."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), HEADER.size + TICKS * 8, prot=mmap.PROT_READ)
        if HEADER.unpack_from(self._map)[0] != MAGIC:
            raise BenchError(f"{path} holds no heartbeat")

    @property
    def count(self) -> int:
        """Ticks so far."""
        return int(HEADER.unpack_from(self._map)[1])

    def wait_tick(self, after: int) -> None:
        """Wait until two more ticks have come than ``after``."""
        wait_until(lambda: self.count > after + 1, "a tick of the heartbeat", 30)

    def _tick(self, nr: int) -> int:
        return int(struct.unpack_from("=Q", self._map, HEADER.size + nr % TICKS * 8)[0])

    def longest_gap(self, start: int, end: int) -> int:
        """Return the longest time between two ticks that overlaps the window, in nanoseconds.

        The window must lie in the last 100 s and a tick must have come after it.
        """
        last = self.count
        first = max(0, last - TICKS + 1000)
        ticks = range(first, last)
        low = bisect_left(ticks, start, key=self._tick) - 1
        high = bisect_right(ticks, end, key=self._tick)
        if low < 0 or high >= len(ticks):
            raise BenchError("the heartbeat does not cover the window")
        times = [self._tick(ticks[nr]) for nr in range(low, high + 1)]
        return max(b - a for a, b in itertools.pairwise(times))
