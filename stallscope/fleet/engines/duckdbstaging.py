# SPDX-License-Identifier: Apache-2.0
"""From files in a folder to Parquet files that DuckDB may read: lines are checked and converted in
a private folder, Parquet files are checked and linked there.

DuckDB sees names that are made here only, so that nothing in a name of a file is SQL or a pattern.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.fleet.engines import duckdbsql, folderfiles
from stallscope.fleet.engines.duckdbdialect import DuckDBDialect
from stallscope.fleet.engines.folderfiles import Entry
from stallscope.fleet.tables import Table

__all__ = ["Changed", "Staged", "Staging", "connect"]

_CHUNK = 64 << 20
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "2GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "preserve_insertion_order": False,
}
_MOST_THREADS = 8
_LATER = "it has columns of a later version"
_text = DuckDBDialect().text


class Changed(Exception):
    """A file was removed after the folder was read: a compaction has put its rows elsewhere."""


def connect(private: Path, folder: Path) -> duckdb.DuckDBPyConnection:
    """Return DuckDB, which reads and writes the private folder, and reads ``folder`` (a real path)
    through links in the private one; it loads no extension and has no network."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    connection = duckdb.connect(
        config={**_SETTINGS, "threads": threads, "temp_directory": str(private)}
    )
    allowed = ", ".join(_text(str(path)) for path in (private.resolve(), private, folder))
    for setting in (
        f"allowed_directories = [{allowed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


class Staged(msgspec.Struct):
    """Files that DuckDB may read, and what was left out.

    ``whole``: files with each key once, and their columns. ``loose``: files that may repeat keys.
    ``linked``: the links among them, and what they lead to. ``read``: all files of the folder whose
    rows are here.
    """

    whole: dict[Path, tuple[str, ...]] = {}
    loose: list[Path] = []
    linked: dict[Path, Path] = {}
    read: list[Path] = []
    notes: list[str] = []

    def relations(self, table: Table) -> Iterator[tuple[str, str]]:
        """Yield sources of ``whole``, and the columns to select from each."""
        same: dict[tuple[str, ...], list[Path]] = defaultdict(list)
        for path, columns in self.whole.items():
            same[columns].append(path)
        for columns, paths in same.items():
            yield duckdbsql.files(paths), duckdbsql.typed(table, columns)


class Staging:
    """Reads the files of one table. ``damaged``: files of which it is known, and why. ``strict``:
    leave out files with columns that are not known."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: Table,
        private: Path,
        folder: Path,
        damaged: Mapping[Path, str],
        strict: bool,
    ) -> None:
        self._connection = connection
        self._table = table
        self._private = private
        self._folder = folder
        self._damaged = damaged
        self._strict = strict
        self._lines = folderfiles.Lines(table, strict=strict)
        self._schemas: dict[object, tuple[str, ...]] = {}
        self._made = 0
        self._staged = Staged()

    def read(self, since: str, until: str) -> Staged:
        """Return the files of these days. Raises: Changed, OSError, duckdb.Error."""
        loose: list[Entry] = []
        try:
            for day in folderfiles.days(self._folder / self._table.name, since, until):
                for path, why in day.strange:
                    self._leave_out(path, why)
                loose += (one for one in day.entries if not one.is_parquet)
                self._add_packed([one for one in day.entries if one.is_parquet])
            self._add_lines(loose)
        except FileNotFoundError:
            raise Changed from None
        return self._staged

    def _add_packed(self, entries: Sequence[Entry]) -> None:
        """Link Parquet files of one day. Of several, which interrupted or simultaneous compactions
        leave, the largest is trusted to have each key once; no stack belongs to one day."""
        found: list[tuple[int, Path, tuple[str, ...]]] = []
        for entry in entries:
            try:
                if entry.path in self._damaged:
                    raise StallscopeError(self._damaged[entry.path])
                size, link = self._link(entry)
                found.append((size, link, self._columns(link)))
            except StallscopeError as error:
                self._leave_out(entry.path, str(error))
                continue
            except duckdb.Error as error:
                self._leave_out_if_there(entry.path, f"no Parquet file that is known: {error}")
                continue
            self._staged.linked[link] = entry.path
        found.sort(key=lambda one: -one[0])
        for number, (_, link, columns) in enumerate(found):
            path = self._staged.linked[link]
            if number == 0 and self._table.name != "stacks":
                self._staged.whole[link] = columns
            else:
                try:
                    self._staged.loose.append(self._converted(link, columns))
                except duckdb.Error as error:
                    self._leave_out_if_there(path, f"damaged: {error}")
                    continue
            self._staged.read.append(path)

    def _link(self, entry: Entry) -> tuple[int, Path]:
        descriptor, size = folderfiles.open_file(entry.path, folderfiles.MAX_PARQUET)
        try:
            folderfiles.check_parquet(descriptor, size)
        finally:
            os.close(descriptor)
        link = self._new("packed")
        # Whatever takes its place: DuckDB follows no link that leads out of the folder.
        link.symlink_to(entry.path)
        return size, link

    def _columns(self, link: Path) -> tuple[str, ...]:
        """Return the columns of a file that can be used. Raises: StallscopeError, duckdb.Error."""
        schema = tuple(self._connection.execute(duckdbsql.schema(link)).fetchall())
        if schema not in self._schemas:
            self._schemas[schema] = self._usable(link)
        return self._schemas[schema]

    def _usable(self, link: Path) -> tuple[str, ...]:
        rows = self._connection.execute(
            f"DESCRIBE SELECT * FROM {duckdbsql.files([link])}"
        ).fetchall()
        types = {row[0]: row[1] for row in rows}
        for column in self._table.columns:
            if types.get(column.name, "") not in ("", duckdbsql.type_of(column)):
                raise StallscopeError(f"its column {column.name} is of another type")
        found = tuple(one.name for one in self._table.columns if one.name in types)
        missing = {*self._table.key, "rev", "day"} - set(found)
        if missing:
            raise StallscopeError(f"it has no column {min(missing)}")
        if self._strict and len(found) < len(rows):
            raise StallscopeError(_LATER)
        return found

    def _converted(self, link: Path, columns: tuple[str, ...]) -> Path:
        if len(columns) == len(self._table.columns):
            return link
        out = self._new("part")
        rows = f"SELECT {duckdbsql.typed(self._table, columns)} FROM {duckdbsql.files([link])}"
        self._connection.execute(duckdbsql.copied(rows, out))
        return out

    def _add_lines(self, entries: Sequence[Entry]) -> None:
        chunk: list[bytes] = []
        size = 0
        for entry in entries:
            try:
                plain = folderfiles.lines_of(entry, self._lines)
            except StallscopeError as error:
                self._leave_out(entry.path, str(error))
                continue
            self._staged.read.append(entry.path)
            chunk.append(plain)
            size += len(plain)
            if size >= _CHUNK:
                self._pack(chunk)
                chunk, size = [], 0
        if size:
            self._pack(chunk)

    def _pack(self, chunk: list[bytes]) -> None:
        lines, out = self._private / f"{self._table.name}.lines", self._new("part")
        with lines.open("wb") as file:
            file.writelines(chunk)
        rows = duckdbsql.selected(self._table, duckdbsql.lines(self._table, lines))
        self._connection.execute(duckdbsql.copied(rows, out))
        lines.unlink()
        self._staged.loose.append(out)

    def _new(self, kind: str) -> Path:
        self._made += 1
        return self._private / f"{self._table.name}-{kind}-{self._made}.parquet"

    def _leave_out_if_there(self, path: Path, why: str) -> None:
        if not path.exists():
            raise FileNotFoundError
        self._leave_out(path, why)

    def _leave_out(self, path: Path, why: str) -> None:
        name = os.path.relpath(path, self._folder)
        self._staged.notes.append(f"{one_line(name, 160)} is left out: {one_line(why, 160)}")
