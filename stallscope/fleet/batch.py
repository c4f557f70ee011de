# SPDX-License-Identifier: Apache-2.0
"""Batches: rows on their way to engines, and their files in a spool.

A file has one line of JSON for each row after a first line with the schema, packed as one zstd
frame with a checksum. What reads it sets limits: another version, or nobody of us, may have written
it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.fleet.tables import SCHEMA, TABLES, VERSION, Row, encode
from stallscope.store.appended import frames, pack

__all__ = ["MAX_PACKED", "MAX_PLAIN", "Batch", "dumps", "loads", "make"]

MAX_PACKED = 16 << 20
MAX_PLAIN = 128 << 20


class Batch(msgspec.Struct, frozen=True):
    """Rows by table: each a line of JSON with all columns, without a newline."""

    lines: dict[str, tuple[bytes, ...]]

    @property
    def rows(self) -> int:
        """Return how many rows it has."""
        return sum(map(len, self.lines.values()))

    def body(self, table: str) -> bytes:
        """Return the rows of a table as lines, each with its newline."""
        return b"".join(line + b"\n" for line in self.lines.get(table, ()))

    @property
    def id(self) -> str:
        """Return a name made of its content: the same rows have the same."""
        found = hashlib.sha256()
        for table in sorted(self.lines):
            found.update(table.encode() + b"\n" + self.body(table))
        return found.hexdigest()[:24]


class _Head(msgspec.Struct, frozen=True):
    schema: str
    version: int = VERSION


class _Line(msgspec.Struct, frozen=True):
    table: str
    row: msgspec.Raw


_head = msgspec.json.Decoder(_Head)
_line = msgspec.json.Decoder(_Line)


def make(rows: Iterable[Row]) -> Batch:
    """Return the batch of these rows."""
    tables = {table.row: table.name for table in TABLES.values()}
    found: dict[str, list[bytes]] = defaultdict(list)
    for row in rows:
        found[tables[type(row)]].append(encode(row))
    return Batch({name: tuple(lines) for name, lines in found.items()})


def dumps(batch: Batch) -> bytes:
    """Return the content of its file."""
    lines = [msgspec.json.encode(_Head(SCHEMA))]
    for table, rows in batch.lines.items():
        lines += (b'{"table":"%b","row":%b}' % (table.encode(), row) for row in rows)
    return pack(b"\n".join(lines) + b"\n")


def loads(data: bytes) -> Batch:
    """Read a file's content. Raises: StallscopeError, with why it cannot be used."""
    if len(data) > MAX_PACKED:
        raise StallscopeError(f"larger than {MAX_PACKED >> 20} MiB, which no batch is")
    plain, torn = frames(data, MAX_PLAIN)
    if torn is not None:
        raise StallscopeError(torn)
    first, *lines = plain.splitlines() or [b""]
    found: dict[str, list[bytes]] = defaultdict(list)
    try:
        head = _head.decode(first)
        if head.schema != SCHEMA:
            raise StallscopeError(f"no {SCHEMA}")
        for line in lines:
            one = _line.decode(line)
            if one.table in TABLES:  # another is of a later version
                found[one.table].append(bytes(one.row))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StallscopeError(f"damaged: {error}") from None
    return Batch({name: tuple(rows) for name, rows in found.items()})
