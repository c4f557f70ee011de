# SPDX-License-Identifier: Apache-2.0
"""What differs in SQL between the engines; the questions use nothing else that does.

All take: ``if(c, a, b)``, ``argMax(value, by)``, ``argMin``, ``count(DISTINCT x)``, ``CASE``,
``LIMIT``, ``greatest`` and ``least`` of two values, ``[a, b]``, ``JOIN`` of subqueries. ``LIMIT n
BY``, common table expressions and window functions are not in all. In ClickHouse a column must not
have the name of another that an aggregate of the same query uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stallscope.fleet.tables import PARTS

__all__ = ["OF_INCIDENT", "Dialect", "used"]

OF_INCIDENT = ("day", "uid", "host", "start_ms")
"""Columns that parts have of their incident."""


def used(part: str, columns: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the columns of a part, and of its incident, that a query uses."""
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in where).split())
    known = (*OF_INCIDENT, *(column.name for column in PARTS[part].columns))
    return tuple(one for one in known if one in words or one in columns)


class Dialect(Protocol):
    """Makes the parts of a query that differ."""

    def table(self, name: str, columns: Sequence[str], where: str = "") -> str:
        """Return a subquery in brackets, without alias: the rows of a table that count (of each key
        the latest revision), of these columns.

        ``name``: a table or a part (tables.TABLES, tables.PARTS). ``where``: a condition on its
        columns. Conditions on ``day`` say which partitions are read.
        """

    def latest(self, name: str) -> str:
        """Return what follows FROM: the rows of a table that count. Conditions, groups and sums of
        the same query are the work of the shards; of a query about ``table()`` they are not."""

    def text(self, value: str) -> str:
        """Return a literal."""

    def distinct(self, value: str) -> str:
        """Return an aggregate: a sorted array of the different values."""

    def mapped(self, value: str, names: Mapping[str, str], other: str) -> str:
        """Return a text for another: of ``names``, which is not empty, or ``other``, a literal."""

    def floor(self, value: str, step: int) -> str:
        """Return a whole number rounded down to a multiple of ``step``."""

    def exploded(self, source: str, array: str, item: str, columns: Sequence[str]) -> str:
        """Return a subquery in brackets: of ``source``, a subquery, one row for each item of its
        column ``array``, or of another array made of its columns, named ``item``, with its
        ``columns``."""

    def quantile(self, level: float, value: str) -> str:
        """Return an aggregate: the value at the place ``floor(level * (n - 1))`` of those that are
        not null, sorted."""

    def first(self, source: str, columns: Sequence[str], by: str, order: str, count: int) -> str:
        """Return a subquery in brackets: of ``source``, a subquery, for each value of its column
        ``by`` the first ``count`` rows in this order, with these columns."""
