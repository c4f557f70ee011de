# SPDX-License-Identifier: Apache-2.0
"""Samples of an incident as series over time, small enough for a page."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Any

from stallscope.model import threadhistory
from stallscope.model.incident import Fired
from stallscope.model.samples import Sample, is_counter, rates
from stallscope.model.waitlines import ThreadSample
from stallscope.reporters.html.pack import shown

__all__ = ["MAX_POINTS", "MAX_SERIES", "build", "marks", "threads"]

SHOWN = 7
"""That many of the series that show most can be among the first charts."""
MAX_SERIES = 400
MAX_POINTS = 400_000
"""The most values of all series together: about 3 MB of the page."""

MAX_THREAD_SAMPLES = 4_000

_NAMES = {
    threadhistory.RUNNING: "threads that run",
    threadhistory.UNINTERRUPTIBLE: "threads in uninterruptible sleep",
    threadhistory.IDLE: "idle threads",
    threadhistory.OTHER: "threads without details",
}
_FIRST = (
    "Threads_running",
    "processlist.running",
    "heartbeat.ms",
    "process.cpu_share",
    "disk.datadir.util",
    "host.run_queue",
    "psi.io.some_avg10",
    "psi.cpu.some_avg10",
    "psi.memory.some_avg10",
    "Innodb_row_lock_current_waits",
    "backends.waiting",
)
"""The series that show most about a stall, most useful first."""
_WORD = re.compile(r"[\w.-]+")


Window = tuple[int, int] | None
"""Beginning and end of the stall, in nanoseconds of the wall clock; None: not known."""


def build(
    samples: Sequence[Sample], fired: Sequence[Fired], window: Window = None
) -> list[dict[str, Any]]:
    """Return one table for each collector: ``source``, ``time`` (ms), ``series`` by name.

    Counters of the server are given as rates a second, under their name and ``/s``. Series that
    never change are left out, except those that matter most. ``first`` names the series to show;
    ``changed`` says how much each of these differs in the window from before and after it.
    """
    by_source: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.error is None:
            by_source[sample.source].append(sample)
    asked = {word.rstrip(".") for item in fired for word in _WORD.findall(item.why)}
    left, points = MAX_SERIES, MAX_POINTS
    tables = []
    for source, items in sorted(by_source.items()):
        items.sort(key=lambda sample: sample.clock_ns)
        names = sorted({name for item in items for name in item.values})
        names.sort(key=lambda name: (_rank(name, asked), name))
        series: dict[str, list[float | None]] = {}
        for name in names:
            values = [item.values.get(name) for item in items]
            label = shown(name)
            if is_counter(source, name):
                values = rates(values, [item.clock_ns for item in items])
                label += "/s"
            if len({v for v in values if v is not None}) < 2 and _rank(name, asked) > len(_FIRST):
                continue
            if left <= 0 or points < len(values):
                break
            left, points = left - 1, points - len(values)
            series[label] = [None if v is None else _short(v) for v in values]
        if series:
            first = [n for n in series if _rank(n.removesuffix("/s"), asked) <= SHOWN]
            inside = _inside([item.time_ns for item in items], window)
            tables.append(
                {
                    "source": shown(source),
                    "time": [item.time_ns // 10**6 for item in items],
                    "series": series,
                    "first": first,
                    "changed": {name: _change(series[name], inside) for name in first},
                }
            )
    return tables


def _inside(times: Sequence[int], window: Window) -> list[bool]:
    if window is None:
        return []
    begin, end = window
    return [begin <= time <= end for time in times]


def _change(values: Sequence[float | None], inside: Sequence[bool]) -> float:
    """Return by how many of its usual deviations a series differs in the stall; 0: not known."""
    during = [v for v, now in zip(values, inside, strict=False) if now and v is not None]
    usual = [v for v, now in zip(values, inside, strict=False) if not now and v is not None]
    if not during or not usual:
        return 0.0
    spread = statistics.pstdev(usual) + 0.05 * max(map(abs, (*usual, *during)))
    if not spread:
        return 0.0
    return round(abs(statistics.fmean(during) - statistics.fmean(usual)) / spread, 2)


def threads(samples: Iterable[ThreadSample], window: Window = None) -> list[dict[str, Any]]:
    """Return one table with the threads by activity; none where there are no samples."""
    found = sorted(samples, key=lambda sample: sample.time_ns)[-MAX_THREAD_SAMPLES:]
    if not found:
        return []
    counts = [threadhistory.activities(sample) for sample in found]
    names = threadhistory.in_order({name for one in counts for name in one})
    series = {"active threads": [_active(one) for one in counts]}
    series |= {_NAMES.get(n, f"threads in {n}"): [one[n] for one in counts] for n in names}
    waiting = [n for n in names if threadhistory.active(n) and n != threadhistory.RUNNING]
    most = max(waiting, key=lambda n: max(one[n] for one in counts), default=None)
    first = ["active threads", *([] if most is None else [_NAMES.get(most, f"threads in {most}")])]
    inside = _inside([sample.time_ns for sample in found], window)
    return [
        {
            "source": "threads",
            "time": [sample.time_ns // 10**6 for sample in found],
            "series": series,
            "first": first,
            "changed": {name: _change(series[name], inside) for name in first},
        }
    ]


def _active(counts: Counter[str]) -> int:
    return sum(count for name, count in counts.items() if threadhistory.active(name))


def _rank(name: str, asked: Set[str]) -> int:
    """Order series: those that a trigger names, then the most useful ones, then the rest."""
    if name in asked:
        return 0
    return _FIRST.index(name) + 1 if name in _FIRST else len(_FIRST) + 1


def _short(value: float) -> float:
    """Round to the digits that a drawing can show."""
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def marks(fired: Iterable[Fired]) -> list[dict[str, Any]]:
    """Return the triggers that fired, with their time."""
    return [
        {
            "time": item.time_ns // 10**6,
            "name": shown(item.trigger),
            "why": shown(item.why),
            "threshold": item.threshold,
        }
        for item in fired
    ]
