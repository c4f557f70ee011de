# SPDX-License-Identifier: Apache-2.0
"""The latest value of each name that triggers read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallscope.collectors.triggers.expression import Name, Named, States
from stallscope.model.samples import UNANSWERED, Sample

__all__ = ["STATE", "Reading", "Readings"]

STATE = "processlist.state."
_PROCESSLIST = "processlist"
_HEARTBEAT = "heartbeat"
FIRST_ANSWER_MS = 2000.0
"""The first answer of a server that starts takes long. Later than this, clients wait for it."""
_SINCE = ("Uptime", "Uptime_since_flush_status")
"""Values that decrease when the server restarts or its counters are reset."""


class Reading(NamedTuple):
    """A value, and its time by the monotonic clock."""

    value: float
    clock_ns: int


class Readings:
    """Values by name, from the samples of all collectors as they come in.

    ``constants``: values that do not change while the agent runs (``host.cpus``); samples override
    them.
    """

    def __init__(
        self, wanted: Iterable[Named], constants: Mapping[str, float] | None = None
    ) -> None:
        self._constants = dict(constants or {})
        self._latest: dict[Named, Reading] = {}
        self._names = [n for n in dict.fromkeys(wanted) if isinstance(n, Name)]
        self._states = {n: _matcher(n.pattern) for n in wanted if isinstance(n, States)}
        self._since: dict[str, float] = {}
        self._answered = False
        self.epoch = 0
        """The number of restarts of the server: values are not compared across one."""

    def take(self, sample: Sample) -> frozenset[Named]:
        """Take a sample; return which of the used names it has."""
        values: Mapping[str, float] = sample.values
        if sample.source == _HEARTBEAT:
            if sample.error is None:
                self._answered = True
                values = {UNANSWERED: 0.0, **values}
            elif not self._answered and values.get(UNANSWERED, 0.0) < FIRST_ANSWER_MS:
                values = {name: value for name, value in values.items() if name != UNANSWERED}
        elif sample.error is not None:
            return frozenset()
        self._look_for_restart(values)
        found: set[Named] = set()
        for name in self._names:
            value = values.get(name.name)
            if value is not None:
                self._latest[name] = Reading(value, sample.clock_ns)
                found.add(name)
        if sample.source == _PROCESSLIST and self._states:
            for states, count in self._count(values):
                self._latest[states] = Reading(count, sample.clock_ns)
                found.add(states)
        return frozenset(found)

    def reading(self, name: Named, clock_ns: int, stale_ns: int) -> Reading | None:
        """Return the latest value, unless it is older than ``stale_ns`` at ``clock_ns``."""
        reading = self._latest.get(name)
        if reading is not None:
            return reading if clock_ns - reading.clock_ns <= stale_ns else None
        if isinstance(name, Name) and name.name in self._constants:
            return Reading(self._constants[name.name], clock_ns)
        return None

    def restarted(self) -> None:
        """Remove the values of a server process that has ended."""
        self.epoch += 1
        self._latest.clear()
        self._since.clear()
        self._answered = False

    def follow(self, before: Readings) -> None:
        """Go on with what readings of earlier settings know of the server."""
        self.epoch = before.epoch
        self._answered = before._answered

    def _look_for_restart(self, values: Mapping[str, float]) -> None:
        for name in _SINCE:
            value = values.get(name)
            if value is None:
                continue
            if value < self._since.get(name, value):
                self.epoch += 1
            self._since[name] = value

    def _count(self, values: Mapping[str, float]) -> Iterable[tuple[States, float]]:
        """Count the threads in each used state; a state without threads counts 0."""
        states = [(n[len(STATE) :], v) for n, v in values.items() if n.startswith(STATE)]
        for wanted, pattern in self._states.items():
            yield wanted, sum(count for state, count in states if pattern.fullmatch(state))


def _matcher(pattern: str) -> re.Pattern[str]:
    """Compile a state with ``*`` for any text, ignoring case: servers differ in it."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.IGNORECASE | re.DOTALL)
