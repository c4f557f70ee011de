# SPDX-License-Identifier: Apache-2.0
"""A chart of bars with their figures as one SVG file: no script, light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tests.bench.linechart import LEFT, RIGHT, STYLE, WIDTH, ticks
from tests.bench.stats import number

__all__ = ["Bar", "Bars", "Group", "draw"]

FILLS = ("#8a8f98", "#2f6fdb", "#c4552d", "#2e8b57")
TOP, BOTTOM = 74, 46
BAR, BETWEEN, GROUP = 20, 4, 14
LABELS = 290
"""Room for the names of groups."""
FIGURES = 110
"""Room for the figure behind the longest bar."""
LEGEND_STEP = 210
SPREAD = ".spread{stroke:#222;stroke-width:1.4}"
DARK_SPREAD = "@media (prefers-color-scheme:dark){.spread{stroke:#ddd}}"


@dataclass(frozen=True)
class Bar:
    """One value with its lowest and highest; ``kind`` is a name of the legend."""

    kind: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """Bars that are compared with each other."""

    name: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Bars:
    """What is drawn. ``log``: for values of different sizes, each step of the axis is ten times."""

    title: str
    unit: str
    groups: Sequence[Group]
    log: bool = False


@dataclass(frozen=True)
class _Axis:
    marks: tuple[float, ...]
    log: bool

    def at(self, value: float) -> float:
        """Return where a value is, in the picture's units."""
        width = WIDTH - LABELS - RIGHT - FIGURES
        low, high = self.marks[0], self.marks[-1]
        if not self.log:
            return LABELS + width * value / high
        share = math.log10(max(value, low) / low) / math.log10(high / low)
        return LABELS + width * share


def _axis(chart: Bars) -> _Axis:
    values = [bar.high for group in chart.groups for bar in group.bars]
    if not chart.log:
        return _Axis(tuple(ticks(max(values, default=0), 6)), log=False)
    least = min((bar.low for group in chart.groups for bar in group.bars if bar.low > 0), default=1)
    first = math.floor(math.log10(least))
    last = max(math.ceil(math.log10(max([*values, least]))), first + 1)
    return _Axis(tuple(10.0**power for power in range(first, last + 1)), log=True)


def draw(chart: Bars) -> str:
    """Return the SVG."""
    axis = _axis(chart)
    kinds = list(dict.fromkeys(bar.kind for group in chart.groups for bar in group.bars))
    height = TOP + BOTTOM
    height += sum(len(group.bars) * (BAR + BETWEEN) + GROUP for group in chart.groups)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(chart.title)}</title><style>{STYLE}{SPREAD}{DARK_SPREAD}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="22">{escape(chart.title)}</text>',
    ]
    for nr, kind in enumerate(kinds):
        x = LEFT + nr * LEGEND_STEP
        parts.append(
            f'<rect x="{x}" y="36" width="14" height="12" fill="{FILLS[nr % len(FILLS)]}"/>'
            f'<text x="{x + 20}" y="47">{escape(kind)}</text>'
        )
    low = height - BOTTOM
    for mark in axis.marks:
        across = axis.at(mark)
        parts.append(
            f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{TOP - 8}" y2="{low}"/>'
            f'<text x="{across:.1f}" y="{low + 18}" text-anchor="middle">{mark:,.10g}</text>'
        )
    parts.append(
        f'<text x="{(LABELS + WIDTH - RIGHT) / 2:.0f}" y="{height - 8}" text-anchor="middle">'
        f"{escape(chart.unit)}{', each step ten times' if chart.log else ''}</text>"
    )
    y = TOP
    for group in chart.groups:
        middle = y + len(group.bars) * (BAR + BETWEEN) / 2 + 3
        parts.append(
            f'<text x="{LABELS - 10}" y="{middle:.0f}" text-anchor="end">'
            f"{escape(group.name)}</text>"
        )
        for bar in group.bars:
            parts += _bar(bar, axis, y, FILLS[kinds.index(bar.kind) % len(FILLS)])
            y += BAR + BETWEEN
        y += GROUP
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Bar, axis: _Axis, y: int, fill: str) -> list[str]:
    end, middle = axis.at(bar.value), y + BAR / 2
    low, high = axis.at(bar.low), axis.at(bar.high)
    parts = [
        f'<rect x="{LABELS}" y="{y}" width="{max(end - LABELS, 1):.1f}" height="{BAR}"'
        f' fill="{fill}"/>'
    ]
    if bar.high > bar.low:
        parts.append(
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
        )
    parts.append(
        f'<text x="{max(end, high) + 6:.1f}" y="{middle + 5:.0f}">'
        f"{escape(number(bar.value))}</text>"
    )
    return parts
