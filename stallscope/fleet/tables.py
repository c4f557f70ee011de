# SPDX-License-Identifier: Apache-2.0
"""The tables of a fleet: each column is declared here once, for every engine. docs/fleet-schema.md.

A row has its parts inside: an incident is one row with its captures, findings, threads and samples
as arrays of equal length, ``captures_time_ms`` and so on. So an incident is there whole or not at
all, and a later revision of it replaces all of the one before. Views show the parts as tables.

Times are milliseconds since the epoch (``…_ms``) by the clock of the host; ``day`` is their day in
UTC. Of rows with the same key the one with the highest ``rev`` counts.
"""

from __future__ import annotations

import datetime
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = [
    "AGENTS",
    "INCIDENTS",
    "MAX_MS",
    "PARTS",
    "SCHEMA",
    "STACKS",
    "TABLES",
    "VERSION",
    "WAITS",
    "AgentRow",
    "CapturePart",
    "Column",
    "FindingPart",
    "IncidentRow",
    "Part",
    "Row",
    "SamplePart",
    "StackRow",
    "Table",
    "ThreadPart",
    "WaitRow",
    "day_of",
    "encode",
]

SCHEMA = "stallscope.fleet/1"
MAX_MS = 4_291_747_200_000
"""The last moment that all engines can store, in the year 2105; the first one is 0, in 1970."""
VERSION = 1
"""Of the tables: a migration raises it (fleet/engines/migrations.py)."""


class CapturePart(msgspec.Struct, frozen=True):
    """One capture of an incident."""

    time_ms: int
    reason: str
    """``trigger``, ``burst`` or ``manual``."""
    trigger_name: str
    detect_ms: float | None
    """From the breach of the threshold until the file was whole; None: nothing was breached."""
    partial: bool
    analyzed: bool
    signature: str
    """Of its own verdict; ``none`` and ``unknown`` as of incidents."""
    sessions: str
    """Why its threads have no connection; empty: they have."""


class FindingPart(msgspec.Struct, frozen=True):
    """One finding of all captures together, the verdict first."""

    signature: str
    title: str
    kind: str
    """``stall``, ``wait`` or ``hint``."""
    confidence: float
    threads: int
    share: float
    """Of the threads that have something to do: those that it holds up."""
    blocker: str
    """Name of the thread, and its outermost function of the server that is not generic."""
    statement: str
    """What the blocker runs, without literals."""
    lock_name: str
    lock_kind: str
    victim_of: str
    """The finding among whose waiters this one's blocker is; empty: none."""
    waited_s: float | None
    """Sum of how long its threads are known to have waited; None: nothing is known."""


class ThreadPart(msgspec.Struct, frozen=True):
    """Threads with one stack, in the capture that shows the stall best."""

    stack: str
    """Hash of the stack: the key of ``stacks``."""
    count: int
    state: str
    """``idle``, ``running``, ``waiting``, ``incomplete`` or ``unseen``."""
    role: str
    """``blocker``, ``waiter`` (of the verdict), ``other``."""


class SamplePart(msgspec.Struct, frozen=True):
    """One number of the server around an incident."""

    name: str
    before: float | None
    """Median of the minute before the breach; of a counter its rate a second."""
    most: float
    """The highest value (rate) while it lasted."""
    after: float | None
    """Median of the recovery."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What rows of all tables have."""

    day: str
    """``2026-11-29``: partitions and retention go by it."""
    rev: int
    """The revision: of rows with the same key the highest counts."""


class IncidentRow(Row, frozen=True, kw_only=True):
    """One incident, with all that is known of it now."""

    uid: str
    """Of host, boot and id: the same from agent and store, and however often it is shipped."""
    id: str
    host: str
    program: str
    server: str
    version: str
    pid: int
    start_ms: int
    end_ms: int | None
    """None: it goes on, or its agent was killed."""
    seconds: float | None
    is_open: bool
    interrupted: bool
    signature: str
    """``unknown``: a stall without a name; ``none``: no stall was found, or it is not known yet."""
    title: str
    confidence: float
    threads: int
    """Victims."""
    share: float
    blocker: str
    statement: str
    """What the blocker runs, normalized: without literals."""
    lock_name: str
    lock_kind: str
    ending: str
    remedy: str
    trigger_name: str
    """The first one that fired."""
    why: str
    triggers: tuple[str, ...]
    detect_ms: float | None
    """From the first breach until the first capture was whole."""
    captured: int
    partial: int
    lost: int
    """Captures that were wanted and not taken: suppressed and failed ones."""
    lost_why: tuple[str, ...]
    shape: str
    """Of a stall without a name: hash of ``shape_functions``; else empty."""
    shape_functions: tuple[str, ...]
    """What its waiters and its blocker have in their stacks: ``w:FUNCTION``, ``b:FUNCTION``."""
    agent_version: str
    captures: tuple[CapturePart, ...]
    findings: tuple[FindingPart, ...]
    stalled: tuple[ThreadPart, ...]
    """The view is called ``threads``, as a column has that name."""
    samples: tuple[SamplePart, ...]


