# SPDX-License-Identifier: Apache-2.0
"""Which stalls are more frequent with one version of the server than with another."""

from __future__ import annotations

from typing import Any

from stallscope.base.text import one_line
from stallscope.fleet.destination import Engine
from stallscope.fleet.questions.asked import Answer, Asked, Question
from stallscope.fleet.questions.chance import by_chance, p_value
from stallscope.fleet.questions.groups import groups
from stallscope.fleet.questions.sqltext import MOST_ROWS, among, during, select
from stallscope.fleet.questions.values import newest_last, ratio, text, whole
from stallscope.fleet.questions.watched import HOUR_MS, watched

__all__ = ["QUESTION"]

_Sides = tuple[dict[str, Any], dict[str, Any]]


def _answer(engine: Engine, asked: Asked) -> Answer:
    hours = watched(engine, asked, ("server", "version"))
    new, old, why = _versions(hours, asked)
    if why:
        return Answer("regressions", [], (why,))
    times = [sum(ms for (_, one), ms in hours.items() if one == side) for side in (new, old)]
    found, notes = _counts(engine, asked, new, old)
    rows = [_row(kind, sides, times, new, old) for kind, sides in found.items()]
    for row, chance in zip(rows, by_chance([row["p"] for row in rows]), strict=True):
        row["chance"] = chance
        row["p"] = None if row["p"] is None else float(f"{row['p']:.3g}")
    rows.sort(key=_order)
    notes += [
        f"nobody watched a server of version {one_line(side, 60)} in this time: no rates"
        for side, ms in zip((new, old), times, strict=True)
        if not ms
    ]
    return Answer("regressions", rows[: asked.limit], tuple(notes))


def _versions(hours: dict[tuple[str, ...], int], asked: Asked) -> tuple[str, str, str]:
    """Return the new version, the old one, and why there are none: those that are asked for; else
    of the server that was watched most the newest, and the one before."""
    if asked.version and asked.against:
        return asked.version, asked.against, ""
    known = {key: ms for key, ms in hours.items() if key[1] and ms}
    if asked.version:
        servers = {server for server, version in known if version == asked.version}
    else:
        most = {
            server: sum(ms for key, ms in known.items() if key[0] == server) for server, _ in known
        }
        servers = {max(most, key=lambda one: (most[one], one))} if most else set()
    versions = sorted({version for server, version in known if server in servers}, key=newest_last)
    new = asked.version or (versions[-1] if versions else "")
    older = [one for one in versions if newest_last(one) < newest_last(new)]
    old = asked.against or (older[-1] if older else "")
    if new and old:
        return new, old, ""
    return "", "", "there are no two versions that were watched in this time"


def _counts(
    engine: Engine, asked: Asked, new: str, old: str
) -> tuple[dict[str, _Sides], list[str]]:
    dialect = engine.dialect
    made = groups(engine, asked.since_ms, asked.until_ms)
    condition = f"{among(dialect, 'version', (new, old))} AND signature <> {dialect.text('none')}"
    where = during(dialect, asked.since_ms, asked.until_ms, condition)
    shown = (
        f"{made.kind(dialect)} AS kind",
        "version",
        "count(*) AS incidents",
        "count(DISTINCT host) AS hosts",
        "max(title) AS a_title",
    )
    query = select(
        shown,
        dialect.latest("incidents"),
        where=where,
        group=("kind", "version"),
        order="incidents DESC, kind, version",
        limit=MOST_ROWS,
    )
    found: dict[str, _Sides] = {}
    for row in engine.rows(query):
        sides = found.setdefault(text(row["kind"]), ({}, {}))
        sides[0 if text(row["version"]) == new else 1].update(row)
    return found, list(made.notes)


def _row(kind: str, sides: _Sides, times: list[int], new: str, old: str) -> dict[str, Any]:
    a, b = (whole(side.get("incidents")) for side in sides)
    rates = [ratio(100 * n * HOUR_MS, ms) for n, ms in ((a, times[0]), (b, times[1]))]
    both = a and b and all(times)
    return {
        "signature": kind,
        "ratio": round(a * times[1] / (b * times[0]), 3) if both else None,
        "p": p_value(a, b, times[0], times[1]),
        "chance": None,
        "new_per_100h": rates[0],
        "old_per_100h": rates[1],
        "new_incidents": a,
        "old_incidents": b,
        "new_hosts": whole(sides[0].get("hosts")),
        "old_hosts": whole(sides[1].get("hosts")),
        "new_hours": round(times[0] / HOUR_MS, 1),
        "old_hours": round(times[1] / HOUR_MS, 1),
        "version": new,
        "against": old,
        "title": max(text(side.get("a_title")) for side in sides),
    }


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Worse and no chance, then worse, then the others; the surest first."""
    rates = (row["new_per_100h"] or 0.0, row["old_per_100h"] or 0.0)
    worse = rates[0] > rates[1]
    chance = row["chance"] is not False
    p = 2.0 if row["p"] is None else row["p"]
    return (not worse, chance, p, rates[1] - rates[0], row["signature"])


QUESTION = Question(
    "regressions",
    "Which stalls are more frequent with one version of the server than with another.",
    (
        *("signature", "ratio", "p", "chance", "new_per_100h", "old_per_100h", "new_incidents"),
        *("old_incidents", "new_hosts", "old_hosts", "new_hours", "old_hours", "version"),
        *("against", "title"),
    ),
    _answer,
)
