# SPDX-License-Identifier: Apache-2.0
"""Captures that are analyzed together, as one stall of one server."""

from __future__ import annotations

from stallscope.analyzers import engine
from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.catalog import Catalog
from stallscope.model.capture import Capture

__all__ = ["Together"]

MAX_THREADS = 200_000
"""The most threads, counted in each capture: all are in memory at once."""


class Together:
    """Collects captures for one verdict; too many are not analyzed together."""

    def __init__(self) -> None:
        self._captures: list[Capture] = []
        self._threads = 0

    def add(self, capture: Capture) -> None:
        """Add a capture, or all of a burst."""
        self._threads += sum(len(moment.threads) for moment in capture.moments)
        if self._threads > MAX_THREADS:
            self._captures.clear()
            return
        self._captures.append(capture)

    def analyze(self, signatures: Catalog) -> Analysis | None:
        """Return the one analysis of all; None: there is one capture, or there were too many."""
        if sum(len(capture.moments) for capture in self._captures) < 2:
            return None
        return engine.analyze_together(self._captures, signatures)
