# SPDX-License-Identifier: Apache-2.0
"""Whether the server is at rest: nothing shows that its threads wait more than they usually do.

At rest the agent asks only what it needs to notice the end of the rest: docs/sql.md. Without a
clock: time comes with the samples.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from stallscope.agent.clock import NS
from stallscope.model.samples import Sample

__all__ = ["ServerRest"]

LEARN_NS = 20 * NS
"""So long after the first answer everything is asked at each poll."""
HOLD_NS = 5 * NS
"""So long after the last sign of waiting it is not at rest."""
KNOWN_NS = 60 * NS
"""For so long after an answer, none is a sign; later the account is refused, or SQL is off."""
SLOW_MS = 100.0
"""An answer to the agent's own statements that takes longer is a sign."""
SLOWER = 4.0
"""Statements that take so many times the usual time are a sign, where FEW or more run."""
FEW = 4
SECONDS = 300
"""How many values are remembered, one a second."""
SHARE = 0.9
"""The share of these values that is usual: a new load is usual after half a minute."""


class ServerRest:
    """Signs of waiting, from samples and from others that see some."""

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._answered_ns: int | None = None
        self._learned_ns: int | None = None
        self._running: deque[float] = deque(maxlen=SECONDS)
        self._seconds_each: deque[float] = deque(maxlen=SECONDS)
        """Seconds that a statement took: running ones divided by those of a second."""
        self._questions: tuple[float, int] | None = None
        self._busy_until_ns = 0

    def disturb(self, clock_ns: int) -> None:
        """Take a sign of waiting."""
        self._busy_until_ns = max(self._busy_until_ns, clock_ns + HOLD_NS)

    def at_rest(self, clock_ns: int) -> bool:
        """Return whether there was no sign lately; while it learns there is no rest."""
        if self._first_ns is not None and clock_ns - self._first_ns < LEARN_NS:
            return False
        return clock_ns >= self._busy_until_ns

    def take(self, sample: Sample, *, incident: bool) -> None:
        """Take a sample of any collector; during an incident nothing becomes usual."""
        if sample.source == "heartbeat":
            if sample.error is None and sample.values.get("heartbeat.ms", 0.0) > SLOW_MS:
                self.disturb(sample.clock_ns)
            self._take_answer(sample)
        elif sample.source in ("status", "pulse"):
            self._take_answer(sample)
            running = sample.values.get("Threads_running")
            if running is not None:
                self._take_running(running, sample, incident)

    def _take_answer(self, sample: Sample) -> None:
        clock = sample.clock_ns
        if sample.error is None:
            self._answered_ns = clock
            if self._first_ns is None:
                self._first_ns = clock
            if sample.elapsed_ms > SLOW_MS:
                self.disturb(clock)
        elif self._answered_ns is not None and clock - self._answered_ns < KNOWN_NS:
            self.disturb(clock)

    def _take_running(self, running: float, sample: Sample, incident: bool) -> None:
        clock = sample.clock_ns
        each = self._each(running, sample)
        if self._running:
            usual = sorted(self._running)[int(SHARE * (len(self._running) - 1))]
            if running > usual + usual // 4:
                self.disturb(clock)
        usual_each = self._seconds_each
        if each is not None and usual_each and each > SLOWER * median(usual_each):
            self.disturb(clock)
        if incident or (self._learned_ns is not None and clock - self._learned_ns < NS * 9 // 10):
            return
        self._learned_ns = clock
        self._running.append(running)
        if each is not None:
            self._seconds_each.append(each)

    def _each(self, running: float, sample: Sample) -> float | None:
        """Return how long statements take, by Little's law; None where too few run."""
        questions = sample.values.get("Questions")
        if questions is None:
            return None
        before, self._questions = self._questions, (questions, sample.clock_ns)
        others = running - 1  # one of them is this statement
        if before is None or others < FEW:
            return None
        done, elapsed_ns = questions - before[0], sample.clock_ns - before[1]
        if done < 0 or elapsed_ns <= 0:
            return None
        return others * elapsed_ns / NS / max(done, 1.0)
