# SPDX-License-Identifier: Apache-2.0
"""Medians and spreads, tables of them, and which tables are wanted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

__all__ = [
    "BenchError",
    "Figure",
    "Interval",
    "Row",
    "Section",
    "figure",
    "number",
    "render",
    "wanted",
]


class BenchError(Exception):
    """A measurement could not be made, or what was measured was not what it claims to be."""


class Figure(msgspec.Struct, frozen=True, tag=True):
    """The median of some runs, and how they spread."""

    median: float
    low: float
    high: float
    runs: int
    unit: str
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        text = f"{number(self.median)} {self.unit}".rstrip()
        if self.runs > 1:
            text += f" ({number(self.low)}-{number(self.high)}, n={self.runs})"
        return text


def figure(values: Sequence[float], unit: str) -> Figure:
    """Return the median and the extremes of at least one value."""
    return Figure(
        statistics.median(values), min(values), max(values), len(values), unit, tuple(values)
    )


class Interval(msgspec.Struct, frozen=True, tag=True):
    """An estimate and its 95 % confidence interval (tests/bench/blocks.py)."""

    value: float
    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        text = f"{number(self.value)} [{number(self.low)}, {number(self.high)}] {self.unit}"
        return text.rstrip()


class Row(msgspec.Struct, frozen=True):
    """One line of a table: what was measured, and its cells by column."""

    name: str
    cells: Mapping[str, Figure | Interval | str]


class Section(msgspec.Struct, frozen=True):
    """One table. ``checks`` says of what the figures were made sure; ``goals`` what is met;
    ``left_out`` what was not measured, and why; ``notes`` what else a reader has to know.
    """

    id: str
    title: str
    rows: tuple[Row, ...]
    checks: tuple[str, ...] = ()
    goals: tuple[tuple[str, bool], ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def wanted(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """Return the tables that are asked for by name or beginning, or all. Raises: BenchError where
    there is no such table.
    """
    known = list(names)
    found = {
        one: [one] if one in known else [name for name in known if name.startswith(f"{one}-")]
        for one in only
    }
    if unknown := [one for one, of_it in found.items() if not of_it]:
        raise BenchError(f"no table {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if not only or any(name in of_it for of_it in found.values())]


def number(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}"


def render(section: Section) -> str:
    """Return the section as a Markdown table, ready for docs/benchmarks.md."""
    columns = list(dict.fromkeys(key for row in section.rows for key in row.cells))
    lines = [f"### {section.title}", ""]
    table = [["", *columns]]
    for row in section.rows:
        table.append([row.name, *(str(row.cells.get(key, "-")) for key in columns)])
    widths = [max(len(line[i]) for line in table) for i in range(len(columns) + 1)]
    for nr, line in enumerate(table):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        lines.append("| " + " | ".join(cells) + " |")
        if nr == 0:
            lines.append("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    lines.append("")
    lines += [f"- checked: {check}" for check in section.checks]
    lines += [f"- left out: {what}" for what in section.left_out]
    lines += [f"- {note}" for note in section.notes]
    lines += [f"- {'met' if met else 'NOT MET'}: {goal}" for goal, met in section.goals]
    return "\n".join(lines) + "\n"
