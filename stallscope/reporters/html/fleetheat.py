# SPDX-License-Identifier: Apache-2.0
"""The heat map of a fleet: hosts by time, the hosts with the most stalled time first, the others
in one row."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from stallscope.reporters import units
from stallscope.reporters.fleetcells import number_of, text_of

__all__ = ["Cell", "Column", "Heat", "Row", "heat"]

LEVELS = 5
_MOST_COLUMNS = 80
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_TICKS = 8
_NAME = 60


class Answers(Protocol):
    """What it is drawn from: fleetpage.FleetAnswers."""

    @property
    def since_ms(self) -> int: ...
    @property
    def until_ms(self) -> int: ...
    @property
    def step_ms(self) -> int: ...
    @property
    def hosts(self) -> list[dict[str, Any]]: ...
    @property
    def cells(self) -> list[dict[str, Any]]: ...
    @property
    def all_cells(self) -> list[dict[str, Any]]: ...
    @property
    def totals(self) -> Mapping[str, Any]: ...


class Column(msgspec.Struct, frozen=True):
    """An interval of time. ``label``: above it, in some columns."""

    at_ms: int
    title: str
    label: str


class Cell(msgspec.Struct, frozen=True):
    """What happened on a host in an interval; ``level`` 0: nothing."""

    level: int
    count: str
    said: str
    """All its numbers, in words."""


class Row(msgspec.Struct, frozen=True):
    """A host, or the others together."""

    name: str
    anchor: str
    """Of the list of its incidents; empty: there is none."""
    cells: tuple[Cell, ...]
    total: str


class Heat(msgspec.Struct, frozen=True):
    """The heat map. ``legend``: what each level but 0 stands for."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    legend: tuple[tuple[int, str], ...]
    step: str


class _Sum(msgspec.Struct):
    incidents: int = 0
    seconds: float = 0.0
    hosts: int = 0
    signature: str = ""


_NOTHING = Cell(0, "", "")


def heat(data: Answers, anchors: Mapping[str, str]) -> Heat | None:
    """Return it; None where nothing stalled. ``anchors``: of hosts by name."""
    columns = _columns(data)
    sums: dict[str, dict[int, _Sum]] = {}
    rest = {int(number_of(row.get("at_ms"))): _sum(row) for row in data.all_cells}
    for row in data.cells:
        host, at = text_of(row.get("host")), int(number_of(row.get("at_ms")))
        one = sums.setdefault(host, {})[at] = _sum(row)
        if at in rest:
            rest[at].incidents -= one.incidents
            rest[at].seconds = max(0.0, rest[at].seconds - one.seconds)
            rest[at].hosts -= 1
    if not sums:
        return None
    bounds = _bounds([one.seconds for of in sums.values() for one in of.values()])
    others = max(0, int(number_of(data.totals.get("hosts"))) - len(data.hosts))
    rows = []
    for row in data.hosts:
        host = text_of(row.get("host"))
        of = sums.get(host, {})
        cells = tuple(_cell(of.get(column.at_ms), column, host, bounds) for column in columns)
        total = units.duration(number_of(row.get("stalled")) * 1000)
        rows.append(Row(text_of(host, _NAME), anchors.get(host, ""), cells, total))
    if others:
        name = f"{units.number(others)} more {'host' if others == 1 else 'hosts'}"
        scaled = [bound * max(1, others) for bound in bounds]
        cells = tuple(_cell(rest.get(c.at_ms), c, name, scaled, rest=True) for c in columns)
        total = units.duration(sum(one.seconds for one in rest.values()) * 1000)
        rows.append(Row(name, "", cells, total))
    return Heat(columns, tuple(rows), _legend(bounds), units.duration(data.step_ms))


def _sum(row: Mapping[str, Any]) -> _Sum:
    return _Sum(
        max(0, int(number_of(row.get("incidents")))),
        max(0.0, number_of(row.get("stalled"))),
        max(0, int(number_of(row.get("hosts")))),
        text_of(row.get("longest"), _NAME),
    )


def _columns(data: Answers) -> tuple[Column, ...]:
    step = max(1, data.step_ms)
    first = data.since_ms // step * step
    last = max(first + step, data.until_ms)
    times = list(range(first, last, step))[-_MOST_COLUMNS:]
    days = {at // _DAY_MS * _DAY_MS for at in times[1:]} if step < _DAY_MS else set()
    every = max(1, -(-len(times) // _TICKS))
    near = max(1, every // 2)
    found = []
    for number, at in enumerate(times):
        title = f"{_when(at, '%b %d %H:%M')} to {_when(at + step, '%b %d %H:%M')}"
        label = ""
        if at in days:
            label = _when(at, "%b %d")
        elif number % every == 0 and not days & set(times[max(0, number - near) : number + near]):
            label = _when(at, "%b %d" if step >= _DAY_MS else "%H:%M")
        found.append(Column(at, title, label))
    return tuple(found)


def _when(ms: int, form: str) -> str:
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""


def _bounds(seconds: Sequence[float]) -> list[float]:
    """Return the least seconds of each level above the first, each a quarter of the next: a few
    long stalls must not make all others look like nothing."""
    most = max(seconds, default=0.0)
    return [most / 4 ** (LEVELS - level) for level in range(2, LEVELS + 1)]


def _level(seconds: float, bounds: Sequence[float]) -> int:
    return 1 + sum(seconds >= bound > 0 for bound in bounds)


def _cell(
    one: _Sum | None, column: Column, name: str, bounds: Sequence[float], *, rest: bool = False
) -> Cell:
    if one is None or one.incidents <= 0:
        return _NOTHING
    what = "1 incident" if one.incidents == 1 else f"{units.number(one.incidents)} incidents"
    where = f" on {units.number(one.hosts)} hosts" if rest and one.hosts > 0 else ""
    lasted = f"stalled for {units.duration(one.seconds * 1000)}" if one.seconds else "no known end"
    longest = f", the longest {one.signature}" if one.signature and not rest else ""
    said = f"{text_of(name, _NAME)}, {column.title} UTC: {what}{where}, {lasted}{longest}"
    count = str(one.incidents) if one.incidents < 1000 else f"{one.incidents // 1000}k"
    return Cell(_level(one.seconds, bounds), count, said)


def _legend(bounds: Sequence[float]) -> tuple[tuple[int, str], ...]:
    texts = [units.duration(bound * 1000) for bound in bounds]
    found = [(1, f"less than {texts[0]}")]
    found += [(level, f"from {text}") for level, text in enumerate(texts, 2)]
    return tuple(found)
