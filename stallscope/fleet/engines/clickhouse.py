# SPDX-License-Identifier: Apache-2.0
"""ClickHouse as a destination of batches, and as an engine that answers SQL. docs/fleet.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.sending import SendError
from stallscope.base.text import one_line
from stallscope.fleet.address import Address
from stallscope.fleet.batch import Batch
from stallscope.fleet.destination import EngineError
from stallscope.fleet.dialect import Dialect
from stallscope.fleet.engines import clickhouseschema
from stallscope.fleet.engines.clickhouseclient import Client, Failure
from stallscope.fleet.engines.clickhouseddl import BUFFER, Layout
from stallscope.fleet.engines.clickhousedialect import ClickHouseDialect
from stallscope.fleet.tables import AGENTS, STACKS, TABLES

__all__ = ["ClickHouse", "ClickHouseDestination"]

_MOST_DAYS = 90
"""Of an insert: the server takes 100 partitions."""
_SEND_SECONDS = 60.0
_ASK_SECONDS = 60
_ASYNC_SINCE = (21, 11)
_ALL_SINCE = (19, 14)
"""Joins are ALL joins by default."""
_LATER_SECONDS = {252: 30.0, 241: 15.0, 202: 5.0, 201: 60.0, 243: 30.0}
"""For which it is to be left alone, by code."""
_NEVER = frozenset(
    {6, 25, 26, 27, 38, 41, 53, 69, 70, 72, 117, 128, 130, 131, 190, 321, 349, 441, 467}
)
"""Codes of rows that cannot be read, or are of another type."""
_ALTERED = _NEVER | {10, 16, 47, 60}
"""Codes after which tables are read again: somebody may have altered them."""
_ENDS_EARLY = 33
"""Of rows, or of a connection between servers."""
_TOO_LARGE = 413
_HINTS = {
    60: "run stallscope fleet init",
    81: "run stallscope fleet init",
    16: "run stallscope fleet init",
    164: "the account needs to write (for questions: readonly=2 instead of 1)",
    192: "check user and password",
    193: "check user and password",
    194: "the account has a password: set it",
    516: "check user and password",
    497: "grant it: docs/fleet-clickhouse.md",
    291: "grant it: docs/fleet-clickhouse.md",
    225: "is ZooKeeper there?",
    242: "is ZooKeeper there?",
    243: "the disk of a server is full",
    252: "it has more parts than it can merge: fewer, larger inserts",
    159: "it takes longer than allowed: ask for less time",
    160: "it would take longer than allowed: ask for less time",
    241: "ask for less time, or give the server more memory",
    181: "the table was altered: run stallscope fleet init",
}
_DISK = re.compile(r"[Nn]o(?:t enough| space left)")


class _Day(msgspec.Struct):
    day: str = ""


_day = msgspec.json.Decoder(_Day)


class ClickHouseDestination:
    """destination.Destination."""

    def __init__(self, address: Address, *, ca_file: str = "") -> None:
        self._client = Client(address, ca_file=ca_file)
        self._looked = False
        self._columns: dict[str, tuple[str, ...]] = {}
        self._lacking: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Return the address without user and password."""
        return self._client.address.shown

    @property
    def skew_ms(self) -> float | None:
        """Return how far the clock of the node that answered last is ahead, to half a second."""
        return self._client.skew_ms

    @property
    def notes(self) -> Sequence[str]:
        """Return which columns the tables lack."""
        return self._lacking

    def send(self, batch: Batch) -> None:
        """Store all rows before this returns. Raises: SendError."""
        try:
            # While something is missing, it may be repaired at any moment.
            if not self._looked or self._lacking:
                self._look()
            try:
                self._insert_all(batch)
            except Failure as error:
                if error.code not in _ALTERED:
                    raise
                self._look()
                self._insert_all(batch)
        except Failure as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _insert_all(self, batch: Batch) -> None:
        # What an incident refers to is there before it.
        for name in sorted(batch.lines, key=lambda one: one != STACKS.name):
            for lines in _inserts(name, batch.lines[name]):
                self._insert(name, lines)

    def _insert(self, name: str, lines: Sequence[bytes]) -> None:
        settings = {"input_format_skip_unknown_fields": 1, "insert_distributed_sync": 1}
        if self._client.version >= _ASYNC_SINCE:
            settings |= {"async_insert": 1, "wait_for_async_insert": 1}
        table = BUFFER if name == AGENTS.name else name
        # Columns that are not named have their default; others that are left out have none in old
        # versions.
        named = self._columns.get(name)
        columns = f" ({', '.join(named)})" if named else ""
        self._client.execute(
            f"INSERT INTO {table}{columns} FORMAT JSONEachRow",
            b"\n".join(lines) + b"\n",
            settings=settings,
            seconds=_SEND_SECONDS,
            packed=True,
        )

    def _look(self) -> None:
        self._looked = True
        try:
            found = clickhouseschema.look(self._client)
        except Failure as error:
            self._looked = error.code == clickhouseschema.FORBIDDEN
            if not self._looked:
                raise
            return
        self._columns = {
            table.name: clickhouseschema.known(found, table) for table in TABLES.values()
        }
        self._lacking = tuple(
            f"table {table.name} of {self.shown} lacks {', '.join(missing)}: not stored; run"
            " stallscope fleet init"
            for table in TABLES.values()
            if (missing := clickhouseschema.lacking(found, table))
        )

    def _refused(self, error: Failure) -> SendError:
        never = (
            error.code in _NEVER
            or (error.code == _ENDS_EARLY and "parsing" in str(error))
            or (not error.code and error.status == _TOO_LARGE)
        )
        why = _explained(error)
        if never:
            altered = self._altered()
            if altered:
                return SendError(altered, after=60.0)
        after = error.after or _LATER_SECONDS.get(error.code, 0.0)
        return SendError(why, refused=never, unreachable=not error.status, after=after)

    def _altered(self) -> str:
        """Return how somebody altered the tables; empty: nobody did."""
        try:
            return "; ".join(_wrong(self._client)[:1])
        except Failure:
            return ""


