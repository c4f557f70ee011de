# SPDX-License-Identifier: Apache-2.0
"""A server's status numbers, as a table for people and as stallscope.status/1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from stallscope.analyzers.workload import GROUPS, Report, Row, Verdict
from stallscope.base.text import one_line
from stallscope.reporters import units
from stallscope.reporters.lines import Line, wrap
from stallscope.server.status import ABSENT

__all__ = ["SCHEMA", "dumps", "render"]

SCHEMA = "stallscope.status/1"

_STYLES = {Verdict.CRITICAL: "bold red", Verdict.WARNING: "yellow", Verdict.UNKNOWN: "dim"}
_MAX_QUERY = 200
_INDENT = " " * 11


def render(report: Report, *, width: int, full: bool = False) -> list[Line]:
    """Return the lines; explanations follow rows that are not ok, or all rows."""
    lines = [*wrap(_headline(report), width, style="bold")]
    for group, title in GROUPS.items():
        rows = [row for row in report.rows if row.group == group]
        if not full and all(row.note == ABSENT for row in rows) and group != "ddl":
            continue
        lines += [Line(""), Line(title, "bold")]
        absent = {} if full else _without_value(rows)
        for row in rows:
            if row.value is not None or row.note not in absent:
                lines += _row(row, width, full=full)
        for why, titles in absent.items():
            text = f"{why}: {', '.join(titles)}"
            lines += wrap(text, width, indent="  ", hang=_INDENT, style=_STYLES[Verdict.UNKNOWN])
        if group == "ddl":
            lines += _progress(report, width)
    return lines


def _without_value(rows: list[Row]) -> dict[str, list[str]]:
    """Return the titles of rows that one reason leaves without a value, by that reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.value is None and row.note is not None:
            found.setdefault(row.note, []).append(row.title)
    return {why: titles for why, titles in found.items() if why == ABSENT or len(titles) > 1}


def _headline(report: Report) -> str:
    counts = Counter(row.verdict for row in report.rows)
    critical, warnings = counts[Verdict.CRITICAL], counts[Verdict.WARNING]
    said = f"{critical} critical, {warnings} warnings" if critical or warnings else "no warnings"
    known = len(report.rows) - counts[Verdict.UNKNOWN]
    what = f"{report.version}: " if report.version else ""
    return f"{what}{said}, of {known} known values; {_window(report)}."


def _window(report: Report) -> str:
    length = units.duration(report.seconds * 1000)
    if report.restarted:
        return f"the server was restarted: rates cover the {length} since"
    if report.since_start:
        return f"rates cover the {length} since the server's start"
    return f"rates cover {length}"


def _row(row: Row, width: int, *, full: bool) -> Iterator[Line]:
    style = _STYLES.get(row.verdict, "")
    number = _number(row.value, row.unit) if row.rate is None else _number(row.rate, row.unit)
    if row.value is None:
        number = "-"
    yield Line(f"  {row.verdict:<8}  {row.title:<46}  {number}", style)
    if row.note:
        yield from wrap(row.note, width, indent=_INDENT)
    if full or row.verdict in (Verdict.WARNING, Verdict.CRITICAL):
        yield from wrap(f"{row.meaning} Abnormal: {row.when}", width, indent=_INDENT)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "%":
        return f"{value * 100:.3g} %"
    if unit == "B/s":
        return f"{units.size(round(value))}/s"
    text = units.number(round(value)) if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip() if unit != "/s" else f"{text}/s"


def _progress(report: Report, width: int) -> Iterator[Line]:
    for item in report.progress:
        done = "" if item.percent is None else f", {item.percent:.0f} %"
        text = f"connection {item.connection}: {item.stage}{done}"
        if item.query:
            text += f": {one_line(item.query, _MAX_QUERY)}"
        yield from wrap(text, width, indent="  ", hang=_INDENT)
    if not report.progress and "progress" in report.missing:
        why = f"progress of statements: {report.missing['progress']}"
        yield from wrap(why, width, indent="  ", hang=_INDENT)


def dumps(report: Report, inputs: tuple[str, ...]) -> str:
    """Return stallscope.status/1, one line."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "inputs": inputs,
        "version": report.version,
        "seconds": report.seconds,
        "since_start": report.since_start,
        "restarted": report.restarted,
        "rows": report.rows,
        "progress": report.progress,
        "missing": dict(report.missing),
    }
    return msgspec.json.encode(document).decode()
