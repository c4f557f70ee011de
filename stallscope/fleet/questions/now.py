# SPDX-License-Identifier: Apache-2.0
"""Who stalls now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import MOST_ROWS, among, during, select
from stallscope.fleet.questions.values import number, text, whole
from stallscope.fleet.tables import day_of

__all__ = ["ENDED_MS", "QUESTION"]

ENDED_MS = 120_000
"""Incidents that ended so lately are in the answer too, with the state ``ended``."""
_NAMED_HOSTS = 1_000
"""More are not named in a query: its text has a limit."""
_KEY = ("start_ms", "uid")
_SHOWN = (
    *("uid", "id", "host", "program", "pid", "server", "version", "start_ms", "end_ms"),
    *("signature", "title", "threads", "share", "blocker", "statement", "lock_name"),
)
_Process = tuple[str, str, int]


def _answer(engine: Engine, asked: Asked) -> Answer:
    found = _candidates(engine, asked)
    seen = _seen(engine, asked, {text(row["host"]) for row in found})
    least = asked.until_ms - round(asked.minutes * 60_000)
    stalling, orphans = [], 0
    for row in found:
        if _is_open(row, asked) and seen.get(_process(row), 0) < least:
            orphans += 1
        else:
            stalling.append(row)
    stalling.sort(key=lambda row: (not _is_open(row, asked), *_worst(row)))
    rows = [_shown(row, asked, seen) for row in _details(engine, stalling[: asked.limit])]
    notes = []
    if orphans:
        notes.append(
            f"left out: {orphans} open incidents whose agent was not seen for"
            f" {asked.minutes:g} minutes (see silent)"
        )
    if len(found) == MOST_ROWS:
        notes.append(f"more than {MOST_ROWS} incidents are open: the earliest are left out")
    return Answer("now", rows, tuple(notes))


def _is_open(row: dict[str, Any], asked: Asked) -> bool:
    """Return whether it went on at the time that is asked for, which can be in the past."""
    return whole(row["is_open"]) == 1 or whole(row["end_ms"]) > asked.until_ms


def _process(row: dict[str, Any]) -> _Process:
    return (text(row["host"]), text(row["program"]), whole(row["pid"]))


def _worst(row: dict[str, Any]) -> tuple[int, int, str]:
    return (-whole(row["threads"]), whole(row["start_ms"]), text(row["uid"]))


def _candidates(engine: Engine, asked: Asked) -> list[dict[str, Any]]:
    """Return the keys of incidents that are open, or ended lately: few columns of many rows."""
    columns = (*_KEY, "host", "program", "pid", "threads", "is_open", "end_ms")
    lately = f"(is_open = 1 OR end_ms >= {asked.until_ms - ENDED_MS})"
    where = during(engine.dialect, asked.since_ms, asked.until_ms, lately)
    latest = engine.dialect.latest("incidents")
    order = "start_ms DESC, uid"
    return engine.rows(select(columns, latest, where=where, order=order, limit=MOST_ROWS))


def _seen(engine: Engine, asked: Asked, hosts: Iterable[str]) -> dict[_Process, int]:
    """Return when the agents of processes were seen last, by the clock of the engine."""
    named = sorted(hosts)
    if not named:
        return {}
    dialect = engine.dialect
    days = (dialect.text(day_of(asked.since_ms)), dialect.text(day_of(asked.until_ms)))
    where = f"day >= {days[0]} AND day <= {days[1]}"
    if len(named) <= _NAMED_HOSTS:
        where += f" AND {among(dialect, 'host', named)}"
    by = ("host", "program", "pid")
    last = "max(seen_ms + floor(coalesce(skew_ms, 0) + 0.5)) AS last_seen"
    latest = dialect.latest("agents")
    query = select((*by, last), latest, where=where, group=by, order=", ".join(by))
    rows = engine.rows(query)
    return {_process(row): whole(row["last_seen"]) for row in rows}


def _details(engine: Engine, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all that is shown of incidents, in the same order."""
    if not rows:
        return []
    starts = sorted({whole(row["start_ms"]) for row in rows})
    dialect = engine.dialect
    where = (
        f"{during(dialect, starts[0], starts[-1] + 1)}"
        f" AND start_ms IN ({', '.join(map(str, starts))})"
        f" AND {among(dialect, 'uid', (text(row['uid']) for row in rows))}"
    )
    columns = (*_SHOWN, "is_open")
    query = select(columns, dialect.latest("incidents"), where=where, order="start_ms, uid")
    found = {(whole(row["start_ms"]), text(row["uid"])): row for row in engine.rows(query)}
    keys = [(whole(row["start_ms"]), text(row["uid"])) for row in rows]
    return [found[key] for key in keys if key in found]  # another can have been made meanwhile


def _shown(row: dict[str, Any], asked: Asked, seen: dict[_Process, int]) -> dict[str, Any]:
    is_open = _is_open(row, asked)
    start = whole(row["start_ms"])
    end = None if row["end_ms"] is None else whole(row["end_ms"])
    lasted = (asked.until_ms if is_open or end is None else end) - start
    return {
        "host": text(row["host"]),
        "state": "open" if is_open else "ended",
        "lasted_s": max(0, lasted) / 1000,
        "signature": text(row["signature"]),
        "threads": whole(row["threads"]),
        "share": number(row["share"], 4),
        "blocker": text(row["blocker"]),
        "statement": text(row["statement"]),
        "lock_name": text(row["lock_name"]),
        "title": text(row["title"]),
        "program": text(row["program"]),
        "pid": whole(row["pid"]),
        "server": text(row["server"]),
        "version": text(row["version"]),
        "start_ms": start,
        "end_ms": None if is_open else end,
        "seen_ms": seen.get(_process(row)),
        "id": text(row["id"]),
        "uid": text(row["uid"]),
    }


QUESTION = Question(
    "now",
    "Who stalls now, or did in the last two minutes.",
    (
        *("host", "state", "lasted_s", "signature", "threads", "share", "blocker", "statement"),
        *("lock_name", "title", "program", "pid", "server", "version", "start_ms", "end_ms"),
        *("seen_ms", "id", "uid"),
    ),
    _answer,
)
