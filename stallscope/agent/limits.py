# SPDX-License-Identifier: Apache-2.0
"""Limits of captures: how many an hour, and how much free space."""

from __future__ import annotations

from collections import deque

from stallscope.agent.clock import NS

__all__ = ["CaptureLimits"]

HOUR_NS = 3600 * NS


class CaptureLimits:
    """The captures of the last hour, and the free space of the store's disk."""

    def __init__(self, captures_an_hour: int) -> None:
        self.captures_an_hour = captures_an_hour
        self.room: str | None = None
        """Why the disk has too little space; None: it has enough."""
        self.last_ns = -HOUR_NS
        """When the latest capture was taken."""
        self._taken: deque[int] = deque()

    def count(self, now_ns: int) -> None:
        """Count a capture."""
        self.last_ns = now_ns
        self._taken.append(now_ns)

    def uncount(self) -> None:
        """Remove the latest capture from the count: it failed."""
        if self._taken:
            self._taken.pop()

    def refusal(self, now_ns: int) -> str | None:
        """Return why no capture may be taken now, None where one may."""
        while self._taken and now_ns - self._taken[0] > HOUR_NS:
            self._taken.popleft()
        most = self.captures_an_hour
        if len(self._taken) >= most:
            return f"{most} captures were taken in the last hour (captures-an-hour)"
        return self.room
