# SPDX-License-Identifier: Apache-2.0
"""Which stalls a version of the server brought."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.groups import groups
from stallscope.fleet.questions.new import BEFORE_MS
from stallscope.fleet.questions.sqltext import during, select
from stallscope.fleet.questions.values import newest_last, text, whole
from stallscope.fleet.questions.watched import HOUR_MS, watched

__all__ = ["QUESTION"]

_MOST_ROWS = 100_000
_Rows = list[dict[str, Any]]


def _answer(engine: Engine, asked: Asked) -> Answer:
    history = msgspec.structs.replace(asked, since_ms=max(0, asked.since_ms - BEFORE_MS))
    found, notes = _seen(engine, history)
    hours = watched(engine, history, ("server", "version"))
    rows = []
    for (server, kind), each in found.items():
        first = min((text(row["version"]) for row in each), key=newest_last)
        if not any(whole(row["last_ms"]) >= asked.since_ms for row in each):
            continue  # it is over
        if asked.version and newest_last(first) < newest_last(asked.version):
            continue
        before_ms = sum(
            ms
            for (other, version), ms in hours.items()
            if other == server and version and newest_last(version) < newest_last(first)
        )
        rows.append(_row(server, kind, first, each, before_ms))
    rows.sort(key=lambda row: (row["server"], row["signature"]))
    rows.sort(key=lambda row: -row["incidents"])
    rows.sort(key=lambda row: newest_last(row["version"]), reverse=True)
    return Answer("versions", rows[: asked.limit], notes)


def _seen(engine: Engine, asked: Asked) -> tuple[dict[tuple[str, str], _Rows], tuple[str, ...]]:
    """Return by server and kind of stall a row of each version that had it."""
    dialect = engine.dialect
    made = groups(engine, asked.since_ms, asked.until_ms)
    where = during(
        dialect,
        asked.since_ms,
        asked.until_ms,
        f"signature <> {dialect.text('none')} AND version <> ''",
    )
    shown = (
        "server",
        f"{made.kind(dialect)} AS kind",
        "version",
        "count(*) AS incidents",
        "count(DISTINCT host) AS hosts",
        "min(start_ms) AS first_ms",
        "max(start_ms) AS last_ms",
        "max(title) AS a_title",
    )
    by = ("server", "kind", "version")
    query = select(
        shown,
        dialect.latest("incidents"),
        where=where,
        group=by,
        order=", ".join(by),
        limit=_MOST_ROWS,
    )
    rows = engine.rows(query)
    found = defaultdict(list)
    for row in rows:
        found[text(row["server"]), text(row["kind"])].append(row)
    notes = list(made.notes)
    if len(rows) == _MOST_ROWS:
        notes.append(f"more than {_MOST_ROWS} signatures and versions: the rest is left out")
    return found, tuple(notes)


def _row(server: str, kind: str, first: str, each: _Rows, before_ms: int) -> dict[str, Any]:
    own = next(row for row in each if text(row["version"]) == first)
    versions = sorted((text(row["version"]) for row in each), key=newest_last)
    return {
        "version": first,
        "signature": kind,
        "incidents": whole(own["incidents"]),
        "hosts": whole(own["hosts"]),
        "first_ms": min(whole(row["first_ms"]) for row in each),
        "last_ms": max(whole(row["last_ms"]) for row in each),
        "all_incidents": sum(whole(row["incidents"]) for row in each),
        "versions": versions[:20],
        "before_hours": round(before_ms / HOUR_MS, 1) if before_ms else None,
        "server": server,
        "title": max(text(row["a_title"]) for row in each),
    }


QUESTION = Question(
    "versions",
    "Which stalls were first seen with which version of the server.",
    (
        *("version", "signature", "incidents", "hosts", "first_ms", "last_ms", "all_incidents"),
        *("versions", "before_hours", "server", "title"),
    ),
    _answer,
    BEFORE_MS,
)
