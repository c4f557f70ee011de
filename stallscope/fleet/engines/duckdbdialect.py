# SPDX-License-Identifier: Apache-2.0
"""DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def latest(self, name: str) -> str:
        """Return the rows that count of a table."""
        return name

    def text(self, value: str) -> str:
        """Return a literal."""
        return "'" + value.replace("'", "''") + "'"

    def distinct(self, value: str) -> str:
        """Return an array of the different values."""
        return f"list_sort(list(DISTINCT {value}))"

    def mapped(self, value: str, names: Mapping[str, str], other: str) -> str:
        """Return a text for another."""
        pairs = ", ".join(f"{self.text(one)}: {self.text(to)}" for one, to in names.items())
        return f"coalesce(map_extract_value(MAP {{{pairs}}}, {value}), {other})"

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

    def first(self, source: str, columns: Sequence[str], by: str, order: str, count: int) -> str:
        """Return the first rows of each value of a column."""
        shown = ", ".join(columns)
        place = f"row_number() OVER (PARTITION BY {by} ORDER BY {order})"
        return f"(SELECT {shown} FROM {source} QUALIFY {place} <= {count})"
