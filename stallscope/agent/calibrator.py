# SPDX-License-Identifier: Apache-2.0
"""Make the agent read connections from the server's memory: a kept calibration of the build, after
a check that needs no SQL; else a new one, while the server is healthy."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from stallscope.base.errors import StallscopeError
from stallscope.collectors.collector import sample
from stallscope.model.samples import Sample

if TYPE_CHECKING:
    from stallscope.collectors.sql.login import Login

__all__ = ["Calibrator"]

_log = logging.getLogger(__name__)

FIRST_PAUSE = 60.0
"""Seconds until a calibration that failed is tried again."""
LONGEST_PAUSE = 3600.0


class Calibrator:
    """A collector that is done once it has worked. It has its own thread: a stalled server keeps
    it waiting."""

    name = thread = "calibration"
    deadline = 15.0

    def __init__(
        self, pid: int, login: Callable[[], Login] | None, use: Callable[[str], None]
    ) -> None:
        """``login``: None: without SQL only a kept calibration is used. ``use`` takes the layout
        for the probe."""
        self._pid = pid
        self._login = login
        self._use = use
        self._pause = FIRST_PAUSE
        self._lock = threading.Lock()
        self._closed = False
        self.interval = 0.0

    @property
    def rest_interval(self) -> float:
        """Return the least seconds between two attempts."""
        return self.interval

    def collect(self) -> Sample:
        """Try once. Raises: StallscopeError, why connections cannot be read from memory."""
        return sample(self.name, self._try)

    def _try(self, clock_ns: int) -> dict[str, float]:
        # Set before: one that is late has failed, too.
        self.interval, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        fields = self._learn()
        self.interval = math.inf
        return {"calibration.fields": float(fields)}

    def _learn(self) -> int:
        """Return how many keys the layout has."""
        from stallscope.collectors.calibration import layouts, stored

        known = layouts.of_process(self._pid, checked=True)
        layout = dict(known.layout)
        if known.calibration is None:
            layout |= self._calibrate(known.reason)
        elif not known.connections and self._login is not None:
            # There was nothing to check it with, and SQL makes connections.
            with contextlib.suppress(StallscopeError):
                layout |= self._calibrate(None)
        with self._lock:
            # Another process may be watched by now.
            if not self._closed:
                self._use(stored.text(layout))
        return len(layout)

    def _calibrate(self, reason: str | None) -> dict[str, int]:
        """Calibrate, and keep that; ``reason`` why nothing is known. Raises: StallscopeError."""
        from stallscope.collectors.calibration import calibrating, stored

        if self._login is None:
            why = reason or "this build is not calibrated"
            raise StallscopeError(
                f"no connections from memory: {why}; run `stallscope calibrate -p {self._pid}`"
            )
        found = calibrating.calibrate(self._pid, self._login())
        try:
            stored.save(found)
        except StallscopeError as error:
            _log.warning("the calibration is not kept: %s", error)
        return found.layout

    def close(self) -> None:
        """Give no layout from now on."""
        with self._lock:
            self._closed = True
