# SPDX-License-Identifier: Apache-2.0
"""Waits as Prometheus metrics.

Counters are sums over all lines since the start, and never go back. Labels are bounded: kinds,
classes of files, causes, and locks only where they are named global variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from stallscope.model.waitlines import Buckets, Key, WaitLine, Waits
from stallscope.reporters.exposition import Families, Labels

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["MAX_LOCKS", "Metrics"]

MAX_LOCKS = 50
"""The most locks with their own counters; locks that come later have none."""

_BOUNDS_NS = tuple(1 << shift for shift in range(10, 36, 2))
"""Upper bounds of the histograms' buckets: 1 µs to 17 s, each 4 times the one before.

Each is a time series for each kind and class on each host: the finer ones are in --json.
"""
_BOUNDS = tuple(ns / 1e9 for ns in _BOUNDS_NS)
_NAMED_LOCK = re.compile(r"[A-Za-z_][A-Za-z0-9_:.]{0,127}", re.ASCII)
_LOCK_KINDS = ("mutex", "rwlock")


class _Sums:
    """Counters of one set of labels."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.over = 0
        self.bytes: int | None = None
        self.buckets = [0] * (len(_BOUNDS_NS) + 1)

    def add(self, waits: Waits) -> None:
        self.seconds += waits.total_ms / 1000
        self.over += waits.over
        if waits.bytes is not None:
            self.bytes = (self.bytes or 0) + waits.bytes
        _sort_in(self.buckets, waits.histogram, waits.count)

    def follows(self, before: _Sums) -> bool:
        """Return whether no counter has decreased."""
        grown = all(
            now >= then
            for now, then in zip(accumulate(self.buckets), accumulate(before.buckets), strict=True)
        )
        return (
            grown
            and self.seconds >= before.seconds
            and self.over >= before.over
            and (self.bytes or 0) >= (before.bytes or 0)
        )


def _sort_in(buckets: list[int], histogram: Buckets, count: int) -> None:
    """Add a histogram; waits that none of its buckets counts go into the last bucket."""
    counted = 0
    for _, end, waits in histogram:
        place = next((i for i, bound in enumerate(_BOUNDS_NS) if end < bound), len(_BOUNDS_NS))
        buckets[place] += waits
        counted += waits
    buckets[-1] += max(0, count - counted)


