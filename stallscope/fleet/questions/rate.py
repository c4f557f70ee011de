# SPDX-License-Identifier: Apache-2.0
"""How many stalls each host has an hour."""

from __future__ import annotations

from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import LASTED, during, select
from stallscope.fleet.questions.values import ratio, seconds, text, whole
from stallscope.fleet.questions.watched import HOUR_MS, watched

__all__ = ["QUESTION"]


def _answer(engine: Engine, asked: Asked) -> Answer:
    dialect = engine.dialect
    where = during(dialect, asked.since_ms, asked.until_ms)
    shown = (
        "host",
        "count(*) AS incidents",
        f"sum(if(signature = {dialect.text('none')}, 0, 1)) AS stalls",
        f"sum({LASTED}) AS stalled_ms",
    )
    latest = dialect.latest("incidents")
    query = select(shown, latest, where=where, group=("host",), order="host")
    found = {text(row["host"]): row for row in engine.rows(query)}
    hours = {host: ms for (host,), ms in watched(engine, asked, ("host",)).items()}
    rows = [
        _row(host, found.get(host, {}), hours.get(host, 0)) for host in sorted({*found, *hours})
    ]
    rows.sort(key=lambda row: (-(row["per_hour"] or 0.0), -row["stalls"], -row["incidents"]))
    unwatched = sum(row["watched_hours"] is None for row in rows)
    hosts = "1 host has" if unwatched == 1 else f"{unwatched} hosts have"
    notes = (f"{hosts} no rate: nobody says how long they were watched",)
    return Answer("rate", rows[: asked.limit], notes if unwatched else ())


def _row(host: str, found: dict[str, Any], watched_ms: int) -> dict[str, Any]:
    stalls = whole(found.get("stalls"))
    return {
        "host": host,
        "per_hour": ratio(stalls * HOUR_MS, watched_ms),
        "stalls": stalls,
        "incidents": whole(found.get("incidents")),
        "stalled_s": seconds(found.get("stalled_ms")),
        "watched_hours": round(watched_ms / HOUR_MS, 3) if watched_ms else None,
    }


QUESTION = Question(
    "rate",
    "How many stalls each host has in an hour in which it is watched.",
    ("host", "per_hour", "stalls", "incidents", "stalled_s", "watched_hours"),
    _answer,
)
