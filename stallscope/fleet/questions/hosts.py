# SPDX-License-Identifier: Apache-2.0
"""Stalls by host and time: the numbers of a heat map."""

from __future__ import annotations

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import LASTED, among, during, select
from stallscope.fleet.questions.values import seconds, text, whole

__all__ = ["QUESTION", "step_ms"]

_MOST_HOSTS = 1_000
_COLUMNS = 48
_MINUTE = 60_000
_STEPS = tuple(_MINUTE * one for one in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))


def step_ms(asked: Asked) -> int:
    """Return the width of a column: a round time, of which at most 49 are in the time asked for."""
    wanted = (asked.until_ms - asked.since_ms) / _COLUMNS
    days = 1440 * _MINUTE
    return next((one for one in _STEPS if one >= wanted), -int(-wanted // days) * days)


def _answer(engine: Engine, asked: Asked) -> Answer:
    dialect = engine.dialect
    most = min(asked.limit, _MOST_HOSTS)
    latest = dialect.latest("incidents")
    where = during(dialect, asked.since_ms, asked.until_ms)
    shown = ("host", "count(*) AS incidents", f"coalesce(sum({LASTED}), 0) AS stalled_ms")
    order = "stalled_ms DESC, incidents DESC, host"
    query = select(shown, latest, where=where, group=("host",), order=order, limit=most + 1)
    worst = engine.rows(query)
    places = {text(row["host"]): place for place, row in enumerate(worst[:most])}
    if not places:
        return Answer("hosts", [])
    where = during(dialect, asked.since_ms, asked.until_ms, among(dialect, "host", places))
    step = step_ms(asked)
    cell = (
        "host",
        f"{dialect.floor('start_ms', step)} AS at_ms",
        "count(*) AS incidents",
        f"sum({LASTED}) AS stalled_ms",
    )
    by = ("host", "at_ms")
    cells = engine.rows(select(cell, latest, where=where, group=by, order=", ".join(by)))
    rows = [
        {
            "host": text(row["host"]),
            "at_ms": whole(row["at_ms"]),
            "incidents": whole(row["incidents"]),
            "stalled_s": seconds(row["stalled_ms"]),
            "step_ms": step,
        }
        for row in cells
    ]
    rows.sort(key=lambda row: places[str(row["host"])])
    note = f"only the {most} hosts that were stalled longest"
    return Answer("hosts", rows, (note,) if len(worst) > most else ())


QUESTION = Question(
    "hosts",
    "How many stalls each host had when: of the hosts that were stalled longest.",
    ("host", "at_ms", "incidents", "stalled_s", "step_ms"),
    _answer,
)
