# SPDX-License-Identifier: Apache-2.0
"""How long servers were watched: what rates are rates of."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.fleet.destination import Engine
from stallscope.fleet.dialect import Dialect
from stallscope.fleet.questions.asked import Asked
from stallscope.fleet.questions.sqltext import select, thousandths
from stallscope.fleet.questions.values import text, whole
from stallscope.fleet.tables import day_of

__all__ = ["HOUR_MS", "watched"]

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS


def watched(engine: Engine, asked: Asked, by: Sequence[str]) -> dict[tuple[str, ...], int]:
    """Return for each value of columns of ``agents`` how many ms servers were watched.

    A row says this of a day. Of a day that is partly asked for it counts in proportion to the time
    from the first to the last sign of life on that day. Two servers of a host count twice.
    """
    rows = engine.rows(_query(engine.dialect, asked, by))
    return {tuple(text(row[one]) for one in by): whole(row["watched_ms"]) for row in rows}


def _query(dialect: Dialect, asked: Asked, by: Sequence[str]) -> str:
    since, until = asked.since_ms, asked.until_ms
    begin = f"greatest(started_ms, {dialect.floor('seen_ms', _DAY_MS)})"
    overlap = f"greatest(least(seen_ms, {until}) - greatest({begin}, {since}), 0)"
    part = f"floor({thousandths('watched_s')} * {overlap} / greatest(seen_ms - {begin}, 1))"
    where = (
        f"day >= {dialect.text(day_of(since))} AND day <= {dialect.text(day_of(until))}"
        f" AND seen_ms > {since} AND started_ms < {until}"
    )
    columns = (*by, f"sum({part}) AS watched_ms")
    return select(columns, dialect.latest("agents"), where=where, group=by, order=", ".join(by))
