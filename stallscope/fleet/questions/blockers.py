# SPDX-License-Identifier: Apache-2.0
"""Which statements hold up most."""

from __future__ import annotations

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import LASTED, VICTIM_MS, during, select
from stallscope.fleet.questions.values import seconds, text, texts, whole

__all__ = ["QUESTION"]

_ORDER = "if(statement = '', 0, 1), coalesce(victim_ms, 0) DESC, incidents DESC, statement"


def _answer(engine: Engine, asked: Asked) -> Answer:
    where = during(engine.dialect, asked.since_ms, asked.until_ms)
    shown = (
        "statement",
        "count(*) AS incidents",
        "count(DISTINCT host) AS hosts",
        f"sum({VICTIM_MS}) AS victim_ms",
        "max(threads) AS most",
        f"max({LASTED}) AS worst_ms",
        "min(start_ms) AS first_ms",
        "max(start_ms) AS last_ms",
        f"{engine.dialect.distinct('signature')} AS all_signatures",
    )
    found = engine.rows(
        select(
            shown,
            engine.dialect.latest("incidents"),
            where=where,
            group=("statement",),
            order=_ORDER,
            limit=asked.limit + 1,
        )
    )
    rows = [
        {
            "statement": text(row["statement"]),
            "victim_s": seconds(row["victim_ms"]),
            "incidents": whole(row["incidents"]),
            "hosts": whole(row["hosts"]),
            "threads": whole(row["most"]),
            "worst_s": seconds(row["worst_ms"]),
            "first_ms": whole(row["first_ms"]),
            "last_ms": whole(row["last_ms"]),
            "signatures": texts(row["all_signatures"]),
        }
        for row in found
    ]
    without = next((row for row in rows if not row["statement"]), None)
    rows = [row for row in rows if row["statement"]][: asked.limit]
    if without is None:
        return Answer("blockers", rows)
    note = (
        f"left out: {without['incidents']} incidents of which no statement of a blocker is known,"
        f" {without['victim_s']:.0f} victim seconds"
    )
    return Answer("blockers", rows, (note,))


QUESTION = Question(
    "blockers",
    "Which statements held up others most: victims times seconds.",
    (
        *("statement", "victim_s", "incidents", "hosts", "threads", "worst_s", "first_ms"),
        *("last_ms", "signatures"),
    ),
    _answer,
)
