# SPDX-License-Identifier: Apache-2.0
"""What the server's threads do, from the lines of waits: kept for minutes, written for other
processes, and as metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.agent.writer import Writer
from stallscope.collectors.processes import Server
from stallscope.model import threadhistory
from stallscope.model.threadhistory import ThreadHistory
from stallscope.model.waitlines import Rest, ThreadSample, WaitLine
from stallscope.reporters.exposition import Families, Labels
from stallscope.store.history import HistoryWriter

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["ThreadMetrics", "ThreadWatch"]

_log = logging.getLogger(__name__)

MAX_WAITING = 100
"""Samples that wait to be written; of more, the oldest are dropped."""


class ThreadMetrics:
    """Threads by activity, and the state of a source that rests."""

    def __init__(self) -> None:
        self.latest: ThreadSample | None = None
        self.attached: bool | None = None
        """None: there is no probe that watches waits."""
        self.rest: Rest | None = None
        self._armed = 0
        """By probes that have ended."""

    @property
    def armed(self) -> int:
        """Return how often the wait programs were attached since the agent's start."""
        return self._armed + (0 if self.rest is None else self.rest.arms)

    def take(self, line: WaitLine) -> None:
        """Take the values of a line."""
        if line.history:
            self.latest = line.history[-1]
        if line.rest is None:
            self.attached = line.source == "bpf"
            return
        self.attached = not line.rest.resting
        if self.rest is not None and line.rest.arms < self.rest.arms:
            self._armed += self.rest.arms
        self.rest = line.rest

    def ended(self) -> None:
        """Show no old values: the probe or the server has ended."""
        self._armed = self.armed
        self.latest = self.attached = self.rest = None

    def families(self, make: Families) -> Iterator[Metric]:
        """Yield the metrics."""
        counts = {} if self.latest is None else threadhistory.activities(self.latest)
        activities: dict[Labels, float] = {(("activity", name),): n for name, n in counts.items()}
        yield from make.gauge(
            "threads",
            "Threads of the server by what they do: a kind of wait, running, idle.",
            activities,
        )
        yield from make.gauge(
            "wait_programs_attached",
            "Whether the wait programs are attached now.",
            {} if self.attached is None else {(): int(self.attached)},
        )
        yield from make.counter(
            "wait_programs_armed",
            "How often the wait programs were attached because of a long wait.",
            {(): self.armed},
        )
        if self.rest is None:
            return
        if self.rest.interval_ms is not None:
            yield from make.gauge(
                "sentinel_interval_seconds",
                "Time between two polls of the server's threads.",
                {(): self.rest.interval_ms / 1000},
            )
        yield from make.gauge(
            "sentinel_threads", "Threads in the latest poll.", {(): self.rest.threads}
        )


class ThreadWatch:
    """The thread history of the agent. All but the writing of files is in the loop's thread."""

    def __init__(self, dest: Path, writer: Writer) -> None:
        self.history = ThreadHistory()
        self.metrics = ThreadMetrics()
        self.disk_full = False
        """There is too little disk: nothing is written."""
        self._writer = writer
        self._file = HistoryWriter(dest)
        self._waiting: list[ThreadSample] = []
        self._refused = 0

    def take(self, line: WaitLine) -> None:
        """Take a line of waits."""
        self.metrics.take(line)
        for sample in line.history:
            self.history.add(sample)
        self._waiting = [*self._waiting, *line.history][-MAX_WAITING:]
        refused = 0 if line.rest is None else line.rest.refused
        if line.rest is not None and refused > self._refused:
            why = line.rest.why or "no reason given"
            _log.warning("the wait programs could not be attached: %s; waits are polled", why)
        self._refused = refused

    def ended(self) -> None:
        """The probe or the server has ended."""
        self.metrics.ended()
        self._refused = 0

    def flush(self, server: Server) -> None:
        """Have the samples written, as samples of this server."""
        samples, self._waiting = self._waiting, []
        if samples and not self.disk_full:
            name, pids = server.name, server.pids
            self._writer.submit(lambda: self._file.append(name, pids, samples), needed=False)

    def close(self) -> None:
        """Have the file closed, after what waits to be written."""
        self._writer.submit(self._file.close)
