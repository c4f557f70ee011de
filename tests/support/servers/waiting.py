# SPDX-License-Identifier: Apache-2.0
"""Wait for an event instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE", "Late", "wait_until"]

T = TypeVar("T")

PATIENCE = 240.0
"""Seconds in which what is to happen has happened, also on a slow and busy machine.

It is no figure of anything: only what fails takes as long.
"""

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.25


class Late(Exception):
    """What was waited for did not happen in time."""


def wait_until(condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Return the first true value of ``condition``, asking at growing intervals.

    Raises Late after ``seconds`` with ``what`` and the last value seen.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Late(f"not within {seconds:g} s: {what} (last seen: {value!r})")
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
