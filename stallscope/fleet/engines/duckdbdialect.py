# SPDX-License-Identifier: Apache-2.0
"""DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.fleet.dialect import OF_INCIDENT, used
from stallscope.fleet.tables import PARTS

__all__ = ["DuckDBDialect"]


class DuckDBDialect:
    """dialect.Dialect of DuckDB. Views with the names of the tables have the rows that count."""

    def table(self, name: str, columns: Sequence[str], where: str = "") -> str:
        """Return the rows that count of a table or part."""
        condition = f" WHERE {where}" if where else ""
        part = PARTS.get(name)
        if part is None:
            return f"(SELECT {', '.join(columns)} FROM {name}{condition})"
        inner = ", ".join(
            one if one in OF_INCIDENT else f"unnest({part.prefix}_{one}) AS {one}"
            for one in used(name, columns, where)
        )
        return f"(SELECT {', '.join(columns)} FROM (SELECT {inner} FROM incidents){condition})"

    def text(self, value: str) -> str:
        """Return a literal."""
        return "'" + value.replace("'", "''") + "'"

    def floor(self, value: str, step: int) -> str:
        """Return it rounded down."""
        return f"({value} // {step} * {step})"

    def exploded(self, source: str, array: str, item: str, columns: Sequence[str]) -> str:
        """Return a row for each item of an array."""
        shown = ", ".join(columns)
        return f"(SELECT {shown}, unnest({array}) AS {item} FROM {source})"

    def quantile(self, level: float, value: str) -> str:
        """Return a value of the sorted ones."""
        sorted_ones = f"list_sort(list({value}) FILTER ({value} IS NOT NULL))"
        return f"{sorted_ones}[CAST(floor({level} * (count({value}) - 1)) AS BIGINT) + 1]"
