# SPDX-License-Identifier: Apache-2.0
"""The agent's own metrics, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.base import package
from stallscope.reporters.exposition import Exposition, Labels

__all__ = ["AgentMetrics"]

_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds from a breach to its finished capture."""


class AgentMetrics:
    """Counters since the start of the agent, and current values."""

    def __init__(self, labels: Mapping[str, str], started: float, threads: ThreadMetrics) -> None:
        self._threads = threads
        self._page = Exposition(labels)
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
        """By what failed: ``hook``, ``store``, ``probe``, ``analysis``."""
        self.incident_open = False
        self.ring_bytes = 0
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def captured(self, seconds: float) -> None:
        """Count the time from the breach to the finished capture."""
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def text(self) -> bytes:
        """Return the metrics."""
        return "".join(f"{line}\n" for line in self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        page = self._page
        version: dict[Labels, float] = {(("version", package.version()),): 1}
        yield from page.samples("agent_info", "gauge", "The agent that runs.", version)
        yield from page.samples(
            "agent_start_time_seconds",
            "gauge",
            "When the agent was started, in seconds since the epoch.",
            {(): self._started},
        )
        yield from page.samples("agent_polls_total", "counter", "Polls.", {(): self.polls})
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
            ("captures", "Captures by result.", "result", self.captures),
            ("incidents", "Incidents by verdict.", "verdict", self.incidents),
            ("failures", "Failures of the agent, by part.", "what", self.failures),
        ):
            values: dict[Labels, float] = {((label, key),): n for key, n in counts.items()}
            yield from page.samples(f"agent_{name}_total", "counter", text, values)
        yield from page.samples(
            "agent_up",
            "gauge",
            "Whether the server runs, the probe is ready, and SQL answers.",
            {(("what", key),): int(value) for key, value in self.up.items()},
        )
        yield from page.samples(
            "agent_incident_open",
            "gauge",
            "Whether an incident is open.",
            {(): int(self.incident_open)},
        )
        yield from page.samples(
            "agent_history_bytes",
            "gauge",
            "Memory of the samples and waits of the last minute, in bytes.",
            {(): self.ring_bytes},
        )
        yield from self._threads.lines(page)
        if sum(self._buckets):
            yield from page.histogram(
                "agent_breach_to_capture_seconds",
                "Time from a breach to the end of its first capture.",
                _BOUNDS,
                {(): (self._buckets, self._seconds)},
            )
