# SPDX-License-Identifier: Apache-2.0
"""What every collector of numbers is, so that the agent can run any of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from stallscope.model.samples import Sample

__all__ = ["Collector", "sample"]


def sample(source: str, read: Callable[[int], dict[str, float]]) -> Sample:
    """Return what ``read`` brings, with when it began and how long it took.

    It is given the monotonic time of its beginning, in ns. Whatever it raises is passed on.
    """
    time_ns, clock_ns = time.time_ns(), time.monotonic_ns()
    values = read(clock_ns)
    elapsed_ms = (time.monotonic_ns() - clock_ns) / 1e6
    return Sample(source, time_ns, clock_ns, values, elapsed_ms)


class Collector(Protocol):
    """A source of samples.

    The agent calls ``collect`` in the thread that the collector names: threads never wait
    for one another, collectors of one thread (all that ask one SQL connection) take turns. A call
    that is not back after ``deadline`` counts as failed for that turn; it is not called again
    until it is back, and what it brings then is dropped.
    """

    name: str
    thread: str
    """``sql``: they share the one connection; otherwise the collector's own name."""
    deadline: float
    """Seconds."""

    @property
    def interval(self) -> float:
        """Least seconds between two samples; 0: at every poll."""
        ...

    def collect(self) -> Sample:
        """Take a sample. Raises: StallscopeError where the source is not there; it is tried
        again."""
        ...

    def close(self) -> None:
        """Let go of files and connections; ``collect`` may be hanging in another thread."""
        ...
