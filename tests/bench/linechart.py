# SPDX-License-Identifier: Apache-2.0
"""A chart of lines over time as one SVG file: no script, light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Band", "Chart", "Line", "draw", "ticks"]

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 84, 44
COLOURS = ("#8a8f98", "#2f6fdb", "#c4552d", "#2e8b57")
STYLE = """\
text{font:13px system-ui,"DejaVu Sans",sans-serif;fill:#222}
.title{font-weight:600;font-size:15px}.page{fill:#fff}.grid{stroke:#ddd}.band0{fill:#f2a03d80}
.band1{fill:#4a90d940}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
@media (prefers-color-scheme:dark){
text{fill:#ddd}.page{fill:#16181d}.grid{stroke:#333}}
"""
LEGEND_STEP = 200


@dataclass(frozen=True)
class Line:
    """Points of one line; a None breaks it."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Band:
    """A span of time that something lasted; two kinds of them have a colour."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Chart:
    """What is drawn; the axis of values begins at 0, so that heights can be compared."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    dots: bool = False
    """Mark each point: there are few, and what is between them was not measured."""


def ticks(most: float, about: int) -> list[float]:
    """Return round numbers from 0 to at least ``most``, roughly so many steps."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [round(step * nr, 10) for nr in range(math.ceil(most / step - 1e-9) + 1)]


def draw(chart: Chart) -> str:
    """Return the SVG."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points if y is not None]
    x_ticks, y_ticks = ticks(max(xs, default=0), 10), ticks(max(ys, default=0), 5)
    x_most, y_most = x_ticks[-1], y_ticks[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / x_most
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / y_most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(chart.title)}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="22">{escape(chart.title)}</text>',
    ]
    kinds = list(dict.fromkeys(band.name for band in chart.bands))
    # The first kind lies on top.
    for band in sorted(chart.bands, key=lambda band: -kinds.index(band.name)):
        left, top = at(band.start, y_most)
        right, bottom = at(min(band.end, x_most), 0)
        parts.append(
            f'<rect class="band{kinds.index(band.name)}" x="{left:.1f}" y="{top:.1f}"'
            f' width="{right - left:.1f}" height="{bottom - top:.1f}">'
            f"<title>{escape(band.name)}</title></rect>"
        )
    for y in y_ticks:
        left, height = at(0, y)
        parts.append(
            f'<line class="grid" x1="{left:.1f}" x2="{WIDTH - RIGHT}" y1="{height:.1f}"'
            f' y2="{height:.1f}"/><text x="{LEFT - 8}" y="{height + 4:.1f}"'
            f' text-anchor="end">{y:g}</text>'
        )
    for x in x_ticks:
        across, low = at(x, 0)
        parts.append(f'<text x="{across:.1f}" y="{low + 18:.1f}" text-anchor="middle">{x:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(chart.x_name)}</text>"
        f'<text x="{LEFT - 48}" y="{TOP - 10}">{escape(chart.y_name)}</text>'
    )
    for nr, line in enumerate(chart.lines):
        colour = COLOURS[nr % len(COLOURS)]
        path = " ".join(
            f"{letter}{across:.1f} {height:.1f}"
            for letter, x, y in pen(line.points)
            for across, height in [at(x, y)]
        )
        parts.append(f'<path class="line" stroke="{colour}" d="{path}"/>')
        if chart.dots:
            parts += [
                f'<circle cx="{across:.1f}" cy="{height:.1f}" r="3.5" fill="{colour}"/>'
                for x, y in line.points
                if y is not None
                for across, height in [at(x, y)]
            ]
    parts += legend(chart)
    return "\n".join([*parts, "</svg>", ""])


def pen(points: Sequence[tuple[float, float | None]]) -> Iterator[tuple[str, float, float]]:
    """Yield M for the first point of each unbroken piece and L for the others."""
    letter = "M"
    for x, y in points:
        if y is None:
            letter = "M"
            continue
        yield letter, x, y
        letter = "L"


def legend(chart: Chart) -> Iterator[str]:
    entries = [
        (line.name, f'fill="{COLOURS[nr % len(COLOURS)]}"') for nr, line in enumerate(chart.lines)
    ]
    names = dict.fromkeys(band.name for band in chart.bands)
    entries += [(name, f'class="band{nr}"') for nr, name in enumerate(names)]
    for nr, (name, paint) in enumerate(entries):
        x = LEFT + nr * LEGEND_STEP
        yield (
            f'<rect x="{x}" y="36" width="14" height="12" {paint}/>'
            f'<text x="{x + 20}" y="47">{escape(name)}</text>'
        )
