# SPDX-License-Identifier: Apache-2.0
"""The same stall on many hosts."""

from __future__ import annotations

from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import LASTED, MOST_ROWS, during, select
from stallscope.fleet.questions.values import ratio, seconds, text, texts, whole

__all__ = ["QUESTION"]


def _answer(engine: Engine, asked: Asked) -> Answer:
    found = _sums(engine, asked)
    every = sum(whole(row["incidents"]) for row in found)
    together = _together(engine, asked)
    rows = []
    for row in found[: asked.limit]:
        most, at_ms = together.get(text(row["signature"]), (0, 0))
        rows.append(
            {
                "signature": text(row["signature"]),
                "incidents": whole(row["incidents"]),
                "hosts": whole(row["hosts"]),
                "share": ratio(whole(row["incidents"]), every),
                "together": most,
                "at_ms": at_ms,
                "stalled_s": seconds(row["stalled_ms"]),
                "worst_s": seconds(row["worst_ms"]),
                "first_ms": whole(row["first_ms"]),
                "last_ms": whole(row["last_ms"]),
                "versions": texts(row["all_versions"]),
                "title": text(row["a_title"]),
            }
        )
    full = len(found) == MOST_ROWS
    return Answer(
        "signatures", rows, (f"shares are of the first {MOST_ROWS} signatures",) if full else ()
    )


def _sums(engine: Engine, asked: Asked) -> list[dict[str, Any]]:
    where = during(engine.dialect, asked.since_ms, asked.until_ms)
    shown = (
        "signature",
        "count(*) AS incidents",
        "count(DISTINCT host) AS hosts",
        f"sum({LASTED}) AS stalled_ms",
        f"max({LASTED}) AS worst_ms",
        "min(start_ms) AS first_ms",
        "max(start_ms) AS last_ms",
        f"{engine.dialect.distinct('version')} AS all_versions",
        "max(title) AS a_title",
    )
    return engine.rows(
        select(
            shown,
            engine.dialect.latest("incidents"),
            where=where,
            group=("signature",),
            order="incidents DESC, hosts DESC, signature",
            limit=MOST_ROWS,
        )
    )


def _together(engine: Engine, asked: Asked) -> dict[str, tuple[int, int]]:
    """Return of each signature on how many hosts it was at most in one of the windows of
    ``minutes``, and when the first such window began."""
    step = max(1, round(asked.minutes * 60_000))
    where = during(engine.dialect, asked.since_ms, asked.until_ms)
    place = engine.dialect.floor("start_ms", step)
    columns = ("signature", f"{place} AS at_ms", "count(DISTINCT host) AS hosts")
    latest = engine.dialect.latest("incidents")
    windows = select(columns, latest, where=where, group=("signature", "at_ms"))
    rank = f"hosts * {1 << 42} - at_ms"  # more hosts first, then the earliest
    best = engine.rows(
        select(("signature", f"max({rank}) AS best"), f"({windows})", group=("signature",))
    )
    found = {}
    for row in best:
        hosts = -(-whole(row["best"]) // (1 << 42))
        found[text(row["signature"])] = (hosts, hosts * (1 << 42) - whole(row["best"]))
    return found


QUESTION = Question(
    "signatures",
    "Which stalls there were, and on how many hosts at the same time.",
    (
        *("signature", "incidents", "hosts", "share", "together", "at_ms", "stalled_s", "worst_s"),
        *("first_ms", "last_ms", "versions", "title"),
    ),
    _answer,
)
