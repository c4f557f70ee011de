# SPDX-License-Identifier: Apache-2.0
"""Which locks are waited for most: by all waits, and in stalls."""

from __future__ import annotations

from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import (
    LASTED,
    MOST_ROWS,
    VICTIM_MS,
    during,
    select,
    thousandths,
)
from stallscope.fleet.questions.values import seconds, text, texts, whole

__all__ = ["QUESTION"]


def _answer(engine: Engine, asked: Asked) -> Answer:
    waits, stalls = _waits(engine, asked), _stalls(engine, asked)
    rows = [_row(name, waits.get(name, {}), stalls.get(name, {})) for name in {*waits, *stalls}]
    rows.sort(key=lambda row: (-max(row["wait_s"] or 0.0, row["victim_s"]), row["name"]))
    full = [found for found in (waits, stalls) if len(found) == MOST_ROWS]
    notes = [f"only the {MOST_ROWS} locks that were waited for most"] if full else []
    if stalls and not waits:
        notes.append("no waits were shipped: only stalls are known")
    return Answer("locks", rows[: asked.limit], tuple(notes))


def _waits(engine: Engine, asked: Asked) -> dict[str, dict[str, Any]]:
    where = during(engine.dialect, asked.since_ms, asked.until_ms, column="minute_ms")
    total = f"sum({thousandths('total_ms')}) AS total_us"
    shown = (
        *("name", "sum(count) AS waits", "sum(over) AS long_waits", total),
        f"max({thousandths('max_ms')}) AS longest_us",
        "count(DISTINCT host) AS hosts",
        f"{engine.dialect.distinct('kind')} AS kinds",
    )
    query = select(
        shown,
        engine.dialect.latest("waits"),
        where=where,
        group=("name",),
        order="total_us DESC, waits DESC, name",
        limit=MOST_ROWS,
    )
    return {text(row["name"]): row for row in engine.rows(query)}


def _stalls(engine: Engine, asked: Asked) -> dict[str, dict[str, Any]]:
    where = during(engine.dialect, asked.since_ms, asked.until_ms, "lock_name <> ''")
    shown = (
        *("lock_name", "count(*) AS incidents", "count(DISTINCT host) AS hosts"),
        f"sum({VICTIM_MS}) AS victim_ms",
        f"max({LASTED}) AS worst_ms",
        f"{engine.dialect.distinct('lock_kind')} AS kinds",
    )
    query = select(
        shown,
        engine.dialect.latest("incidents"),
        where=where,
        group=("lock_name",),
        order="coalesce(victim_ms, 0) DESC, incidents DESC, lock_name",
        limit=MOST_ROWS,
    )
    return {text(row["lock_name"]): row for row in engine.rows(query)}


def _row(name: str, waits: dict[str, Any], stalls: dict[str, Any]) -> dict[str, Any]:
    kinds = {*texts(waits.get("kinds")), *texts(stalls.get("kinds"))} - {""}
    return {
        "name": name,
        "kinds": sorted(kinds),
        "wait_s": whole(waits["total_us"]) / 1_000_000 if waits else None,
        "waits": whole(waits["waits"]) if waits else None,
        "long_waits": whole(waits["long_waits"]) if waits else None,
        "longest_s": whole(waits["longest_us"]) / 1_000_000 if waits else None,
        "hosts": whole(waits["hosts"]) if waits else None,
        "victim_s": seconds(stalls.get("victim_ms")),
        "incidents": whole(stalls.get("incidents")),
        "stalled_hosts": whole(stalls.get("hosts")),
        "worst_s": seconds(stalls.get("worst_ms")),
    }


QUESTION = Question(
    "locks",
    "Which locks and files were waited for longest, by all waits and in stalls.",
    (
        *("name", "kinds", "wait_s", "waits", "long_waits", "longest_s", "hosts", "victim_s"),
        *("incidents", "stalled_hosts", "worst_s"),
    ),
    _answer,
)
