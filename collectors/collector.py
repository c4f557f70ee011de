# SPDX-License-Identifier: Apache-2.0
"""The interface of collectors: the agent can run each one in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from stallscope.model.samples import Sample

__all__ = ["Collector", "sample"]


def sample(source: str, read: Callable[[int], dict[str, float]]) -> Sample:
    """Return the values of ``read`` with its start time and duration. ``read`` gets its start by
    the monotonic clock, in ns. What it raises is passed on.
    """
    time_ns, clock_ns = time.time_ns(), time.monotonic_ns()
    values = read(clock_ns)
    elapsed_ms = (time.monotonic_ns() - clock_ns) / 1e6
    return Sample(source, time_ns, clock_ns, values, elapsed_ms)


class Collector(Protocol):
    """A source of samples.

    The agent calls ``collect`` in the thread that the collector names: threads never wait for one
    another, collectors of one thread (all that ask one SQL connection) take turns. A call that has
    not returned after ``deadline`` counts as failed; the collector is not called again before it
    returns, and that late result is dropped.
    """

    name: str
    thread: str
    """``sql``: they share the one connection; otherwise the collector's own name."""
    deadline: float
    """Seconds."""

    @property
    def interval(self) -> float:
        """Least seconds between two samples; 0: at every poll; infinite: none."""
        ...

    @property
    def rest_interval(self) -> float:
        """The same while the server is at rest (stallscope.agent.rest)."""
        ...

    def collect(self) -> Sample:
        """Take a sample. Raises: StallscopeError where the source is not there; it is tried
        again."""
        ...

    def close(self) -> None:
        """Close files and connections; ``collect`` may hang in another thread at that time."""
        ...
