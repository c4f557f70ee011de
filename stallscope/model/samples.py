# SPDX-License-Identifier: Apache-2.0
"""Samples: what one collector saw at one moment, as numbers by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from stallscope.base.times import Moment

__all__ = ["UNANSWERED", "Sample", "is_counter", "rates"]

UNANSWERED = "heartbeat.unanswered_ms"
"""How long the heartbeat has waited for its answer; 0: it has it. A failed sample has it where the
server owes the answer: a refused login, or a socket that is gone, says nothing about a stall."""

_GAUGES = re.compile(
    r"Threads_(?!created)|Open_(?!ed)|Max_used|Slave_open|Prepared_stmt_count|.*_current"
    r"|.*_pending|.*_pages_(?!created|read|written|flushed)|.*_bytes_(?:data|dirty)"
    r"|.*_avg|.*_max(?:$|_)|.*_size$|.*_age$|.*_lsn|.*_length|.*_(?:free|used|ratio|percent|level)"
)
"""Status variables that are gauges; all others are counters."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """What one collector read at one moment.

    Names of ``values``: status variables of the server as it spells them (``Threads_running``); all
    others begin with their subject: ``processlist.running``, ``processlist.state.Sending data``
    (threads in it), ``heartbeat.ms``, ``process.rss_bytes``, ``process.cpu_share`` (1.0 is one
    core), ``psi.io.some_avg10`` (percent), ``host.run_queue``, ``disk.sda.util`` (0 to 1),
    ``waits.fsync.max_ms``. Counters are raw; rates are calculated from two samples where they are
    used.
    """

    source: str
    """The collector's name: ``status``, ``processlist``, ``process``, ``psi``, ``waits``, …"""
    time_ns: Moment
    """Wall clock at its start: for people and files."""
    clock_ns: Moment
    """CLOCK_MONOTONIC at its start: for durations and rates."""
    values: dict[str, float] = msgspec.field(default_factory=dict)
    elapsed_ms: float = 0.0
    error: str | None = None
    """A sentence that says why nothing was read: refused, late, not in this version."""


def is_counter(source: str, name: str) -> bool:
    """Return whether a value is a counter: a status variable that is no gauge."""
    return source == "status" and "." not in name and not _GAUGES.match(name)


def rates(values: Sequence[float | None], clocks: Sequence[int]) -> list[float | None]:
    """Return the rate of a counter per second at each sample; None: not known."""
    found: list[float | None] = []
    last: tuple[float, int] | None = None
    for value, clock in zip(values, clocks, strict=True):
        rate = None
        if value is not None:
            if last is not None and clock > last[1] and value >= last[0]:
                rate = (value - last[0]) / ((clock - last[1]) / 1e9)
            last = (value, clock)
        found.append(rate)
    return found
