# SPDX-License-Identifier: Apache-2.0
"""Stalls without a name, by what their waiters and their blocker have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stallscope.fleet.destination import Engine
from stallscope.fleet.likeness import Group
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.groups import groups, without_name
from stallscope.fleet.questions.sqltext import COUNTED, during, select
from stallscope.fleet.questions.values import seconds, text, whole

__all__ = ["QUESTION"]

_FUNCTIONS = 12


def _answer(engine: Engine, asked: Asked) -> Answer:
    dialect = engine.dialect
    made = groups(engine, asked.since_ms, asked.until_ms)
    notes = list(made.notes)
    known = {group.name: group for group in made.found}
    rows = []
    if known:
        where = during(dialect, asked.since_ms, asked.until_ms, without_name(dialect))
        shown = (f"{made.kind(dialect)} AS kind", *COUNTED)
        found = engine.rows(
            select(
                shown,
                dialect.latest("incidents"),
                where=where,
                group=("kind",),
                order="hosts DESC, incidents DESC, kind",
            )
        )
        for row in found:
            group = known.get(text(row["kind"]))
            if group is None:
                continue
            rows.append(
                {
                    "name": group.name,
                    "hosts": whole(row["hosts"]),
                    "incidents": whole(row["incidents"]),
                    "since_ms": whole(row["first_ms"]),
                    "last_ms": whole(row["last_ms"]),
                    "stalled_s": seconds(row["stalled_ms"]),
                    "first_version": group.leader.version,
                    "shapes": [one.shape for one in group.shapes][:100],
                    "functions": list(_shared(group)),
                }
            )
    notes += _without_shape(engine, asked)
    return Answer("unknown", rows[: asked.limit], tuple(notes))


def _shared(group: Group) -> Sequence[str]:
    """Return the functions of most of its shapes, those of all shapes first."""
    counts = Counter(name for one in group.shapes for name in set(one.functions))
    most = [name for name, count in counts.items() if 2 * count > len(group.shapes)]
    return sorted(most, key=lambda name: (-counts[name], name))[:_FUNCTIONS]


def _without_shape(engine: Engine, asked: Asked) -> tuple[str, ...]:
    dialect = engine.dialect
    condition = f"signature = {dialect.text('unknown')} AND shape = ''"
    where = during(dialect, asked.since_ms, asked.until_ms, condition)
    shown = ("count(*) AS incidents",)
    (row,) = engine.rows(select(shown, dialect.latest("incidents"), where=where))
    count = whole(row["incidents"])
    return (f"left out: {count} unknown stalls of which no stack is known",) if count else ()


QUESTION = Question(
    "unknown",
    "Stalls without a name, grouped by the functions that they have in common.",
    (
        *("name", "hosts", "incidents", "since_ms", "last_ms", "stalled_s", "first_version"),
        *("shapes", "functions"),
    ),
    _answer,
)
