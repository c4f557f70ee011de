# SPDX-License-Identifier: Apache-2.0
"""A table as CSV (RFC 4180) in which a spreadsheet executes no formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallscope.reporters.export.tables import Cell, Table

__all__ = ["render"]

# First characters of formulas in spreadsheets; some accept the wide forms too.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001


def render(table: Table, rows: Iterable[tuple[Cell, ...]]) -> Iterator[bytes]:
    """Return the table: a head, then one line for each row. Text is quoted, unknown values are
    empty.

    Text that a spreadsheet would take for a formula begins with ``'``. Numbers stay numbers.
    """
    yield _line(tuple(table.columns))
    for row in rows:
        yield _line(row)


def _line(row: tuple[Cell, ...]) -> bytes:
    return (",".join(map(_cell, row)) + "\r\n").encode()


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    text = f"'{value}" if value.lstrip().startswith(_FORMULA) else value
    return '"' + text.replace('"', '""') + '"'
