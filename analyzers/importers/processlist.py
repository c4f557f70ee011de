# SPDX-License-Identifier: Apache-2.0
"""``SHOW PROCESSLIST`` and ``INFORMATION_SCHEMA.PROCESSLIST``: tables, ``\\G``, tabs (``-B``).

Each connection becomes a thread without frames: ``connection`` is its Id, ``command``, ``activity``
(State), ``query`` (Info), ``waited_ns`` (Time) and ``name`` (User) as the server printed them; its
``tid`` where MariaDB gives one.
"""

from __future__ import annotations

import re
from collections.abc import Container

from stallscope.analyzers.importers.dump import MAX_LINE, LineReader, line_format, number

__all__ = ["FORMAT"]

MAX_QUERY = 16_384
_MAX_CELLS = 64

_ROW = re.compile(r"\s{0,8}\*{10,} (\d{1,9})\. row \*{10,}\s*$")
_FIELD = re.compile(r"\s{0,24}([A-Za-z_]{2,24}): ?(.*)$")
_RULE = re.compile(r"\+(?:-+\+)+\s*$")
_STAMP = re.compile(r"TS \d+\.\d+ ")
_SNIFF = re.compile(
    r"^(?:\|\s*id\s*\|.*\b(?:command\s*\||state\s*\|\s*info\s*\|)|id\tuser\t.*\tcommand\t"
    r"|\s{0,24}command: )",
    re.M | re.I,
)
_KNOWN = re.compile(
    r"id|user|host|db|command|time|state|info|time_ms|stage|max_stage|progress|memory_used"
    r"|max_memory_used|examined_rows|query_id|info_binary|tid|rows_sent|rows_examined"
    r"|execution_engine|sent_rows"
)


def _is_processlist(columns: Container[str]) -> bool:
    """Return whether a table with these columns lists what sessions do; some leave columns out."""
    return "command" in columns or ("state" in columns and "info" in columns)


class _Reader(LineReader):
    backend = "processlist"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.columns: list[str] = []
        self.tabs = False
        self.row: dict[str, str] | None = None
        self.key = ""
        self.broken = ""
        self.seen: set[str] = set()

    def line(self, line: str) -> bool:
        if match := _ROW.match(line):
            self.end_row()
            if match.group(1) == "1":
                self.end()
            self.row, self.key = {}, ""
            return True
        if _STAMP.match(line):
            self.end()
            return True
        if self.row is not None and self.field(line):
            return True
        if _RULE.match(line):
            return bool(self.columns)
        cells = [cell.strip().lower() for cell in line.strip("| ").split("|")]
        if line[:1] == "|" and cells[0] == "id" and _is_processlist(cells):
            self.end()
            self.columns, self.tabs = cells[:_MAX_CELLS], False
            return True
        if line[:3].lower() == "id\t" and "\tcommand\t" in line.lower():
            self.end()
            self.columns, self.tabs = line.lower().rstrip().split("\t")[:_MAX_CELLS], True
            return True
        if self.columns:
            return self.table_row(line)
        return False

    def field(self, line: str) -> bool:
        """Take a line of ``\\G``: a field, or more of a query that has several lines."""
        row = self.row
        assert row is not None
        match = _FIELD.match(line)
        if match and _KNOWN.fullmatch(match.group(1).lower()):
            self.key = match.group(1).lower()
            row[self.key] = match.group(2)
            return True
        if self.key in ("info", "info_binary") and line.strip():
            if len(row[self.key]) < MAX_QUERY:
                row[self.key] += "\n" + line
            return True
        if not row:  # rows of another statement
            self.row = None
            return False
        self.end_row()
        return False

    def table_row(self, line: str) -> bool:
        if self.tabs:
            cells = line.split("\t")
            if len(cells) != len(self.columns):
                self.columns = []
                return False
            self.add(dict(zip(self.columns, cells, strict=True)))
            return True
        if not self.broken and line[:1] != "|":
            self.columns = []
            return False
        text = f"{self.broken}\n{line}" if self.broken else line
        if not line.rstrip().endswith("|") or text.count("|") <= len(self.columns):
            self.broken = text if len(text) < MAX_LINE else ""  # a query of several lines
            return True
        self.broken = ""
        self.add(self.cells(text))
        return True

    def cells(self, text: str) -> dict[str, str]:
        """Split a row; bars inside the query belong to it."""
        body = text.strip().removeprefix("|").removesuffix("|")
        at = self.columns.index("info") if "info" in self.columns else len(self.columns) - 1
        before = body.split("|", at)
        after = len(self.columns) - at - 1
        last = before[-1].rsplit("|", after) if after else [before[-1]]
        cells = [*before[:-1], *last]
        return dict(zip(self.columns, (cell.strip() for cell in cells), strict=False))

    def end_row(self) -> None:
        row, self.row = self.row, None
        if row:
            self.add(row)

    def add(self, row: dict[str, str]) -> None:
        identity = row.get("id", "").strip()
        if not identity.isdecimal() or not _is_processlist(row):
            return
        if identity in self.seen:
            self.end()
        self.seen.add(identity)

        def said(name: str) -> str | None:
            text = row.get(name, "").strip()
            return None if text in ("", "NULL") else text[:MAX_QUERY]

        time = row.get("time", "").strip()
        self.dump.thread(
            (),
            tid=number(said("tid")),
            name=(said("user") or "")[:64],
            connection=number(identity) or None,
            command=said("command"),
            activity=said("state"),
            query=said("info"),
            waited_ns=number(time) * 10**9 if time.isdecimal() else None,
        )

    def end(self) -> None:
        self.end_row()
        self.dump.comm = "mysqld"
        super().end()
        self.seen = set()
        self.columns = []
        self.broken = ""


def sniff(text: str) -> bool:
    """Return whether the head of a processlist is in the text."""
    return _SNIFF.search(text) is not None


FORMAT = line_format(sniff, _Reader)
