# SPDX-License-Identifier: Apache-2.0
"""Samples: what one collector saw at one moment, as numbers by name."""

from __future__ import annotations

import msgspec

from stallscope.base.times import Moment

__all__ = ["Sample"]


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