class Metrics:
    """All counts since the start.

    ``labels`` distinguish this server from others on the host; they are the same after its restart.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._make = Families(labels)
        self._kinds: dict[str, _Sums] = {}
        self._classes: dict[tuple[str, str], _Sums] = {}
        self._locks: dict[tuple[str, str], _Sums] = {}
        self._in_flight: dict[str, int] = {}
        self._longest: dict[str, float] = {}
        self._lost: dict[str, int] = {}
        self._programs: dict[str, bool] = {}
        self._seconds = 0.0

    def count(self, line: WaitLine) -> None:
        """Count a line: one interval, or all of it at the end."""
        if line.final:
            self.finish(line)
        else:
            self.add(line)

    def add(self, line: WaitLine) -> None:
        """Add one interval."""
        self._seconds += line.seconds
        self._add_counts(line)
        self._in_flight = {name: waits.in_flight for name, waits in line.kinds.items()}
        self._longest = dict.fromkeys(line.kinds, 0.0)
        for key in line.keys:
            longest = max(self._longest.get(key.kind, 0.0), key.longest_in_flight_ms / 1000)
            self._longest[key.kind] = longest
            if _is_named_lock(key):
                self._add_lock(key)

    def finish(self, line: WaitLine) -> None:
        """Add the final line: the totals, with the waits after the last interval.

        Waits in flight are left out from here on: they are no longer watched.
        """
        kinds, classes = self._kinds, self._classes
        self._kinds, self._classes = {}, {}
        self._add_counts(line)
        _keep_later(self._kinds, kinds)
        _keep_later(self._classes, classes)
        self._seconds = max(line.seconds, self._seconds)
        self._in_flight.clear()
        self._longest.clear()

    def _add_counts(self, line: WaitLine) -> None:
        for name, waits in line.kinds.items():
            self._kinds.setdefault(name, _Sums()).add(waits)
        for of_class in line.classes or ():
            self._classes.setdefault((of_class.kind, of_class.file_class), _Sums()).add(of_class)
        for cause, count in line.lost.items():  # since the start, in each line
            self._lost[cause] = max(count, self._lost.get(cause, 0))
        for program in line.programs:
            self._programs[program.name] = program.ok

    def _add_lock(self, key: Key) -> None:
        labels = (key.kind, key.name)
        if labels in self._locks or len(self._locks) < MAX_LOCKS:
            self._locks.setdefault(labels, _Sums()).add(key)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics, as they are now."""
        make = self._make
        yield from make.counter(
            "watched_seconds", "Seconds for which waits were watched.", {(): self._seconds}
        )
        kinds: dict[Labels, _Sums] = {(("kind", kind),): sums for kind, sums in self._kinds.items()}
        yield from self._histogram(
            "wait_duration_seconds", "Waits in system calls, by kind.", kinds
        )
        yield from make.counter(
            "wait_over_threshold",
            "Waits longer than the threshold of their kind.",
            {labels: sums.over for labels, sums in kinds.items()},
        )
        yield from make.counter(
            "wait_bytes",
            "Bytes read and written.",
            {labels: sums.bytes for labels, sums in kinds.items() if sums.bytes is not None},
        )
        yield from make.gauge(
            "waits_in_flight",
            "Waits in flight above the threshold of their kind.",
            {(("kind", kind),): count for kind, count in self._in_flight.items()},
        )
        yield from make.gauge(
            "wait_in_flight_longest_seconds",
            "Longest wait in flight.",
            {(("kind", kind),): seconds for kind, seconds in self._longest.items()},
        )
        yield from self._files()
        yield from self._named_locks()
        yield from make.counter(
            "wait_lost",
            "Lost records and unread data, by cause.",
            {(("cause", cause),): count for cause, count in self._lost.items()},
        )
        yield from make.gauge(
            "wait_program_up",
            "Whether a wait program works on this host.",
            {(("program", name),): int(ok) for name, ok in self._programs.items()},
        )

    def _files(self) -> Iterator[Metric]:
        classes: dict[Labels, _Sums] = {
            (("kind", kind), ("class", of)): sums for (kind, of), sums in self._classes.items()
        }
        yield from self._histogram(
            "file_wait_duration_seconds", "Waits for files, by kind and class of file.", classes
        )
        yield from self._make.counter(
            "file_wait_bytes",
            "Bytes read and written, by class of file.",
            {labels: sums.bytes for labels, sums in classes.items() if sums.bytes is not None},
        )

    def _named_locks(self) -> Iterator[Metric]:
        locks: dict[Labels, _Sums] = {
            (("kind", kind), ("lock", name)): sums for (kind, name), sums in self._locks.items()
        }
        yield from self._make.counter(
            "lock_wait_seconds",
            "Time waited for a lock while it was among the longest-waited.",
            {labels: sums.seconds for labels, sums in locks.items()},
        )
        yield from self._make.counter(
            "lock_waits",
            "Waits for a lock while it was among the longest-waited.",
            {labels: sum(sums.buckets) for labels, sums in locks.items()},
        )

    def _histogram(self, name: str, text: str, values: Mapping[Labels, _Sums]) -> Iterator[Metric]:
        of = {labels: (sums.buckets, sums.seconds) for labels, sums in values.items()}
        return self._make.histogram(name, text, _BOUNDS, of)


_Label = TypeVar("_Label")


def _keep_later(totals: dict[_Label, _Sums], before: dict[_Label, _Sums]) -> None:
    """Keep counters from going backwards: a lock's kind can become known late."""
    for label, sums in before.items():
        total = totals.get(label)
        if total is None or not total.follows(sums):
            totals[label] = sums


def _is_named_lock(key: Key) -> bool:
    return key.kind in _LOCK_KINDS and _NAMED_LOCK.fullmatch(key.name) is not None
