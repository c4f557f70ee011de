# SPDX-License-Identifier: Apache-2.0
"""The clocks by which servers keep the start of a statement, and times by them in memory."""

from __future__ import annotations

import enum
import time
from array import array
from collections.abc import Callable

import msgspec

__all__ = ["CLOCKS", "Clock", "When"]

_SLACK_US = 300
_TRIES = 5
"""A thread can be stopped between two clock reads, but hardly in every try."""
_SECOND_US = 1_000_000


class When(enum.Enum):
    """A time beside a window."""

    BEFORE = 0
    WITHIN = 1
    AFTER = 2


class Clock(msgspec.Struct, frozen=True):
    """A clock by which servers keep the start of a statement."""

    number: int
    """``thd.start#clock``."""
    now_ns: Callable[[], int]
    seconds: bool = False
    """MariaDB to 10.2 has ``start_time`` and ``start_time_sec_part``: seconds, and microseconds in
    the next word."""

    @property
    def ahead_ns(self) -> int:
        """Return how far it is ahead of CLOCK_MONOTONIC, in nanoseconds."""
        tries = []
        for _ in range(_TRIES):
            before, now, after = time.monotonic_ns(), self.now_ns(), time.monotonic_ns()
            tries.append((after - before, now - (before + after) // 2))
        return min(tries)[1]

    def window(self, moments: tuple[int, int]) -> tuple[int, int]:
        """Return the earliest and the latest microsecond, of nanoseconds of CLOCK_MONOTONIC."""
        ahead = self.ahead_ns // 1000
        return moments[0] // 1000 + ahead - _SLACK_US, moments[1] // 1000 + ahead + _SLACK_US

    def within(self, words: array[int], window: tuple[int, int]) -> list[int]:
        """Return the indexes of the words that are such a time."""
        least, most = window
        if not self.seconds:
            return [at for at, word in enumerate(words) if least <= word <= most]
        first, last = least // _SECOND_US, most // _SECOND_US
        return [
            at
            for at, word in enumerate(words[:-1])
            if first <= word <= last
            and words[at + 1] < _SECOND_US
            and least <= word * _SECOND_US + words[at + 1] <= most
        ]

    def when(self, words: array[int], at: int, moments: tuple[int, int]) -> When:
        """Return when a word's time is, beside the window of these moments."""
        least, most = self.window(moments)
        time_us = words[at]
        if self.seconds:
            time_us = time_us * _SECOND_US + (words[at + 1] if at + 1 < len(words) else 0)
        if time_us > most:
            return When.AFTER
        return When.WITHIN if time_us >= least else When.BEFORE


CLOCKS = (
    Clock(0, time.time_ns),
    Clock(1, time.monotonic_ns),
    Clock(2, time.time_ns, seconds=True),
)
