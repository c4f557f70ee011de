# SPDX-License-Identifier: Apache-2.0
"""Which agents fell silent."""

from __future__ import annotations

from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.dialect import Dialect
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import MOST_ROWS, select
from stallscope.fleet.questions.values import number, text, whole
from stallscope.fleet.tables import day_of

__all__ = ["LOOK_BACK_MS", "QUESTION"]

LOOK_BACK_MS = 7 * 86_400_000
"""An agent that is silent for longer is not looked for, unless ``since`` is before."""
_BY = ("host", "program", "pid")
_LATEST = (
    *("server", "version", "agent_version", "state", "started_ms", "skew_ms", "waiting"),
    *("dropped", "why"),
)
_SEEN = "seen_ms + floor(coalesce(skew_ms, 0) + 0.5)"
"""By the clock of the engine."""


def _answer(engine: Engine, asked: Asked) -> Answer:
    rows = engine.rows(_query(engine.dialect, asked))
    started = _newest(engine, asked) if rows else {}
    found = []
    for row in rows:
        seen = whole(row["last_seen"])
        if started.get((text(row["host"]), text(row["program"])), 0) > whole(row["seen_by_host"]):
            continue  # its server was restarted, or it was: another is in its place
        found.append(_row(row, asked.until_ms - seen))
    notes = (f"more than {MOST_ROWS} agents are silent",) if len(rows) == MOST_ROWS else ()
    return Answer("silent", found[: asked.limit], notes)


def _days(dialect: Dialect, asked: Asked) -> str:
    since = max(0, min(asked.since_ms, asked.until_ms - LOOK_BACK_MS))
    return f"day >= {dialect.text(day_of(since))} AND day <= {dialect.text(day_of(asked.until_ms))}"


def _query(dialect: Dialect, asked: Asked) -> str:
    """Return a query for the processes whose agent is silent and did not end as it should."""
    shown = (
        *_BY,
        f"max({_SEEN}) AS last_seen",
        "max(seen_ms) AS seen_by_host",
        *(f"argMax({one}, seen_ms) AS a_{one}" for one in _LATEST if one != "skew_ms"),
        # argMax leaves out nulls
        f"argMax(coalesce(skew_ms, {_NO_SKEW}), seen_ms) AS a_skew_ms",
    )
    least = asked.until_ms - round(asked.minutes * 60_000)
    return select(
        shown,
        dialect.latest("agents"),
        where=_days(dialect, asked),
        group=_BY,
        having=f"last_seen < {least} AND a_state <> {dialect.text('ended')}",
        order="last_seen, host, program, pid",
        limit=MOST_ROWS,
    )


_NO_SKEW = -1e18


def _newest(engine: Engine, asked: Asked) -> dict[tuple[str, str], int]:
    """Return when the newest process of each program was begun to be watched."""
    by = ("host", "program")
    query = select(
        (*by, "max(started_ms) AS newest"),
        engine.dialect.latest("agents"),
        where=_days(engine.dialect, asked),
        group=by,
        order=", ".join(by),
    )
    return {
        (text(row["host"]), text(row["program"])): whole(row["newest"])
        for row in engine.rows(query)
    }


def _row(row: dict[str, Any], silent_ms: int) -> dict[str, Any]:
    skew = number(row["a_skew_ms"], 1)
    return {
        "host": text(row["host"]),
        "silent_s": silent_ms / 1000,
        "state": text(row["a_state"]),
        "program": text(row["program"]),
        "pid": whole(row["pid"]),
        "server": text(row["a_server"]),
        "version": text(row["a_version"]),
        "agent_version": text(row["a_agent_version"]),
        "started_ms": whole(row["a_started_ms"]),
        "seen_ms": whole(row["seen_by_host"]),
        "skew_ms": None if skew == _NO_SKEW else skew,
        "waiting": whole(row["a_waiting"]),
        "dropped": whole(row["a_dropped"]),
        "why": text(row["a_why"]),
    }


QUESTION = Question(
    "silent",
    "Agents that were not seen for some minutes and did not end as they should.",
    (
        *("host", "silent_s", "state", "program", "pid", "server", "version", "agent_version"),
        *("started_ms", "seen_ms", "skew_ms", "waiting", "dropped", "why"),
    ),
    _answer,
    LOOK_BACK_MS,
)
