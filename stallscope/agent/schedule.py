# SPDX-License-Identifier: Apache-2.0
"""Which collectors are due at a poll. There is no clock in here."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stallscope.collectors.collector import Collector

__all__ = ["Schedule"]

_EARLY_SHARE = 0.1
_EARLY_SECONDS = 0.1
"""Polls come early and late: so much earlier than its interval a collector is due, whichever of
the two is less."""


class Schedule:
    """When each collector was asked last, in seconds of one clock."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}

    def due(self, collectors: Iterable[Collector], now: float, *, at_rest: bool) -> list[Collector]:
        """Return the collectors whose interval is over."""
        return [one for one in collectors if self._is_due(one, now, at_rest=at_rest)]

    def asked(self, name: str, now: float) -> None:
        """Note that a collector is asked now."""
        self._asked[name] = now

    def asked_since(self, name: str, since: float) -> bool:
        """Return whether a collector was asked then or later."""
        before = self._asked.get(name)
        return before is not None and before >= since

    def _is_due(self, collector: Collector, now: float, *, at_rest: bool) -> bool:
        before = self._asked.get(collector.name)
        interval = collector.rest_interval if at_rest else collector.interval
        if interval == math.inf:
            return False
        early = min(interval * _EARLY_SHARE, _EARLY_SECONDS)
        return before is None or now - before >= interval - early
