# SPDX-License-Identifier: Apache-2.0
"""What a trigger remembers between samples: when it fires, and when it may fire again."""

from __future__ import annotations

import enum

__all__ = ["Machine", "Phase"]

MOST_BETWEEN = 10
"""The most intervals without a value within one row of breaches."""
LOST_NS = 60 * 1_000_000_000
"""A fired trigger without a value for longer than this, and MOST_BETWEEN intervals, is over."""


class Phase(enum.StrEnum):
    """The state of a trigger between two samples."""

    CALM = "calm"
    COUNTING = "counting"
    """Breached, and not often enough in a row."""
    FIRED = "fired"
    """It does not fire again before it has cleared."""


class Machine:
    """Counts the samples of one trigger.

    It fires after ``cycles`` breaches in a row. Then it is quiet until it was clear for
    ``clear_cycles`` samples in a row, and for ``sleep_ns`` from when it fired. A sample without
    the value changes nothing. ``clock_ns`` is the monotonic clock of the samples.
    """

    def __init__(self, cycles: int, clear_cycles: int, sleep_ns: int, interval_ns: int) -> None:
        self._cycles = cycles
        self._clear_cycles = clear_cycles
        self._sleep_ns = sleep_ns
        self._gap_ns = MOST_BETWEEN * interval_ns
        self._clock_ns: int | None = None
        self._row = 0
        self._clear_ns = 0
        self._fired_ns: int | None = None
        self._suppressed = False
        self.phase = Phase.CALM
        self.over_ns: int | None = None
        """When the latest breach that fired was over: at the first of its clear samples."""
        self.fired = 0
        self.suppressed = 0
        """How often it would have fired without the sleep."""

    @property
    def row(self) -> int:
        """Return the breaches in a row, or the clear samples in a row once it has fired."""
        return self._row

    @property
    def counting(self) -> bool:
        """Return whether it was breached, and not often enough in a row."""
        return self.phase is Phase.COUNTING and self._row < self._cycles

    def take(self, breached: bool | None, cleared: bool | None, clock_ns: int) -> bool:
        """Take a sample; return whether it fires. Both None where the value is not known."""
        if breached is None or cleared is None:
            return False
        if self._clock_ns is not None:
            if clock_ns <= self._clock_ns:
                return False  # a sample that came late says nothing about now
            if clock_ns - self._clock_ns > self._gap_ns and self.phase is not Phase.FIRED:
                self._calm()
        self._clock_ns = clock_ns
        if self.phase is Phase.FIRED:
            self._look_for_end(cleared, clock_ns)
            return False
        if not breached:
            self._calm()
            return False
        self.phase = Phase.COUNTING
        self._row += 1
        if self._row < self._cycles:
            return False
        if self._fired_ns is not None and clock_ns - self._fired_ns < self._sleep_ns:
            if not self._suppressed:
                self._suppressed = True
                self.suppressed += 1
            return False
        self.phase, self._row, self._fired_ns = Phase.FIRED, 0, clock_ns
        self.fired += 1
        return True

    def _look_for_end(self, cleared: bool, clock_ns: int) -> None:
        if not cleared:
            self._row = 0
            return
        self._row += 1
        if self._row == 1:
            self._clear_ns = clock_ns
        if self._row >= self._clear_cycles:
            self.over_ns = self._clear_ns
            self._calm()

    def give_up(self, clock_ns: int) -> bool:
        """End a breach that has had no value for long; return whether it was ended.

        It counts as over since the last sample that had a value.
        """
        if self.phase is not Phase.FIRED or self._clock_ns is None:
            return False
        if clock_ns - self._clock_ns <= max(LOST_NS, self._gap_ns):
            return False
        self.over_ns = self._clock_ns
        self._calm()
        return True

    def restarted(self) -> None:
        """Start again for another server process: a breach is over; the sleep continues."""
        self._calm()

    def _calm(self) -> None:
        self.phase, self._row, self._suppressed = Phase.CALM, 0, False
