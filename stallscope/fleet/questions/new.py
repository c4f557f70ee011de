# SPDX-License-Identifier: Apache-2.0
"""Which stalls are new."""

from __future__ import annotations

import msgspec

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.groups import groups
from stallscope.fleet.questions.sqltext import COUNTED, MOST_ROWS, during, select
from stallscope.fleet.questions.values import seconds, text, texts, whole
from stallscope.fleet.questions.watched import watched

__all__ = ["BEFORE_MS", "QUESTION"]

BEFORE_MS = 30 * 86_400_000
"""What was seen so long before is not new."""


def _answer(engine: Engine, asked: Asked) -> Answer:
    dialect = engine.dialect
    before = max(0, asked.since_ms - BEFORE_MS)
    made = groups(engine, before, asked.until_ms)
    shown = (
        f"{made.kind(dialect)} AS kind",
        *COUNTED,
        f"{dialect.distinct('version')} AS all_versions",
        "max(title) AS a_title",
    )
    where = during(dialect, before, asked.until_ms, f"signature <> {dialect.text('none')}")
    found = engine.rows(
        select(
            shown,
            dialect.latest("incidents"),
            where=where,
            group=("kind",),
            having=f"first_ms >= {asked.since_ms}",
            order="hosts DESC, incidents DESC, kind",
            limit=min(asked.limit, MOST_ROWS),
        )
    )
    rows = [
        {
            "signature": text(row["kind"]),
            "hosts": whole(row["hosts"]),
            "incidents": whole(row["incidents"]),
            "first_ms": whole(row["first_ms"]),
            "last_ms": whole(row["last_ms"]),
            "stalled_s": seconds(row["stalled_ms"]),
            "versions": texts(row["all_versions"]),
            "title": text(row["a_title"]),
        }
        for row in found
    ]
    notes = list(made.notes)
    past = msgspec.structs.replace(asked, since_ms=before, until_ms=asked.since_ms)
    if rows and not any(watched(engine, past, ()).values()):
        notes.append("nothing was watched in the 30 days before: all that was seen is new")
    return Answer("new", rows, tuple(notes))


QUESTION = Question(
    "new",
    "Which stalls were first seen in this time, and not in the 30 days before.",
    (
        *("signature", "hosts", "incidents", "first_ms", "last_ms", "stalled_s", "versions"),
        "title",
    ),
    _answer,
    BEFORE_MS,
)
