# SPDX-License-Identifier: Apache-2.0
"""The tables of a fleet as ClickHouse defines them; pure functions of what an engine can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from stallscope.fleet.tables import AGENTS, INCIDENTS, PARTS, STACKS, TABLES, Column, Part, Table

__all__ = [
    "BUFFER",
    "VERSION_VIEW",
    "Layout",
    "column_definition",
    "definitions",
    "local",
    "plain_type",
    "quoted",
    "version_view",
]

BUFFER = "agents_buffer"
VERSION_VIEW = "fleet_schema"
_OF_INCIDENT = ("uid", "host", "start_ms", "day")
_TYPES = {"text": "String", "int": "Int64", "float": "Float64", "bool": "UInt8", "day": "Date"}
_NOTHING = {"String": "''", "Int64": "toInt64(0)", "Float64": "toFloat64(0)", "UInt8": "toUInt8(0)"}
_TTL_SINCE = (19, 6)
_CODEC_SINCE = (19, 6)
_LOW_SINCE = (20, 3)
_WHOLE_PARTS_SINCE = (20, 1)
_LOW = frozenset(
    {
        "host",
        "program",
        "server",
        "version",
        "signature",
        "lock_kind",
        "ending",
        "trigger_name",
        "agent_version",
        "triggers",
        "lost_why",
        "shape",
        "kind",
        "state",
        "why",
        "captures_reason",
        "captures_trigger_name",
        "captures_signature",
        "captures_sessions",
        "findings_signature",
        "findings_title",
        "findings_kind",
        "findings_lock_kind",
        "findings_victim_of",
        "stalled_state",
        "stalled_role",
        "samples_name",
        "shape_functions",
        "frames",
    }
)
"""Columns of few different values."""


class Layout(msgspec.Struct, frozen=True):
    """What the tables are made on. ``cluster``: empty: one node. ``replicated``: by ZooKeeper."""

    database: str
    version: tuple[int, int]
    cluster: str = ""
    replicated: bool = False
    days: Mapping[str, int] = {}
    """How long rows are kept, by table, where that is not the table's default."""


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def local(table: str, layout: Layout) -> str:
    """Return the name of the table that has the rows of a node."""
    return f"{table}_local" if layout.cluster else table


def plain_type(column: Column) -> str:
    """Return a column's type, without what only says how it is stored."""
    found = _TYPES[column.type]
    if column.nullable:
        found = f"Nullable({found})"
    return f"Array({found})" if column.array else found


def column_definition(column: Column, version: tuple[int, int]) -> str:
    """Return name, type and default and, where the engine has them, the codec and the
    dictionary."""
    found, codec = plain_type(column), ""
    if column.type == "text" and not column.nullable:
        if column.name in _LOW and version >= _LOW_SINCE:
            found = found.replace("String", "LowCardinality(String)")
        if version >= _CODEC_SINCE:
            codec = " CODEC(ZSTD(1))"
    return f"{quoted(column.name)} {found}{_default(column)}{codec}"


def _default(column: Column) -> str:
    """Return the default of a column of parts: as many as there are parts in rows that were
    written without it."""
    for part in PARTS.values():
        first = f"{part.prefix}_{part.columns[0].name}"
        if column.name.startswith(f"{part.prefix}_") and column.array and column.name != first:
            kind = _TYPES[column.type]
            one = f"CAST(NULL, 'Nullable({kind})')" if column.nullable else _NOTHING[kind]
            return f" DEFAULT arrayMap(x -> {one}, {first})"
    return ""


def definitions(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the name of each table and view, and what follows ``CREATE TABLE name`` or ``CREATE
    VIEW name``, in an order in which they can be made."""
    for table in TABLES.values():
        columns = ", ".join(column_definition(one, layout.version) for one in table.columns)
        yield local(table.name, layout), f"({columns}) ENGINE = {_stored(table, layout)}"
        if layout.cluster:
            yield table.name, f"({columns}) ENGINE = {_distributed(table, layout)}"
    buffered = ", ".join(
        column_definition(one, layout.version) for one in TABLES[AGENTS.name].columns
    )
    # One layer, so that each flush makes one part; a flush is due after 10 s.
    where = f"'{layout.database}', 'agents'"
    limits = "1, 2, 10, 10000, 100000, 1000000, 50000000"
    yield BUFFER, f"({buffered}) ENGINE = Buffer({where}, {limits})"
    for part in PARTS.values():
        yield part.name, _view(part, layout)


def version_view(version: int) -> str:
    """Return what follows ``CREATE VIEW fleet_schema``: the version is changed wherever
    definitions are, on all nodes."""
    return f"AS SELECT toInt64({version}) AS version"


def _stored(table: Table, layout: Layout) -> str:
    if layout.replicated:
        path = f"/clickhouse/tables/{{shard}}/{layout.database}/{table.name}"
        engine = f"ReplicatedReplacingMergeTree('{path}', '{{replica}}', rev)"
    else:
        engine = "ReplacingMergeTree(rev)"
    found = [engine]
    if table is not STACKS:
        found.append("PARTITION BY day")
    key = ", ".join(table.key)
    found.append(f"ORDER BY ({key})" if len(table.key) > 1 else f"ORDER BY {key}")
    settings = ["index_granularity = 8192"]
    if table is STACKS:  # its parts are a few small files, and one insert of each agent makes one
        settings += ("parts_to_delay_insert = 3000", "parts_to_throw_insert = 6000")
    if layout.version >= _TTL_SINCE:
        found.append(f"TTL day + INTERVAL {layout.days.get(table.name, table.days)} DAY")
        if layout.version >= _WHOLE_PARTS_SINCE and table is not STACKS:
            settings.append("ttl_only_drop_parts = 1")
    return " ".join(found) + f" SETTINGS {', '.join(settings)}"


def _distributed(table: Table, layout: Layout) -> str:
    own = local(table.name, layout)
    key = f"cityHash64({table.shard})"
    return f"Distributed('{layout.cluster}', '{layout.database}', '{own}', {key})"


def _view(part: Part, layout: Layout) -> str:
    names = ", ".join(f"{part.prefix}_{one.name} AS {one.name}" for one in part.columns)
    shown = ", ".join((*_OF_INCIDENT, *(one.name for one in part.columns)))
    source = f"{quoted(layout.database)}.{INCIDENTS.name}"
    return f"AS SELECT {shown} FROM {source} FINAL ARRAY JOIN {names}"
