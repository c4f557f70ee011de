# SPDX-License-Identifier: Apache-2.0
"""ClickHouse's SQL, from 18.16 on."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.fleet.dialect import OF_INCIDENT, used
from stallscope.fleet.tables import PARTS

__all__ = ["ClickHouseDialect", "literal"]


def literal(value: str) -> str:
    """Return a literal, which a quote or backslash in the value cannot end."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


class ClickHouseDialect:
    """dialect.Dialect of ClickHouse."""

    def table(self, name: str, columns: Sequence[str], where: str = "") -> str:
        """Return the rows that count of a table or part."""
        condition = f" WHERE {where}" if where else ""
        part = PARTS.get(name)
        if part is None:
            return f"(SELECT {', '.join(columns)} FROM {name} FINAL{condition})"
        wanted = [one for one in used(name, columns, where) if one not in OF_INCIDENT]
        arrays = ", ".join(
            f"{part.prefix}_{one} AS {one}" for one in wanted or [part.columns[0].name]
        )
        return f"(SELECT {', '.join(columns)} FROM incidents FINAL ARRAY JOIN {arrays}{condition})"

    def text(self, value: str) -> str:
        """Return a literal."""
        return literal(value)

    def floor(self, value: str, step: int) -> str:
        """Return it rounded down."""
        return f"(intDiv({value}, {step}) * {step})"

    def exploded(self, source: str, array: str, item: str, columns: Sequence[str]) -> str:
        """Return a row for each item of an array."""
        shown = ", ".join((*columns, item))
        return f"(SELECT {shown} FROM {source} ARRAY JOIN {array} AS {item})"

    def quantile(self, level: float, value: str) -> str:
        """Return a value of the sorted ones."""
        place = f"toUInt32(floor({level} * (count({value}) - 1))) + 1"
        sorted_ones = f"arraySort(groupArray({value}))"
        return f"if(count({value}) = 0, NULL, arrayElement({sorted_ones}, {place}))"
