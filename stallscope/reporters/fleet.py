# SPDX-License-Identifier: Apache-2.0
"""Answers of a fleet for people and as JSON: the answer in a sentence, then its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.text import clean, one_line, without_surrogates
from stallscope.base.times import local, rfc3339
from stallscope.reporters import units
from stallscope.reporters.fleetcells import COLUMNS, cell, heading, is_number, number_of, text_of
from stallscope.reporters.lines import Line, wrap

__all__ = ["Shown", "dumps", "render"]

_GAP = 2
_LEAST = 14
"""The least columns of a terminal that a column of texts takes beside others."""
_MOST = 60
_SHORT = 30
"""Characters of a value that shares its line with others."""
_SURE = 0.01


class Shown(msgspec.Struct, frozen=True):
    """An answer. ``columns``: in the order in which they are shown."""

    schema: str
    question: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    notes: tuple[str, ...]
    since_ms: int
    until_ms: int
    limit: int


def dumps(answer: Shown) -> str:
    """Return it as one line of JSON, ``stallscope.fleet/1``."""
    value = {
        "schema": answer.schema,
        "question": answer.question,
        "since": rfc3339(answer.since_ms * 10**6),
        "until": rfc3339(answer.until_ms * 10**6),
        "rows": without_surrogates(answer.rows),
        "notes": without_surrogates(list(answer.notes)),
    }
    return msgspec.json.encode(value).decode()


def render(answer: Shown, width: int) -> list[Line]:
    """Return the lines for people."""
    found = list(wrap(_sentence(answer), width, style="bold"))
    if answer.rows:
        found.append(Line(""))
        found += _table(answer, width)
    if len(answer.rows) >= answer.limit and answer.question != "hosts":
        found.append(Line(""))
        found.append(Line(f"--limit {10 * answer.limit} shows more.", "dim"))
    return found


def _sentence(answer: Shown) -> str:
    """Return the answer in a sentence."""
    rows = answer.rows
    span = f"in {units.duration(max(0, answer.until_ms - answer.since_ms))}"
    match answer.question:
        case "now":
            return _now(rows)
        case "signatures":
            incidents = sum(int(number_of(row.get("incidents"))) for row in rows)
            many = "1 incident" if incidents == 1 else f"{incidents} incidents"
            return f"{_count(answer, 'kind', 'kinds')} of stalls, {many} {span}."
        case "silent":
            return f"{_count(answer, 'agent is', 'agents are')} silent."
        case "unknown":
            return f"{_count(answer, 'kind', 'kinds')} of stalls without a name {span}."
        case "new":
            return f"{_count(answer, 'stall is', 'stalls are')} new {span}."
        case "blockers":
            return f"{_count(answer, 'statement', 'statements')} held up others {span}."
        case "rate":
            return f"{_count(answer, 'host', 'hosts')}, by stalls an hour {span}."
        case "locks":
            return f"{_count(answer, 'lock or file', 'locks and files')}, by waits {span}."
        case "lost":
            lost = sum(int(number_of(row.get("lost"))) for row in rows)
            return (
                f"{lost} captures or rows were lost {span}." if rows else f"None was lost {span}."
            )
        case "hosts":
            hosts = len({text_of(row.get("host")) for row in rows})
            return f"{hosts} {'host' if hosts == 1 else 'hosts'} with stalls {span}."
        case "regressions":
            return _regressions(rows)
        case "detection":
            return _detection(rows, span)
    return f"{_count(answer, 'row', 'rows')} {span}."


def _count(answer: Shown, one: str, several: str) -> str:
    many = len(answer.rows)
    if not many:
        return f"No {one}"
    more = "At least " if many >= answer.limit else ""
    return f"{more}{many} {one if many == 1 else several}"


def _now(rows: Sequence[dict[str, Any]]) -> str:
    still = {text_of(row.get("host")) for row in rows if row.get("state") == "open"}
    ended = {text_of(row.get("host")) for row in rows} - still
    now = f"{len(still) or 'No'} {'hosts stall' if len(still) > 1 else 'host stalls'} now"
    return f"{now}; {len(ended)} did in the last 2 minutes." if ended else f"{now}."


def _regressions(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "No stall is more frequent with a version: no two versions can be compared."
    worse = [
        row
        for row in rows
        if number_of(row.get("p")) < _SURE and number_of(row.get("ratio") or 2) > 1
    ]
    what = f"{len(worse) or 'No'} {'stalls are' if len(worse) > 1 else 'stall is'} more frequent"
    new, old = (text_of(rows[0].get(key)) for key in ("version", "against"))
    return f"{what} with {new} than with {old}."


def _detection(rows: Sequence[dict[str, Any]], span: str) -> str:
    whole = next((row for row in rows if row.get("kind") == "fleet"), None)
    if whole is None:
        return f"No time to detect is known {span}."
    half, most = (units.duration(number_of(whole.get(key))) for key in ("median_ms", "p90_ms"))
    return f"Half of the captures were there {half} after the breach, 90 % after {most}."


def _table(answer: Shown, width: int) -> Iterator[Line]:
    columns = COLUMNS.get(answer.question, answer.columns)
    year = local(answer.until_ms * 10**6)[:4]
    cells = [[_cell(name, row.get(name), year) for name in columns] for row in answer.rows]
    heads = [heading(name).upper() for name in columns]
    wide = [max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(heads)]
    widths, below = _fit(columns, wide, width)
    beside = [at for at in range(len(columns)) if at not in below]
    yield Line(_row([(heads[at], columns[at], widths[at]) for at in beside]), "bold")
    for row in cells:
        yield Line(_row([(row[at], columns[at], widths[at]) for at in beside]))
        yield from _below([(heading(columns[at]).lower(), row[at]) for at in below], width)


def _below(cells: Sequence[tuple[str, str]], width: int) -> Iterator[Line]:
    """Yield what has no room beside the others: short values in one line."""
    texts = [(f"{name}: {text}", len(text) <= _SHORT) for name, text in cells if text]
    short = "; ".join(text for text, is_short in texts if is_short)
    for text in (short, *(text for text, is_short in texts if not is_short)):
        if text:
            yield from wrap(text, width, indent="    ", hang="      ")


def _cell(column: str, value: Any, year: str) -> str:
    """Return a cell; a time of the same year is without the year."""

    def time(time_ns: int) -> str:
        text = local(time_ns)[:16]
        return text.removeprefix(f"{year}-")

    return one_line(cell(column, value, time), 400)


def _fit(columns: Sequence[str], wide: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Return the widths of columns, and which columns are below their row: the widest texts, where
    there is no room beside the others."""
    below: list[int] = []
    while True:
        beside = [at for at in range(len(columns)) if at not in below]
        widths = [min(one, _MOST, width) for one in wide]
        texts = [at for at in beside[1:] if not is_number(columns[at]) and widths[at] > _LEAST]
        spare = width - sum(widths[at] + _GAP for at in beside) + _GAP
        while spare < 0 and any(widths[at] > _LEAST for at in texts):
            widest = max(texts, key=lambda at: widths[at])
            widths[widest] -= 1
            spare += 1
        cut = [at for at in texts if widths[at] < wide[at]]
        if spare >= 0 and not cut:
            return widths, below
        candidates = cut or beside[1:]
        if not candidates:
            return widths, below
        below.append(max(candidates, key=lambda at: wide[at]))
        below.sort()


def _row(cells: Sequence[tuple[str, str, int]]) -> str:
    found = [
        _cut(text, width).rjust(width) if is_number(column) else _cut(text, width).ljust(width)
        for text, column, width in cells
    ]
    return clean((" " * _GAP).join(found).rstrip())


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
