# SPDX-License-Identifier: Apache-2.0
"""How long it takes to detect a stall."""

from __future__ import annotations

from typing import Any

from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.sqltext import during, select
from stallscope.fleet.questions.values import newest_last, number, text, whole

__all__ = ["QUESTION"]

_OF = {"f": "fleet", "v": "version", "h": "host"}


def _answer(engine: Engine, asked: Asked) -> Answer:
    dialect = engine.dialect
    where = during(dialect, asked.since_ms, asked.until_ms, "detect_ms IS NOT NULL")
    source = dialect.table("incidents", ("host", "version", "detect_ms"), where)
    keys = f"[{dialect.text('f')}, concat('v', version), concat('h', host)]"
    exploded = dialect.exploded(source, keys, "of_what", ("detect_ms",))
    shown = (
        "of_what",
        "count(*) AS incidents",
        f"{dialect.quantile(0.5, 'detect_ms')} AS median_ms",
        f"{dialect.quantile(0.9, 'detect_ms')} AS p90_ms",
        "max(detect_ms) AS max_ms",
    )
    rows: list[dict[str, Any]] = [
        {
            "kind": _OF[text(row["of_what"])[:1]],
            "name": text(row["of_what"])[1:],
            "incidents": whole(row["incidents"]),
            "median_ms": number(row["median_ms"]),
            "p90_ms": number(row["p90_ms"]),
            "max_ms": number(row["max_ms"]),
        }
        for row in engine.rows(select(shown, exploded, group=("of_what",), order="of_what"))
    ]
    kinds = {
        kind: [row for row in rows if row["kind"] == kind] for kind in ("fleet", "version", "host")
    }
    kinds["version"].sort(key=lambda row: newest_last(row["name"]), reverse=True)
    kinds["host"].sort(key=lambda row: (-row["p90_ms"], -row["max_ms"], row["name"]))
    every = [row for found in kinds.values() for row in found]
    return Answer("detection", every[: asked.limit])


QUESTION = Question(
    "detection",
    "How long it took from the breach until a capture was there: of all, each version and host.",
    ("kind", "name", "incidents", "median_ms", "p90_ms", "max_ms"),
    _answer,
)
