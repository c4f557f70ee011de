# SPDX-License-Identifier: Apache-2.0
"""What was lost, and why."""

from __future__ import annotations

from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import MOST_ROWS, during, select
from stallscope.fleet.questions.values import text, whole
from stallscope.fleet.tables import day_of

__all__ = ["QUESTION"]


def _answer(engine: Engine, asked: Asked) -> Answer:
    rows = _captures(engine, asked) + _rows(engine, asked)
    rows.sort(key=lambda row: (row["kind"] != "captures", -row["lost"], -row["hosts"], row["why"]))
    return Answer("lost", rows[: asked.limit])


def _captures(engine: Engine, asked: Asked) -> list[dict[str, Any]]:
    dialect = engine.dialect
    where = during(dialect, asked.since_ms, asked.until_ms, "lost > 0")
    source = dialect.table("incidents", ("host", "lost", "lost_why", "start_ms"), where)
    reasons = "if(length(lost_why) = 0, [''], lost_why)"
    exploded = dialect.exploded(source, reasons, "one_why", ("host", "lost", "start_ms"))
    shown = (
        "one_why",
        "sum(lost) AS captures",
        "count(*) AS incidents",
        "count(DISTINCT host) AS hosts",
        "min(start_ms) AS first_ms",
        "max(start_ms) AS last_ms",
    )
    order = "captures DESC, hosts DESC, one_why"
    query = select(shown, exploded, group=("one_why",), order=order, limit=MOST_ROWS)
    return [
        _row("captures", row, "captures", whole(row["incidents"])) for row in engine.rows(query)
    ]


def _rows(engine: Engine, asked: Asked) -> list[dict[str, Any]]:
    """Return rows that agents dropped: the latest count of each, and its reason."""
    dialect = engine.dialect
    days = (dialect.text(day_of(asked.since_ms)), dialect.text(day_of(asked.until_ms)))
    where = f"day >= {days[0]} AND day <= {days[1]} AND dropped > 0 AND seen_ms >= {asked.since_ms}"
    by_host = select(
        ("host", "why", "max(dropped) AS most", "min(seen_ms) AS first", "max(seen_ms) AS last"),
        dialect.latest("agents"),
        where=where,
        group=("host", "why"),
    )
    shown = (
        "why AS one_why",
        "sum(most) AS dropped_rows",
        "count(*) AS hosts",
        "min(first) AS first_ms",
        "max(last) AS last_ms",
    )
    order = "dropped_rows DESC, hosts DESC, one_why"
    query = select(shown, f"({by_host})", group=("why",), order=order, limit=MOST_ROWS)
    return [_row("rows", row, "dropped_rows", None) for row in engine.rows(query)]


def _row(kind: str, row: dict[str, Any], column: str, incidents: int | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "why": text(row["one_why"]) or "not said",
        "lost": whole(row[column]),
        "incidents": incidents,
        "hosts": whole(row["hosts"]),
        "first_ms": whole(row["first_ms"]),
        "last_ms": whole(row["last_ms"]),
    }


QUESTION = Question(
    "lost",
    "Captures that were wanted and not taken, rows that were dropped, and why.",
    ("kind", "why", "lost", "incidents", "hosts", "first_ms", "last_ms"),
    _answer,
)
