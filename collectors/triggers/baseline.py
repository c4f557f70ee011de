# SPDX-License-Identifier: Apache-2.0
"""What a number usually is, learned from earlier values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

__all__ = ["NS", "Baseline"]

NS = 1_000_000_000
BUCKET_NS = 10 * NS
"""The seconds of one mean: a shorter polling interval must not give a period more weight."""
BUCKETS = 60
"""Ten minutes: a change of load by day and night is followed within five."""
WARM_UP = 12
"""Buckets of the first two minutes, in which there is no baseline."""
RELEARN_NS = 900 * NS
"""For so long an incident does not change the baseline; what lasts longer is the new normal."""


class Baseline:
    """A moving baseline: the median of ten-second means over ten minutes.

    The median does not follow the first minutes of something new, so that a stall which has not
    fired yet does not become the baseline.
    """

    def __init__(self) -> None:
        self._means: deque[float] = deque(maxlen=BUCKETS)
        self._bucket: int | None = None
        self._sum = 0.0
        self._count = 0
        self._idle_since: int | None = None
        self._value: float | None = None

    @property
    def value(self) -> float | None:
        """Return the baseline; None in the first two minutes."""
        return self._value

    def learn(self, value: float, clock_ns: int, *, incident: bool) -> None:
        """Take a value. During an incident the baseline does not change, unless it lasts for
        long."""
        if incident:
            if self._idle_since is None:
                self._idle_since = clock_ns
                self._drop()
            if clock_ns - self._idle_since < RELEARN_NS:
                return
        else:
            self._idle_since = None
        bucket = clock_ns // BUCKET_NS
        if self._bucket is not None and bucket != self._bucket:
            self._close()
        self._bucket = bucket
        self._sum += value
        self._count += 1

    @property
    def means(self) -> tuple[float, ...]:
        """Return all that it has learned, oldest first."""
        return tuple(self._means)

    def recall(self, means: Iterable[float]) -> None:
        """Continue from what another baseline had learned."""
        self.forget()
        self._means.extend(means)
        self._settle()

    def forget(self) -> None:
        """Start again for another server process."""
        self._means.clear()
        self._value = None
        self._idle_since = None
        self._drop()

    def _drop(self) -> None:
        """Leave out the bucket in which an incident began."""
        self._bucket = None
        self._sum = 0.0
        self._count = 0

    def _close(self) -> None:
        self._means.append(self._sum / self._count)
        self._drop()
        self._settle()

    def _settle(self) -> None:
        if len(self._means) >= WARM_UP:
            self._value = median(self._means)