def _inserts(name: str, lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield rows that can be inserted at once."""
    if name == STACKS.name:
        yield lines
        return
    by_day: dict[str, list[bytes]] = defaultdict(list)
    for line in lines:
        try:
            day = _day.decode(line).day
        except (msgspec.MsgspecError, RecursionError):
            day = ""  # the server says what is wrong
        by_day[day].append(line)
    days = sorted(by_day)
    for at in range(0, len(days), _MOST_DAYS):
        yield [line for day in days[at : at + _MOST_DAYS] for line in by_day[day]]


class ClickHouse:
    """destination.Engine."""

    def __init__(self, address: Address, *, ca_file: str = "") -> None:
        self._client = Client(address, ca_file=ca_file)
        self._dialect = ClickHouseDialect()
        self._bare = False
        """The account may set nothing."""
        self._notes: tuple[str, ...] | None = None

    @property
    def shown(self) -> str:
        """Return the address without user and password."""
        return self._client.address.shown

    @property
    def dialect(self) -> Dialect:
        """Return ClickHouse's SQL."""
        return self._dialect

    @property
    def notes(self) -> Sequence[str]:
        """Return what is wrong with the tables."""
        if self._notes is None:
            try:
                self._notes = _wrong(self._client)
            except Failure as error:
                return (str(error),)
        return self._notes

    def restrict(self, since_ms: int, until_ms: int) -> None:
        """Do nothing: conditions on ``day`` say which partitions are read."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query by column. Raises: EngineError."""
        try:
            return _rows(self._asked(sql + "\nFORMAT JSONCompact"), self.shown)
        except Failure as error:
            why = _explained(error)
            altered = "; ".join(one for one in self.notes if one not in why)[:300]
            raise EngineError(f"{why}; {altered}" if altered and error.status else why) from None

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _asked(self, sql: str) -> bytes:
        if not self._bare:
            settings = {
                "readonly": 2,
                "max_execution_time": _ASK_SECONDS,
                "output_format_json_quote_64bit_integers": 0,
            }
            if self._client.version < _ALL_SINCE:
                settings |= {"join_default_strictness": "ALL"}  # type: ignore[dict-item]
            try:
                return self._client.execute(sql, settings=settings, seconds=_ASK_SECONDS + 10)
            except Failure as error:
                # The other reason for it is a statement that would change something.
                if error.code != 164 or "setting" not in str(error):
                    raise
                self._bare = True
        return self._client.execute(sql, seconds=_ASK_SECONDS + 10)


class _Meta(msgspec.Struct):
    name: str
    type: str


class _Answer(msgspec.Struct):
    meta: list[_Meta]
    data: list[list[Any]]


_answer = msgspec.json.Decoder(_Answer)


def _rows(answer: bytes, shown: str) -> list[dict[str, Any]]:
    try:
        found = _answer.decode(answer.decode("utf-8", "replace"))
        names = [one.name for one in found.meta]
        whole = [at for at, one in enumerate(found.meta) if "Int64" in one.type]
        for row in found.data:
            for at in whole:
                row[at] = _number(row[at])
        return [dict(zip(names, row, strict=True)) for row in found.data]
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
        raise EngineError(f"{shown}: its answer is damaged") from None


def _number(value: Any) -> Any:
    """Return 64-bit integers, which are quoted where an account may set nothing, as numbers."""
    if isinstance(value, list):
        return [_number(one) for one in value]
    return int(value) if isinstance(value, str) and len(value) < 21 else value


def _wrong(client: Client) -> tuple[str, ...]:
    found = clickhouseschema.look(client)
    layout = Layout(client.address.database, client.version, found.cluster)
    lines = [
        f"table {table.name} lacks {', '.join(missing)}: run stallscope fleet init"
        for table in TABLES.values()
        if (missing := clickhouseschema.lacking(found, table))
    ]
    too_new = clickhouseschema.newer(found)
    return (*clickhouseschema.wrong(found, layout), *lines, *((too_new,) if too_new else ()))


def _explained(error: Failure) -> str:
    hint = _HINTS.get(error.code)
    if _DISK.search(str(error)):
        hint = _HINTS[243]
    # What to do is not cut off, however long the reason is.
    return f"{one_line(str(error), 290 - len(hint))}: {hint}" if hint else str(error)