class StackRow(Row, frozen=True, kw_only=True):
    """A stack, once for the whole fleet."""

    hash: str
    server: str
    frames: tuple[str, ...]
    """Innermost first."""


class WaitRow(Row, frozen=True, kw_only=True):
    """The waits of a server for one lock, or one class of files, in one minute."""

    host: str
    program: str
    pid: int
    minute_ms: int
    kind: str
    name: str
    count: int
    over: int
    """Longer than the threshold."""
    total_ms: float
    max_ms: float


class AgentRow(Row, frozen=True, kw_only=True):
    """An agent and its server, on one day."""

    host: str
    program: str
    pid: int
    """Of the server."""
    server: str
    version: str
    agent_version: str
    boot: str
    started_ms: int
    """When the agent began to watch this process."""
    seen_ms: int
    watched_s: float
    """Of this day."""
    every_s: float
    """From one heartbeat to the next."""
    state: str
    """``watching``, ``waiting`` (the server does not run), ``ended``: it ended as it should."""
    skew_ms: float | None
    """How far the engine's clock is ahead of the host's; None: not known."""
    waiting: int
    """Batches that are not shipped yet."""
    dropped: int
    """Rows that were dropped, since the spool was full, or the engine refused them."""
    why: str
    """Why they were not shipped; empty: all were."""
    captures_lost: int


class Column(msgspec.Struct, frozen=True):
    """A column: ``type`` is ``text``, ``int``, ``float``, ``bool`` or ``day``."""

    name: str
    type: str
    nullable: bool = False
    array: bool = False


class Part(msgspec.Struct, frozen=True):
    """A view of parts of incidents: table ``name``, columns ``{prefix}_{column}`` of incidents."""

    name: str
    prefix: str
    columns: tuple[Column, ...]


class Table(msgspec.Struct, frozen=True):
    """A table. ``key``: identifies a row, in the order of sorting; ``shard``: its rows with the
    same value are on the same shard; ``days``: how long they are kept by default."""

    name: str
    row: type[Row]
    key: tuple[str, ...]
    shard: str
    days: int
    columns: tuple[Column, ...]


_TYPES = {str: "text", int: "int", float: "float", bool: "bool"}


def _column(name: str, hint: Any, prefix: str = "", *, array: bool = False) -> Column:
    nullable = isinstance(hint, types.UnionType)
    if nullable:
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        hint, array = typing.get_args(hint)[0], True
    kind = "day" if name == "day" else _TYPES[hint]
    return Column(prefix + name, kind, nullable, array)


def _hints(row: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(row)
    for name in row.__struct_fields__:
        yield name, hints[name]


def _part(hint: Any) -> type[msgspec.Struct] | None:
    of = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
    return of if isinstance(of, type) and issubclass(of, msgspec.Struct) else None


def _columns(row: type[msgspec.Struct]) -> tuple[Column, ...]:
    found: list[Column] = []
    for name, hint in _hints(row):
        part = _part(hint)
        if part is None:
            found.append(_column(name, hint))
        else:
            found += (_column(n, h, f"{name}_", array=True) for n, h in _hints(part))
    return tuple(found)


def _table(name: str, row: type[Row], key: tuple[str, ...], shard: str, days: int) -> Table:
    return Table(name, row, key, shard, days, _columns(row))


INCIDENTS = _table("incidents", IncidentRow, ("start_ms", "uid"), "host", 400)
STACKS = _table("stacks", StackRow, ("hash",), "hash", 400)
WAITS = _table(
    "waits", WaitRow, ("host", "program", "pid", "minute_ms", "kind", "name"), "host", 30
)
AGENTS = _table("agents", AgentRow, ("day", "host", "program", "pid", "started_ms"), "host", 400)
TABLES = {table.name: table for table in (INCIDENTS, STACKS, WAITS, AGENTS)}

PARTS = {
    part: Part(part, prefix, tuple(_column(n, h) for n, h in _hints(of)))
    for part, prefix, of in (
        ("captures", "captures", CapturePart),
        ("findings", "findings", FindingPart),
        ("threads", "stalled", ThreadPart),
        ("samples", "samples", SamplePart),
    )
}
"""Each view also has ``uid``, ``host``, ``start_ms``, ``day`` of its incident."""


def day_of(time_ms: int) -> str:
    """Return the day of a time, in UTC, within what all engines can store."""
    moment = datetime.datetime.fromtimestamp(min(max(0, time_ms), MAX_MS) / 1000, datetime.UTC)
    return moment.date().isoformat()


def encode(row: Row) -> bytes:
    """Return one line of JSON with a value for each column, as JSONEachRow has it."""
    found: dict[str, Any] = {}
    for name in row.__struct_fields__:
        value = getattr(row, name)
        part = _PARTS_OF.get((type(row), name))
        if part is None:
            found[name] = _plain(value)
            continue
        for field in part.__struct_fields__:
            found[f"{name}_{field}"] = [_plain(getattr(one, field)) for one in value]
    return msgspec.json.encode(found)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


_PARTS_OF = {
    (table.row, name): part
    for table in TABLES.values()
    for name, hint in _hints(table.row)
    if (part := _part(hint)) is not None
}
