# SPDX-License-Identifier: Apache-2.0
"""The agent's own metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.base import package
from stallscope.fleet.shipping.sender import Numbers
from stallscope.reporters.exposition import Families, Labels
from stallscope.reporters.statusmetrics import StatusMetrics

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["AgentMetrics", "waiting"]

_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds from a breach to its finished capture."""
_RESULTS = ("whole", "partial", "failed", "suppressed")
_PARTS = ("analysis", "hook", "loop", "notification", "output", "probe", "ship", "store", "thread")
"""Series that are there from the start, at 0: a rate sees only the increases of those it knows."""


class AgentMetrics:
    """Counters since the start of the agent, and current values."""

    def __init__(self, labels: Mapping[str, str], started: float, threads: ThreadMetrics) -> None:
        self._threads = threads
        self._make = Families(labels)
        self.status = StatusMetrics()
        self._started = started
        self.polls = 0
        self.samples: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.captures: Counter[str] = Counter()
        """By result: ``whole``, ``partial``, ``failed``, ``suppressed``."""
        self.incidents: Counter[str] = Counter()
        """By verdict; ``none`` and ``unknown`` are verdicts here."""
        self.up: dict[str, bool] = {}
        """``server``, ``probe``, ``sql``."""
        self.failures: Counter[str] = Counter()
        """By what failed: ``hook``, ``store``, ``probe``, ``analysis``, ``thread``, ``loop``,
        ``ship``."""
        self.incident_open = False
        self.blind_seconds = 0.0
        self.undelivered: dict[str, int] = {}
        """Notifications that wait, by destination."""
        self.shipping: Mapping[str, Numbers] = {}
        """By the address of an engine of the fleet."""
        self.ring_bytes = 0
        self.written: float | None = None
        """``write_bytes`` of the server's process since its start; None: not known."""
        self.uncached_bytes = self.uncached_files = 0.0
        """What was dropped from the page cache (``[storage]``)."""
        self.writer_busy = 0.0
        """Seconds since the disk was asked to write what it has not written yet."""
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def captured(self, seconds: float) -> None:
        """Count the time from the breach to the finished capture."""
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def families(self) -> Iterator[Metric]:
        """Yield the metrics, as they are now."""
        make = self._make
        yield from make.info("agent", "The agent that runs.", {"version": package.version()})
        yield from make.gauge(
            "agent_start_time_seconds",
            "When the agent was started, in seconds since the epoch.",
            {(): self._started},
        )
        yield from make.counter("agent_polls", "Polls.", {(): self.polls})
        for name, text, label, counts in (
            ("collector_samples", "Samples by collector.", "collector", self.samples),
            ("collector_errors", "Failed collections by collector.", "collector", self.errors),
            (
                "collector_late",
                "Collections that exceeded their deadline, by collector.",
                "collector",
                self.late,
            ),
            ("triggers_fired", "How often each trigger fired.", "trigger", self.fired),
            ("captures", "Captures by result.", "result", _from_zero(_RESULTS, self.captures)),
            ("incidents", "Incidents by verdict.", "verdict", self.incidents),
            (
                "failures",
                "Failures of the agent, by part.",
                "what",
                _from_zero(_PARTS, self.failures),
            ),
        ):
            values: dict[Labels, float] = {((label, key),): n for key, n in counts.items()}
            yield from make.counter(f"agent_{name}", text, values)
        yield from _sight(
            make, self.up, waits=not self.up.get("server", True), blind=self.blind_seconds
        )
        yield from make.gauge(
            "agent_incident_open",
            "Whether an incident is open.",
            {(): int(self.incident_open)},
        )
        waiting: dict[Labels, float] = {
            (("destination", name),): n for name, n in self.undelivered.items()
        }
        yield from make.gauge(
            "agent_notifications_waiting", "Notifications that wait, by destination.", waiting
        )
        yield from make.gauge(
            "agent_history_bytes",
            "Memory of the samples and waits of the last minute, in bytes.",
            {(): self.ring_bytes},
        )
        yield from make.gauge(
            "agent_writer_busy_seconds",
            "For how long the store's disk has not answered; 0: it has.",
            {(): self.writer_busy},
        )
        yield from self._of_shipping(make)
        yield from self._of_storage(make)
        yield from self._threads.families(make)
        if self.up.get("server"):
            yield from self.status.families(make)
        yield from make.histogram(
            "agent_breach_to_capture_seconds",
            "Time from a breach to the end of its first capture.",
            _BOUNDS,
            {(): (self._buckets, self._seconds)},
        )

    def _of_shipping(self, make: Families) -> Iterator[Metric]:
        for name, text, value in (
            ("ship_batches_waiting", "Batches in the spool, by destination.", "waiting"),
            ("ship_bytes_waiting", "Bytes in the spool, by destination.", "bytes"),
        ):
            yield from make.gauge(f"agent_{name}", text, self._by_engine(value))
        for name, text, value in (
            ("ship_rows", "Rows that were shipped, by destination.", "sent"),
            ("ship_rows_dropped", "Rows that will never be shipped, by destination.", "dropped"),
            ("ship_failures", "Attempts to ship that failed, by destination.", "failures"),
            ("ship_cpu_seconds", "CPU time of shipping, by destination.", "cpu_seconds"),
        ):
            yield from make.counter(f"agent_{name}", text, self._by_engine(value))

    def _by_engine(self, value: str) -> dict[Labels, float]:
        return {
            (("destination", name),): getattr(one, value) for name, one in self.shipping.items()
        }

    def _of_storage(self, make: Families) -> Iterator[Metric]:
        yield from make.counter(
            "server_write_bytes",
            "Bytes that the kernel charged to the server's process, by /proc/PID/io.",
            {} if self.written is None else {(): self.written},
        )
        yield from make.counter(
            "agent_uncached_bytes",
            "Bytes of old logs that were dropped from the page cache.",
            {(): self.uncached_bytes},
        )
        yield from make.counter(
            "agent_uncached_files",
            "Files of which something was dropped from the page cache.",
            {(): self.uncached_files},
        )


def waiting(name: str, seconds: float) -> Iterator[Metric]:
    """Yield the metrics of an agent that waits for its server since so many seconds, and has none
    of a server yet. ``name``: the program's."""
    yield from _sight(Families({"server": name}), {"server": False}, waits=True, blind=seconds)


def _sight(
    make: Families, up: Mapping[str, bool], *, waits: bool, blind: float
) -> Iterator[Metric]:
    yield from make.gauge(
        "agent_up",
        "Whether the server runs, the probe is ready, and SQL answers.",
        {(("what", key),): int(value) for key, value in up.items()},
    )
    yield from make.gauge("agent_waiting", "Whether the server is waited for.", {(): int(waits)})
    yield from make.gauge(
        "agent_blind_seconds",
        "For how long nothing has shown whether the server stalls; 0: something does.",
        {(): blind},
    )


def _from_zero(names: tuple[str, ...], counts: Mapping[str, int]) -> dict[str, int]:
    return {**dict.fromkeys(names, 0), **counts}
