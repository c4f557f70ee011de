# SPDX-License-Identifier: Apache-2.0
"""What something costs the processor."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["cpu_seconds"]

RUNS = 20
"""At most, until one has the caches of its processor to itself, and a host that takes none of it
away: a virtual machine counts such time as used."""


def cpu_seconds(run: Callable[[], object], goal: float) -> float:
    """Return the least CPU time of several runs, or of the first that takes less than ``goal``."""
    least = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        run()
        least = min(least, time.process_time() - start)
        if not goal <= least < 10 * goal:  # no host takes as much away
            break
    return least
