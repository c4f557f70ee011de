# SPDX-License-Identifier: Apache-2.0
"""Time: the monotonic clock for durations, the wall clock for names and people."""

from __future__ import annotations

import time

__all__ = ["NS", "Clock"]

NS = 1_000_000_000


class Clock:
    """The clocks of the machine. No decision uses the wall clock, which can jump."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return the time of day, since the epoch."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        time.sleep(seconds)
