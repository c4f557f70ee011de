# SPDX-License-Identifier: Apache-2.0
"""Views of a folder's tables in DuckDB, with the rows that count: for questions and compaction."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import duckdb

from stallscope.base.text import one_line
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import duckdbsql
from stallscope.fleet.engines.duckdbstaging import Changed, Staged, Staging, connect
from stallscope.fleet.tables import PARTS, Table

__all__ = ["DuckDBReader"]

_TRIES = 5
_NO_FAULT_OF_FILES = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
_T = TypeVar("_T")


class DuckDBReader:
    """A folder in DuckDB. What is made of it lies in a private folder until ``close``.

    ``strict``: leave out files with columns of a later version, too, as they would be lost.
    """

    def __init__(self, folder: Path, *, strict: bool = False) -> None:
        """Raises: EngineError where there is no such folder."""
        self.folder = Path(os.path.realpath(folder))
        if not self.folder.is_dir():
            raise EngineError(f"there is no folder {folder}: mount it, or name another one")
        if "\\" in str(self.folder):
            raise EngineError(f"DuckDB cannot read {folder}: its path has a \\; name another one")
        self._strict = strict
        self._temporary = tempfile.TemporaryDirectory(prefix="stallscope-fleet-")
        self.private = Path(self._temporary.name)
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._staged: dict[str, Staged] = {}
        self._damaged: dict[Path, str] = {}

    @property
    def notes(self) -> list[str]:
        """Return which files are left out, and why."""
        return [note for staged in self._staged.values() for note in staged.notes]

    def load(self, table: Table, since: str, until: str) -> Staged:
        """Make the view of a table, of these days, where it is not there.

        Call it within ``attempt``.
        """
        staged = self._staged.get(table.name)
        if staged is None:
            staging = Staging(
                self.connection, table, self.private, self.folder, self._damaged, self._strict
            )
            staged = self._staged[table.name] = staging.read(since, until)
            self._view(table, staged)
        return staged

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return the connection to DuckDB."""
        if self._connection is None:
            self._connection = connect(self.private, self.folder)
        return self._connection

    def attempt(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns. Do it again where files were removed meanwhile, and without
        files that turn out to be damaged.

        Raises: EngineError.
        """
        changed = 0
        while True:
            try:
                return work()
            except Changed:
                changed += 1
            except _NO_FAULT_OF_FILES as error:
                raise self._refused(error) from None
            except duckdb.Error as error:
                if self._is_changed():
                    changed += 1
                elif not self._find_damaged():
                    raise self._refused(error) from None
            except OSError as error:
                where = error.filename or self.private
                raise EngineError(f"cannot use {where}: {error.strerror or error}") from None
            self.forget()
            if changed >= _TRIES:
                raise EngineError(f"files of {self.folder} go all the time: ask again")

    def forget(self) -> None:
        """Read all files again when they are needed next."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._staged.clear()
        for path in self.private.iterdir():
            if path.is_file() or path.is_symlink():
                path.unlink()

    def close(self) -> None:
        """Remove what was made; a second call does nothing."""
        if self.private.is_dir():
            self.forget()
        self._temporary.cleanup()

    def _view(self, table: Table, staged: Staged) -> None:
        """Of ``staged.whole`` no key is there twice; ``staged.loose`` repeats keys, of both."""
        name, whole = table.name, f"whole_{table.name}"
        sources = []
        if staged.whole:
            rows = [f"SELECT {columns} FROM {of}" for of, columns in staged.relations(table)]
            self._create(whole, " UNION ALL ".join(rows))
            sources.append(duckdbsql.selected(table, whole))
        if staged.loose:
            loose = self._stored(f"once_{name}", duckdbsql.winners(table, staged.loose))
            if staged.whole:
                newer = duckdbsql.anti_join(table, loose, whole, newer=True)
                loose = self._stored(f"newer_{name}", newer)
                if self._is_empty(loose):
                    loose = ""
                else:
                    sources = [duckdbsql.anti_join(table, whole, loose)]
            if loose:
                sources.append(duckdbsql.selected(table, loose))
        if not sources:
            sources.append(f"SELECT {duckdbsql.typed(table, ())} WHERE false")
        self._create(name, " UNION ALL ".join(sources))
        if name == "incidents":
            for part in PARTS:
                self._create(part, duckdbsql.part_view(part))

    def _create(self, name: str, rows: str) -> None:
        self.connection.execute(f"CREATE OR REPLACE VIEW {name} AS {rows}")

    def _stored(self, name: str, rows: str) -> str:
        """Return a relation of rows that are worked out once."""
        path = self.private / f"{name}.parquet"
        self.connection.execute(duckdbsql.copied(rows, path))
        return duckdbsql.files([path])

    def _is_empty(self, relation: str) -> bool:
        return self.connection.execute(f"SELECT 1 FROM {relation} LIMIT 1").fetchone() is None

    def _is_changed(self) -> bool:
        return any(
            not path.exists() for staged in self._staged.values() for path in staged.linked.values()
        )

    def _find_damaged(self) -> bool:
        """Read each Parquet file alone, to the end; return whether one was found that cannot be
        read."""
        found = {}
        for staged in self._staged.values():
            for link, path in staged.linked.items():
                try:
                    self.connection.execute(duckdbsql.everything(link)).fetchall()
                except duckdb.Error as error:
                    if path.exists():
                        found[path] = f"damaged: {error}"
        self._damaged |= found
        return bool(found)

    def _refused(self, error: duckdb.Error) -> EngineError:
        return EngineError(f"DuckDB cannot read {self.folder}: {one_line(str(error), 300)}")
