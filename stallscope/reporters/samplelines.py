# SPDX-License-Identifier: Apache-2.0
"""Samples over time as one line of text for each measure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stallscope.model.samples import Sample
from stallscope.reporters import units
from stallscope.reporters.lines import Line

__all__ = ["TITLES", "lines"]

TITLES = {
    "Threads_running": "threads running",
    "processlist.running": "sessions running",
    "heartbeat.ms": "heartbeat, ms",
    "process.cpu_share": "CPU, cores",
    "psi.io.some_avg10": "I/O pressure, %",
    "psi.cpu.some_avg10": "CPU pressure, %",
    "psi.memory.some_avg10": "memory pressure, %",
    "host.run_queue": "run queue",
}
"""The labels, with units, of the most important measures, by their names in `Sample`."""
_MOST_COLUMNS = 60
_NAME = 22
_EDGES = 20

_Points = list[tuple[int, float]]

_LEVELS = (
    "Threads_running",
    "processlist.running",
    "heartbeat.ms",
    "process.cpu_share",
    "psi.io.some_avg10",
    "host.run_queue",
)
_RATES = {
    "Questions": "questions a second",
    "Innodb_rows_read": "rows read a second",
}
"""Counters of the server, whose rates are shown."""


def lines(
    samples: Sequence[Sample],
    start_ns: int,
    end_ns: int | None,
    width: int,
    *,
    blocks: bool,
) -> Iterator[Line]:
    """Yield a line for each known measure that the samples have; the stall is between ``|``.

    ``blocks``: use block characters; otherwise digits, with 8 as the highest.
    """
    if not samples:
        return
    first = min(sample.time_ns for sample in samples)
    last = max(sample.time_ns for sample in samples)
    columns = max(10, min(_MOST_COLUMNS, width - _NAME - _EDGES - 4))
    span = max(1, last - first + 1)
    if span > 10**18:  # thirty years: the clock jumped
        return
    stall = (start_ns - first, (last if end_ns is None else end_ns) - first)
    edges = tuple(max(0, min(columns, at * columns // span)) for at in stall)
    any_shown = False
    titles = {name: TITLES[name] for name in _LEVELS} | _RATES
    for name, title in titles.items():
        points = (_rates if name in _RATES else _points)(samples, name)
        if len(points) > 1:
            any_shown = True
            cells = _cells([(at - first, value) for at, value in points], span, columns)
            yield Line(_line(title, cells, edges, blocks=blocks))
    if any_shown:
        over = f"over {units.duration(span / 1e6)}, the stall between | and |"
        scale = "" if blocks else "; 1 is lowest, 8 highest"
        yield Line(f"  {'':<{_NAME}}{over}{scale}")


def _points(samples: Sequence[Sample], name: str) -> _Points:
    return [
        (sample.time_ns, sample.values[name])
        for sample in samples
        if math.isfinite(sample.values.get(name, math.nan))
    ]


def _rates(samples: Sequence[Sample], name: str) -> _Points:
    """Return the rate of a counter at each sample but the first; none over a restart."""
    rates: _Points = []
    last: Sample | None = None
    for sample in samples:
        if not math.isfinite(sample.values.get(name, math.nan)):
            continue
        if last is not None and sample.clock_ns > last.clock_ns:
            rise = sample.values[name] - last.values[name]
            if rise >= 0:
                rates.append((sample.time_ns, rise * 1e9 / (sample.clock_ns - last.clock_ns)))
        last = sample
    return rates


def _cells(points: _Points, span: int, columns: int) -> list[float | None]:
    """Return the highest value in each column, None where there is none."""
    cells: list[float | None] = [None] * columns
    for at, value in points:
        column = min(columns - 1, at * columns // span)
        known = cells[column]
        cells[column] = value if known is None else max(known, value)
    return cells


def _line(
    title: str, cells: Sequence[float | None], edges: tuple[int, ...], *, blocks: bool
) -> str:
    values = [value for value in cells if value is not None]
    least, most = min(values), max(values)
    steps = units.BLOCKS if blocks else units.DIGITS
    scale = (len(steps) - 1) / (most - least) if most > least else 0.0
    drawn = [" " if value is None else steps[int((value - least) * scale)] for value in cells]
    for edge in sorted(edges, reverse=True):
        drawn.insert(edge, "|")
    return f"  {title:<{_NAME}}{''.join(drawn)}  {_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    return units.number(round(value)) if abs(value) >= 100 else f"{value:.3g}"
