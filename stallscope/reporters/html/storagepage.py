# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a server went, as one HTML file without a script: stacked bars over time, and
the same numbers as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from stallscope.base import package
from stallscope.base.text import one_line
from stallscope.model.storagewrites import CLASSES, Point, WritesReport
from stallscope.reporters import storagewrites, units
from stallscope.reporters.html.assets import Assets
from stallscope.reporters.html.page import environment, hash_source
from stallscope.reporters.html.view import utc

__all__ = ["bars", "render"]

WIDTH, HEIGHT = 960, 220
"""Size of the drawing, in its own units."""
LEFT, BELOW = 84, 22
"""For its labels."""
MAX_COLUMNS = 240
MAX_FILES = 40
_GRID = 4
_TICKS = 6
STYLE = """\
.bars { display: block; width: 100%; height: auto; max-height: 22rem; }
.bars text { fill: var(--dim); font: 12px var(--sans); }
.bars .grid { stroke: var(--line); stroke-width: 1; }
.bars rect { stroke: var(--card); stroke-width: .6; }
.bars .hit { fill: transparent; stroke: none; }
.bars .hit:hover { fill: var(--accent-soft); }
.w-redo { fill: var(--f-orange); background: var(--f-orange); }
.w-doublewrite { fill: var(--f-yellow); background: var(--f-yellow); }
.w-data { fill: var(--f-blue); background: var(--f-blue); }
.w-undo { fill: var(--f-purple); background: var(--f-purple); }
.w-binlog { fill: var(--f-green); background: var(--f-green); }
.w-relay { fill: var(--down-4); background: var(--down-4); }
.w-temporary { fill: var(--f-red); background: var(--f-red); }
.w-other { fill: var(--f-grey); background: var(--f-grey); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: 0; }
.legend li { display: flex; gap: .4rem; align-items: center; }
.path { overflow-wrap: anywhere; font-family: var(--mono); font-size: .82rem; }
"""


class Part(msgspec.Struct, frozen=True):
    """A class in a column."""

    css: str
    y: float
    height: float


class Column(msgspec.Struct, frozen=True):
    """An interval, as drawn; texts are ready to be shown."""

    x: float
    width: float
    parts: tuple[Part, ...]
    title: str
    time: str
    cells: tuple[str, ...]


class Drawing(msgspec.Struct, frozen=True):
    """The picture over time."""

    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    """Of the cells and the legend, from the lowest in the stack."""
    grid: tuple[tuple[float, str], ...]
    ticks: tuple[tuple[float, str], ...]
    unit: str


def render(report: WritesReport, assets: Assets) -> bytes:
    """Return the page."""
    shown = [item for item in report.classes if item.bytes or item.requests]
    text = [line.text for line in storagewrites.render(report, width=100)]
    page = (
        environment()
        .get_template("storage.html.j2")
        .render(
            began=utc(report.time_ns) if report.time_ns else "",
            classes=[
                {
                    "name": _name(item.file_class),
                    "css": _css(item.file_class),
                    "estimated": item.estimated is not None,
                    "cells": (
                        storagewrites.size(item.bytes),
                        storagewrites.per_second(item.bytes_per_second),
                        storagewrites.share(item.share),
                        storagewrites.size(item.requested_bytes),
                        units.number(item.requests),
                        storagewrites.size(item.mean_request_bytes),
                        storagewrites.size(item.bytes_per_commit),
                        storagewrites.size(item.bytes_per_row),
                    ),
                }
                for item in shown
            ],
            drawing=bars(report.series),
            files=[
                {
                    "path": "without a name" if file.path is None else one_line(file.path, 1000),
                    "name": _name(file.file_class),
                    "bytes": storagewrites.size(file.bytes),
                }
                for file in report.files[:MAX_FILES]
            ],
            headline=text[0] if text else "",
            height=HEIGHT + BELOW,
            left=LEFT,
            lower=HEIGHT,
            plot=WIDTH - LEFT,
            policy=_policy(assets),
            style=assets.style + STYLE,
            text="\n".join(text),
            title=one_line(f"stallscope: what {report.server or 'a server'} writes", 120),
            unaccounted=[
                (one_line(item.what, 100), storagewrites.size(item.bytes), one_line(item.why, 500))
                for item in report.unaccounted[:MAX_FILES]
            ],
            version=package.version(),
            width=WIDTH,
        )
    )
    return page.encode("utf-8", "backslashreplace")


def bars(series: Sequence[Point]) -> Drawing | None:
    """Return the picture of intervals, bytes a second by class; None without two of them."""
    points = _merged(series)
    rates = [
        (
            start,
            point.seconds,
            {n: c / (point.seconds - start) for n, c in point.bytes.items() if c},
        )
        for start, point in points
        if point.seconds > start
    ]
    top = max((sum(rate.values()) for _, _, rate in rates), default=0.0)
    if len(rates) < 2 or not top:
        return None
    seen = {name for _, _, rate in rates for name in rate}
    classes = [name for name in CLASSES if name in seen] + sorted(seen - set(CLASSES))[:4]
    step = (WIDTH - LEFT) / rates[-1][1]
    columns = []
    for start, end, rate in rates:
        parts: list[Part] = []
        y = float(HEIGHT)
        for name in classes:
            height = HEIGHT * rate.get(name, 0.0) / top
            y -= height
            if height:
                parts.append(Part(_css(name), round(y, 2), round(height, 2)))
        cells = tuple(storagewrites.per_second(rate.get(name)) for name in classes)
        said = ", ".join(
            f"{_name(name)} {cell}"
            for name, cell in zip(classes, cells, strict=True)
            if cell != "-"
        )
        time = f"{start:.0f} to {end:.0f} s"
        x, width = LEFT + start * step, max(0.5, (end - start) * step)
        columns.append(
            Column(round(x, 2), round(width, 2), tuple(parts), f"{time}: {said}", time, cells)
        )
    grid = tuple(
        (round(HEIGHT - HEIGHT * part / _GRID, 2), storagewrites.per_second(top * part / _GRID))
        for part in range(_GRID + 1)
    )
    every = max(1, len(columns) // _TICKS)
    ticks = tuple((c.x, f"{rates[n][0]:.0f} s") for n, c in enumerate(columns) if n % every == 0)
    return Drawing(tuple(columns), tuple(map(_name, classes)), grid, ticks, "bytes a second")


def _merged(series: Sequence[Point]) -> Iterator[tuple[float, Point]]:
    """Yield each point with its start, several as one where there are too many to draw."""
    every = -(-len(series) // MAX_COLUMNS) or 1
    start = 0.0
    for at in range(0, len(series), every):
        some = series[at : at + every]
        total: dict[str, int] = {}
        for point in some:
            for name, count in point.bytes.items():
                total[name] = total.get(name, 0) + count
        end = max(start, some[-1].seconds)
        yield start, Point(end, total)
        start = end


def _name(file_class: str) -> str:
    return one_line(file_class, 40)


def _css(file_class: str) -> str:
    return f"w-{file_class if file_class in CLASSES else 'other'}"


def _policy(assets: Assets) -> str:
    style = hash_source(assets.style + STYLE)
    return f"default-src 'none'; style-src {style}; base-uri 'none'; form-action 'none'"
