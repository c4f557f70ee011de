# SPDX-License-Identifier: Apache-2.0
"""SQL for files of rows, with the columns of tables.py: nothing is guessed from their content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from stallscope.fleet.dialect import OF_INCIDENT
from stallscope.fleet.engines.duckdbdialect import DuckDBDialect
from stallscope.fleet.engines.folderfiles import MAX_LINE
from stallscope.fleet.tables import PARTS, Column, Table

__all__ = [
    "anti_join",
    "copied",
    "everything",
    "files",
    "lines",
    "part_view",
    "schema",
    "selected",
    "typed",
    "winners",
]

_TYPES = {
    "text": "VARCHAR",
    "day": "VARCHAR",
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "UTINYINT",
}
_ZERO = {"text": "''", "day": "''", "int": "0", "float": "0.0", "bool": "0"}
_GROUP = 40_960
_text = DuckDBDialect().text


def type_of(column: Column) -> str:
    """Return a column's type in DuckDB."""
    return _TYPES[column.type] + ("[]" if column.array else "")


def names(table: Table) -> str:
    """Return all columns of a table."""
    return ", ".join(column.name for column in table.columns)


def lines(table: Table, path: Path) -> str:
    """Return the rows of a file of lines that ``folderfiles.Lines`` has checked."""
    columns = ", ".join(f"{one.name}: '{type_of(one)}'" for one in table.columns)
    return (
        f"read_json({_text(str(path))}, format = 'newline_delimited', columns = {{{columns}}},"
        f" maximum_object_size = {MAX_LINE + 1})"
    )


def files(paths: Iterable[Path], more: str = "") -> str:
    """Return the rows of Parquet files."""
    return f"read_parquet([{', '.join(_text(str(path)) for path in paths)}]{more})"


def copied(rows: str, path: Path, *, order: str = "") -> str:
    """Return what stores rows in a Parquet file."""
    by = f" ORDER BY {order}" if order else ""
    return (
        f"COPY ({rows}{by}) TO {_text(str(path))}"
        f" (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_GROUP})"
    )


def schema(path: Path) -> str:
    """Return what shows the schema of a Parquet file."""
    return (
        "SELECT name, type, type_length, repetition_type, num_children, converted_type,"
        f" logical_type FROM parquet_schema({_text(str(path))})"
    )


def counted(path: Path) -> str:
    """Return what counts the rows of a Parquet file."""
    return f"SELECT count(*) FROM {files([path])}"


def everything(path: Path) -> str:
    """Return what reads all of a Parquet file, and returns little."""
    return f"SELECT max(hash(t)) FROM {files([path])} AS t"


def typed(table: Table, found: Sequence[str]) -> str:
    """Return all columns of a table for SELECT, where a file has those of ``found``."""
    made = []
    for column in table.columns:
        if column.name in found:
            made.append(f"CAST({column.name} AS {type_of(column)}) AS {column.name}")
        else:
            made.append(f"{_missing(table, column, found)} AS {column.name}")
    return ", ".join(made)


def _missing(table: Table, column: Column, found: Sequence[str]) -> str:
    zero = "NULL" if column.nullable else _ZERO[column.type]
    if not column.array:
        return f"CAST({zero} AS {type_of(column)})"
    prefix = column.name.partition("_")[0] + "_"
    parts = {part.prefix + "_" for part in PARTS.values()} if table.name == "incidents" else set()
    others = [one.name for one in table.columns if one.name.startswith(prefix)]
    known = [one for one in others if one in found]
    if prefix not in parts or not known:
        return f"CAST([] AS {type_of(column)})"
    return f"CAST(list_transform({known[0]}, lambda x: {zero}) AS {type_of(column)})"


def winners(table: Table, paths: Sequence[Path]) -> str:
    """Return the rows of the highest revision of each key in Parquet files of this version.

    What is sorted out has only the key and the revision, whatever a row has.
    """
    key = ", ".join(table.key)
    source = files(paths, ", filename = 'a_file', file_row_number = true")
    best = (
        f"SELECT a_file, file_row_number FROM {source}"
        f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY rev DESC) = 1"
    )
    return f"SELECT {names(table)} FROM {source} SEMI JOIN ({best}) USING (a_file, file_row_number)"


def anti_join(table: Table, left: str, right: str, *, newer: bool = False) -> str:
    """Return the rows of one relation whose key is not in the other; ``newer``: not there with the
    same or a higher revision."""
    on = " AND ".join(f"a.{one} = b.{one}" for one in table.key)
    if newer:
        on += " AND b.rev >= a.rev"
    columns = ", ".join(f"a.{column.name}" for column in table.columns)
    return f"SELECT {columns} FROM {left} AS a ANTI JOIN {right} AS b ON {on}"


def selected(table: Table, source: str) -> str:
    """Return all columns of a relation that has them."""
    return f"SELECT {names(table)} FROM {source}"


def part_view(name: str) -> str:
    """Return the parts of incidents as a table, for people."""
    part = PARTS[name]
    columns = [
        *OF_INCIDENT,
        *(f"unnest({part.prefix}_{one.name}) AS {one.name}" for one in part.columns),
    ]
    return f"SELECT {', '.join(columns)} FROM incidents"
