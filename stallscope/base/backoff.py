# SPDX-License-Identifier: Apache-2.0
"""Pauses between attempts that fail: each twice as long as the one before, up to a limit."""

from __future__ import annotations

import random

__all__ = ["Backoff"]

_MOST_DOUBLED = 30
"""After so many failures every pause has its limit: larger powers would only overflow."""
_chance = random.Random()  # noqa: S311  # so that hosts differ


class Backoff:
    """Counts failures in a row. One thread at a time uses it."""

    def __init__(
        self,
        first: float,
        longest: float,
        spread: float = 0.2,
        chance: random.Random | None = None,
    ) -> None:
        """``first`` and ``longest``: seconds. ``spread``: by which part of it a pause can be
        shorter, so that many hosts do not come at the same moment."""
        self._first = first
        self._longest = longest
        self._spread = spread
        self._chance = chance or _chance
        self.failed = 0

    def next(self) -> float:
        """Count a failure; return the seconds until the next attempt."""
        pause = min(self._longest, self._first * 2.0 ** min(self.failed, _MOST_DOUBLED))
        self.failed += 1
        return pause * self._chance.uniform(1 - self._spread, 1.0)

    def asked(self, wish: float) -> float:
        """Return a pause that somebody asked for, longer by what keeps hosts apart."""
        return wish * self._chance.uniform(1.0, 1.2)

    def reset(self) -> None:
        """Begin again: it works."""
        self.failed = 0
