# SPDX-License-Identifier: Apache-2.0
"""Hosts whose clocks are wrong: times of incidents are by the clock of their host."""

from __future__ import annotations

from stallscope.base.text import one_line
from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Asked
from stallscope.fleet.questions.sqltext import select
from stallscope.fleet.questions.values import text, whole
from stallscope.fleet.tables import day_of

__all__ = ["MOST_SKEW_MS", "wrong_clocks"]

MOST_SKEW_MS = 5_000
_NAMED = 3
_COUNTED = 1_000


def wrong_clocks(engine: Engine, asked: Asked) -> tuple[str, ...]:
    """Return a note where hosts' clocks are more than 5 s off that of the engine."""
    dialect = engine.dialect
    days = (dialect.text(day_of(asked.since_ms)), dialect.text(day_of(asked.until_ms)))
    where = f"day >= {days[0]} AND day <= {days[1]} AND abs(skew_ms) > {MOST_SKEW_MS}"
    columns = ("host", "max(floor(abs(skew_ms) + 0.5)) AS most_ms")
    query = select(
        columns,
        dialect.latest("agents"),
        where=where,
        group=("host",),
        order="most_ms DESC, host",
        limit=_COUNTED,
    )
    rows = engine.rows(query)
    if not rows:
        return ()
    named = ", ".join(
        f"{one_line(text(row['host']), 60)} by {whole(row['most_ms']) / 1000:.1f} s"
        for row in rows[:_NAMED]
    )
    count = f"{len(rows)}{' or more' if len(rows) == _COUNTED else ''}"
    hosts = "host are" if len(rows) == 1 else "hosts are"
    return (f"clocks of {count} {hosts} off by more than 5 s ({named}): times are by them",)
