# SPDX-License-Identifier: Apache-2.0
"""ClickHouse's SQL, from 18.16 on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def latest(self, name: str) -> str:
        """Return the rows that count of a table."""
        return f"{name} FINAL"

    def text(self, value: str) -> str:
        """Return a literal."""
        return literal(value)

    def distinct(self, value: str) -> str:
        """Return an array of the different values."""
        return f"arraySort(groupUniqArray({value}))"

    def mapped(self, value: str, names: Mapping[str, str], other: str) -> str:
        """Return a text for another."""
        texts = [", ".join(map(literal, some)) for some in (names, names.values())]
        return f"transform({value}, [{texts[0]}], [{texts[1]}], {other})"

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

    def first(self, source: str, columns: Sequence[str], by: str, order: str, count: int) -> str:
        """Return the first rows of each value of a column."""
        shown = ", ".join(columns)
        return f"(SELECT {shown} FROM {source} ORDER BY {order} LIMIT {count} BY {by})"
