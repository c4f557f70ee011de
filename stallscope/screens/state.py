# SPDX-License-Identifier: Apache-2.0
"""The state of the live view, changed by events; without a terminal and a clock."""

from __future__ import annotations

from collections import deque

import msgspec

from stallscope.analyzers.analysis import Analysis
from stallscope.model import threadhistory
from stallscope.model.waitkinds import IDLE_KINDS
from stallscope.model.waitlines import Key, WaitLine
from stallscope.reporters.counts import count_states
from stallscope.screens.events import (
    Analyzed,
    Ended,
    Event,
    IncidentsListed,
    Noted,
    Rates,
    Saved,
    SourceState,
    WaitsSeen,
)
from stallscope.store import Summary

__all__ = ["HISTORY", "Doing", "KeyId", "Moment", "Rate", "State", "Watched"]

HISTORY = 240
"""Seconds of history: the width of the widest screen."""
_MOST_KEYS = 500

KeyId = tuple[str, str, int | None]
"""(kind, name, pid) of a lock or file."""


class Moment(msgspec.Struct, frozen=True):
    """Threads by state in one capture."""

    ts: float
    waiting: int
    running: int
    idle: int


class Doing(msgspec.Struct, frozen=True):
    """Threads by activity at one moment."""

    ts: float
    counts: dict[str, int]


class Rate(msgspec.Struct, frozen=True):
    """What the server did in the second before."""

    ts: float
    queries: float
    """A second."""
    running: int


class Watched(msgspec.Struct):
    """A lock or file, and how many threads waited for it on average, interval by interval."""

    key: Key
    loads: deque[float]

    @property
    def recent(self) -> float:
        """Return its weight in the list: the sum of the last ten intervals."""
        return sum(list(self.loads)[-10:])


class State:
    """Everything on the screens."""

    def __init__(self, title: str, *, replay: bool = False) -> None:
        self.title = title
        self.replay = replay
        self.moments: deque[Moment] = deque(maxlen=HISTORY)
        self.doing: deque[Doing] = deque(maxlen=HISTORY)
        self.rates: deque[Rate] = deque(maxlen=HISTORY)
        self._status: Rates | None = None
        self.line: WaitLine | None = None
        self.call_added_ns: float | None = None
        """What the wait programs add to each system call; None: not measured."""
        self.source: str | None = None
        """The source of waits or, without waits, of captures."""
        self.analysis: Analysis | None = None
        self.shot_ts = 0.0
        self.pause: float | None = None
        self.now = 0.0
        """Time of the latest event, seconds since the epoch."""
        self.watched: dict[KeyId, Watched] = {}
        self.incidents: tuple[Summary, ...] = ()
        self.degraded_sources: dict[str, str] = {}
        self.note = ""
        """The result of the last key."""
        self.ended: str | None = None

    def take(self, event: Event) -> None:
        """Change the state by an event."""
        match event:
            case WaitsSeen(line):
                self._waits(line)
            case Analyzed():
                self._analyzed(event)
            case Saved(path, error):
                self.note = f"saved (0600) {path}" if path is not None else f"not saved: {error}"
            case SourceState(source, text):
                if text is None:
                    self.degraded_sources.pop(source, None)
                else:
                    self.degraded_sources[source] = text
            case IncidentsListed(incidents):
                self.incidents = incidents
            case Noted(text):
                self.note = text
            case Rates():
                self._rates(event)
            case Ended(why):
                self.ended = why

    def _analyzed(self, analyzed: Analyzed) -> None:
        self.analysis = analyzed.analysis
        if self.line is None:
            self.source = analyzed.analysis.capture.backend
        self.pause = analyzed.pause
        self.shot_ts = analyzed.ts
        self.now = max(self.now, analyzed.ts)
        counts = count_states(analyzed.analysis)
        self.moments.append(
            Moment(analyzed.ts, counts["waiting"], counts["running"], counts["idle"])
        )

    def _rates(self, now: Rates) -> None:
        before, self._status = self._status, now
        self.now = max(self.now, now.ts)
        if before is None or now.ts <= before.ts or now.queries < before.queries:
            return  # the first, or the server has begun again
        rate = (now.queries - before.queries) / (now.ts - before.ts)
        self.rates.append(Rate(now.ts, rate, now.running))

    def _waits(self, line: WaitLine) -> None:
        if line.final:
            return
        self.line = line
        self.source = line.source or self.source
        self.now = max(self.now, line.ts)
        if line.call_added_ns is not None:
            self.call_added_ns = line.call_added_ns
        for sample in line.history:
            self.doing.append(Doing(sample.time_ns / 1e9, threadhistory.activities(sample)))
        seen = {(key.kind, key.name, key.pid): key for key in line.keys}
        for name, key in seen.items():
            if key.kind not in IDLE_KINDS and name not in self.watched:
                if len(self.watched) >= _MOST_KEYS:
                    break
                self.watched[name] = Watched(key, deque(maxlen=HISTORY))
        for name, watched in list(self.watched.items()):
            now = seen.get(name)
            watched.loads.append(0.0 if now is None else load(now, line.seconds))
            watched.key = now or _without_waits_in_flight(watched.key)
            if now is None and not any(watched.loads):
                del self.watched[name]

    def busiest(self) -> list[Watched]:
        """Return locks and files, those with the most waiting threads recently first."""
        found = [item for item in self.watched.values() if item.recent > 0]
        return sorted(
            found, key=lambda item: (-round(item.recent, 3), item.key.kind, item.key.name)
        )


def load(key: Key, seconds: float) -> float:
    """Return how many threads waited for it on average in an interval.

    A wait that ended in it counts with at most the length of the interval.
    """
    if seconds <= 0:
        return float(key.in_flight)
    return key.in_flight + min(key.total_ms / 1000, key.count * seconds) / seconds


def _without_waits_in_flight(key: Key) -> Key:
    return msgspec.structs.replace(
        key, count=0, total_ms=0.0, max_ms=0.0, in_flight=0, longest_in_flight_ms=0.0
    )
