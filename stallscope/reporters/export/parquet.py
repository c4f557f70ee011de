# SPDX-License-Identifier: Apache-2.0
"""A table as Parquet, written by DuckDB from lines of JSON in a private folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import duckdb
import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.reporters.export.tables import Cell, Table

__all__ = ["render"]

_CHUNK = 1 << 20
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": "512MB",
    # No extension is downloaded, whatever the file contains.
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def render(table: Table, rows: Iterable[tuple[Cell, ...]]) -> Iterator[bytes]:
    """Return the table with its types, compressed by zstd. Times are UTC."""
    with tempfile.TemporaryDirectory(prefix="stallscope-export-") as name:
        folder = Path(name)
        lines, out = folder / "rows.json", folder / "rows.parquet"
        with lines.open("wb") as file:
            columns = tuple(table.columns)
            for row in rows:
                file.write(msgspec.json.encode(dict(zip(columns, row, strict=True))) + b"\n")
        try:
            _convert(lines, out, table, folder)
        except duckdb.Error as error:
            what = one_line(str(error))
            raise StallscopeError(f"DuckDB cannot write {table.name}: {what}") from None
        with out.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def _convert(lines: Path, out: Path, table: Table, folder: Path) -> None:
    columns = ", ".join(f'"{name}": {_text(kind)}' for name, kind in table.columns.items())
    with duckdb.connect(config={**_SETTINGS, "temp_directory": str(folder)}) as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_json({_text(str(lines))}, format = 'newline_delimited',"  # noqa: S608
            f" columns = {{{columns}}}))"
            f" TO {_text(str(out))} (FORMAT parquet, COMPRESSION zstd)"
        )


def _text(value: str) -> str:
    """Quote a string for SQL."""
    return "'" + value.replace("'", "''") + "'"
