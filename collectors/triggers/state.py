# SPDX-License-Identifier: Apache-2.0
"""What a trigger remembers between samples: when it fires, and when it may fire again."""

from __future__ import annotations

import enum

from stallscope.model.stallstatus import Status

__all__ = ["Machine", "Phase"]

MOST_BETWEEN = 10
"""The most intervals without a value within one row of breaches, or of clear samples."""


class Phase(enum.StrEnum):
    """The state of a trigger between two samples."""

    CALM = "calm"
    COUNTING = "counting"
    """Breached, and not often enough in a row."""
    FIRED = "fired"
    """It does not fire again before it has cleared."""


class Machine:
    """Counts the samples of one trigger.

    It fires after ``cycles`` breaches in a row, and is over once it was clear for ``clear_cycles``
    samples in a row. A sample without the value changes nothing: a breach that fired goes on until
    a value shows its end. ``clock_ns`` is the monotonic clock of the samples.
    """

    def __init__(self, cycles: int, clear_cycles: int, sleep_ns: int, interval_ns: int) -> None:
        """``sleep_ns``: a breach that fires so soon after another takes no captures."""
        self._cycles = cycles
        self._clear_cycles = clear_cycles
        self._sleep_ns = sleep_ns
        self._gap_ns = MOST_BETWEEN * interval_ns
        self._clock_ns: int | None = None
        self._row = 0
        self._clears = 0
        self._awake_ns: int | None = None
        """When it fired last outside of a sleep."""
        self.phase = Phase.CALM
        self.clear_ns: int | None = None
        """The first clear sample of the latest row of them."""
        self.over_ns: int | None = None
        """When the latest breach that fired was over: at the first of its clear samples."""
        self.fired = 0
        self.suppressed = 0
        """How often it fired within the sleep."""

    @property
    def row(self) -> int:
        """Return the breaches in a row, or the clear samples in a row once it has fired."""
        return self._clears if self.phase is Phase.FIRED else self._row

    @property
    def counting(self) -> bool:
        """Return whether it was breached, and not often enough in a row."""
        return self.phase is Phase.COUNTING and self._row < self._cycles

    def status(self, now_ns: int) -> Status:
        """Return what is known at this time."""
        if self.phase is Phase.FIRED:
            return Status.STALLED
        known = self._clock_ns is not None and now_ns - self._clock_ns <= self._gap_ns
        return Status.CLEAR if known and self._clears >= self._clear_cycles else Status.UNKNOWN

    def take(self, breached: bool | None, cleared: bool | None, clock_ns: int) -> bool:
        """Take a sample; return whether it fires. Both None where the value is not known."""
        if breached is None or cleared is None:
            return False
        if self._clock_ns is not None:
            if clock_ns <= self._clock_ns:
                return False  # a sample that came late says nothing about now
            if clock_ns - self._clock_ns > self._gap_ns:
                self._clears = 0
                if self.phase is not Phase.FIRED:
                    self._calm()
        self._clock_ns = clock_ns
        self._count_clear(cleared, clock_ns)
        if self.phase is Phase.FIRED:
            if self._clears >= self._clear_cycles:
                self.over_ns = self.clear_ns
                self._calm()
            return False
        if not breached:
            self._calm()
            return False
        self.phase = Phase.COUNTING
        self._row += 1
        if self._row < self._cycles:
            return False
        if self._awake_ns is not None and clock_ns - self._awake_ns < self._sleep_ns:
            self.suppressed += 1
        else:
            self._awake_ns = clock_ns
        self.phase, self._row = Phase.FIRED, 0
        self.fired += 1
        return True

    def _count_clear(self, cleared: bool, clock_ns: int) -> None:
        if cleared and self._clears == 0:
            self.clear_ns = clock_ns
        self._clears = self._clears + 1 if cleared else 0

    def restarted(self) -> None:
        """Start again for another server process, of which nothing is known yet; the sleep
        continues."""
        self._calm()
        self._clears = 0

    def follow(self, before: Machine) -> None:
        """Go on as a machine of earlier settings of the same trigger."""
        self.phase = before.phase
        self._row, self._clears = min(before._row, self._cycles - 1), before._clears
        self._clock_ns, self._awake_ns = before._clock_ns, before._awake_ns
        self.clear_ns, self.over_ns = before.clear_ns, before.over_ns
        self.fired, self.suppressed = before.fired, before.suppressed

    def _calm(self) -> None:
        self.phase, self._row = Phase.CALM, 0
