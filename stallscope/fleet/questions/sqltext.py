# SPDX-License-Identifier: Apache-2.0
"""Parts of queries that several questions have. Sums are of whole numbers: they are the same in
whatever order an engine adds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stallscope.fleet.dialect import Dialect
from stallscope.fleet.tables import day_of

__all__ = [
    "COUNTED",
    "LASTED",
    "MOST_ROWS",
    "VICTIM_MS",
    "among",
    "during",
    "select",
    "thousandths",
]

MOST_ROWS = 10_000
"""Of one query: an answer has at most ``limit`` of what follows from them."""


def thousandths(column: str) -> str:
    """Return a whole number of thousandths of a column; null where that is."""
    return f"floor({column} * 1000 + 0.5)"


LASTED = thousandths("seconds")
"""How long an incident lasted, in ms; null where that is not known."""
VICTIM_MS = f"threads * {LASTED}"
"""Victims times how long it lasted, in ms."""


COUNTED = (
    "count(*) AS incidents",
    "count(DISTINCT host) AS hosts",
    "min(start_ms) AS first_ms",
    "max(start_ms) AS last_ms",
    f"sum({LASTED}) AS stalled_ms",
)
"""How many incidents a kind of stall had, and when."""


def select(
    columns: Sequence[str],
    source: str,
    *,
    where: str = "",
    group: Sequence[str] = (),
    having: str = "",
    order: str = "",
    limit: int = 0,
) -> str:
    """Return a query. ``source``: a subquery in brackets, or ``Dialect.latest``."""
    alias = " AS t" if source.startswith("(") else ""
    lines = [f"SELECT {', '.join(columns)}", f"FROM {source}{alias}"]
    lines += [f"WHERE {where}"] if where else []
    lines += [f"GROUP BY {', '.join(group)}"] if group else []
    lines += [f"HAVING {having}"] if having else []
    lines += [f"ORDER BY {order}"] if order else []
    lines += [f"LIMIT {limit}"] if limit else []
    return "\n".join(lines)


def during(
    dialect: Dialect, since_ms: int, until_ms: int, more: str = "", column: str = "start_ms"
) -> str:
    """Return a condition: from one moment on, and before another. It names the days, so that other
    partitions are not read."""
    days = (dialect.text(day_of(since_ms)), dialect.text(day_of(max(since_ms, until_ms - 1))))
    condition = (
        f"day >= {days[0]} AND day <= {days[1]}"
        f" AND {column} >= {since_ms} AND {column} < {until_ms}"
    )
    return f"{condition} AND {more}" if more else condition


def among(dialect: Dialect, column: str, values: Iterable[str]) -> str:
    """Return a condition: the column has one of these values, of which there is at least one."""
    return f"{column} IN ({', '.join(map(dialect.text, values))})"
