# SPDX-License-Identifier: Apache-2.0
"""How tables that are there differ from those that are wanted, and what brings them there.

A later version only adds columns: an older agent writes without them, and they have their default;
a newer agent writes into older tables, which leave them out. Another change of a table is of no
version: somebody altered it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallscope.fleet.engines.clickhouseddl import column_definition, plain_type
from stallscope.fleet.tables import Column, Table

__all__ = ["Change", "additions", "retyped"]


class Change(msgspec.Struct, frozen=True):
    """A column that a table lacks, and what ``ALTER TABLE name`` says to add it."""

    column: str
    sql: str


def additions(
    table: Table, found: Mapping[str, str], version: tuple[int, int]
) -> tuple[Change, ...]:
    """Return what a table lacks. ``found``: its columns and their types."""
    changes: list[Change] = []
    before = ""
    for column in table.columns:
        if column.name not in found:
            place = f" AFTER {before}" if before else ""
            sql = f"ADD COLUMN {column_definition(column, version)}{place}"
            changes.append(Change(column.name, sql))
        before = column.name
    return tuple(changes)


def retyped(
    columns: Sequence[Column], found: Mapping[str, str]
) -> tuple[tuple[str, str, str], ...]:
    """Return name, type there and type wanted of columns that somebody changed."""
    return tuple(
        (column.name, found[column.name], plain_type(column))
        for column in columns
        if column.name in found and _plain(found[column.name]) != plain_type(column)
    )


def _plain(kind: str) -> str:
    return kind.replace("LowCardinality(String)", "String")
