# SPDX-License-Identifier: Apache-2.0
"""A folder of batches as engine: DuckDB reads it. docs/fleet-folder.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stallscope.fleet.dialect import Dialect
from stallscope.fleet.engines.duckdbdialect import DuckDBDialect
from stallscope.fleet.engines.duckdbreader import DuckDBReader
from stallscope.fleet.tables import PARTS, TABLES, day_of

__all__ = ["DuckDBEngine"]

_MOST_NOTES = 20
_WORD = re.compile(r"\w+")
_ALL = ("", "9")


class DuckDBEngine:
    """destination.Engine of a folder. A table's files are read when a query first names it."""

    def __init__(self, folder: Path) -> None:
        """Raises: EngineError where there is no such folder."""
        self.shown = f"file://{folder}"
        self._reader = DuckDBReader(folder)
        self._days = _ALL

    @property
    def dialect(self) -> Dialect:
        """Return DuckDB's."""
        return DuckDBDialect()

    @property
    def notes(self) -> Sequence[str]:
        """Return which of the files that were read are left out, and why."""
        found = self._reader.notes
        more = len(found) - _MOST_NOTES
        return [*found[:_MOST_NOTES], f"{more} more files are left out"] if more > 0 else found

    def restrict(self, since_ms: int, until_ms: int) -> None:
        """Read only the days from one time to another. An incident belongs to the day on which it
        began."""
        days = day_of(since_ms), day_of(until_ms)
        if days != self._days:
            self._days = days
            self._reader.forget()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query. Raises: EngineError."""
        return self._reader.attempt(lambda: self._answer(sql))

    def close(self) -> None:
        """Remove all that was made."""
        self._reader.close()

    def _answer(self, sql: str) -> list[dict[str, Any]]:
        words = set(_WORD.findall(sql))
        for name, table in TABLES.items():
            if name in words or (name == "incidents" and words & set(PARTS)):
                # A stack is needed whenever it was shipped.
                self._reader.load(table, *(_ALL if name == "stacks" else self._days))
        answer = self._reader.connection.execute(sql)
        names = [column[0] for column in answer.description or ()]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
