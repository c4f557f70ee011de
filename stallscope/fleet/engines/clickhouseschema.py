# SPDX-License-Identifier: Apache-2.0
"""What tables a ClickHouse server has, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from stallscope.fleet import tables
from stallscope.fleet.engines.clickhouseclient import Client, Failure
from stallscope.fleet.engines.clickhouseddl import BUFFER, VERSION_VIEW, Layout, local
from stallscope.fleet.engines.clickhousedialect import literal
from stallscope.fleet.engines.migrations import retyped
from stallscope.fleet.tables import AGENTS, TABLES, Table

__all__ = ["FORBIDDEN", "Found", "known", "lacking", "look", "newer", "wrong"]

T = TypeVar("T")

FORBIDDEN = 497
_NO_QUOTES = str.maketrans("", "", "`()")

_CLUSTER = re.compile(r"Distributed\('?([^',]+)'?,")


class _Table(msgspec.Struct, frozen=True):
    name: str
    engine: str
    engine_full: str = ""
    sorting_key: str = ""


class _Column(msgspec.Struct, frozen=True):
    table: str
    name: str
    type: str


class Found(msgspec.Struct, frozen=True):
    """The tables of a database on one node. ``version``: 0: not known."""

    version: int
    engines: Mapping[str, str]
    sorted_by: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]
    cluster: str = ""


def look(client: Client) -> Found:
    """Return what the node that answers has. Raises: Failure."""
    of = literal(client.address.database)
    there = _lines(
        client,
        "SELECT name, engine, engine_full, sorting_key FROM system.tables"
        f" WHERE database = {of} ORDER BY name",
        _Table,
    )
    columns: dict[str, dict[str, str]] = {}
    for one in _lines(
        client, f"SELECT table, name, type FROM system.columns WHERE database = {of}", _Column
    ):
        columns.setdefault(one.table, {})[one.name] = one.type
    clusters = (_CLUSTER.match(one.engine_full) for one in there if one.name in TABLES)
    return Found(
        version=_version(client) if any(one.name == VERSION_VIEW for one in there) else 0,
        engines={one.name: one.engine for one in there},
        sorted_by={one.name: one.sorting_key for one in there},
        columns=columns,
        cluster=next((one[1] for one in clusters if one), ""),
    )


def _version(client: Client) -> int:
    try:
        said = client.execute(f"SELECT max(version) FROM {VERSION_VIEW}").decode("utf-8", "replace")
    except Failure as error:
        if error.code != FORBIDDEN:
            raise
        return 0  # an account that writes need not read
    return int(said.strip()) if said.strip().isdigit() else 0


def _lines(client: Client, sql: str, kind: type[T]) -> list[T]:
    answer = client.execute(sql + " FORMAT JSONEachRow", database="")
    try:
        return msgspec.json.Decoder(kind).decode_lines(answer.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Failure(f"{client.address.shown} is no ClickHouse: {error}", status=200) from None


def known(found: Found, table: Table) -> tuple[str, ...]:
    """Return those of the table's columns that can be written to; (): that cannot be seen."""
    there = found.columns.get(BUFFER if table.name == AGENTS.name else table.name, {})
    return tuple(one.name for one in table.columns if one.name in there)


def lacking(found: Found, table: Table) -> tuple[str, ...]:
    """Return those that it lacks."""
    there = known(found, table)
    return tuple(one.name for one in table.columns if there and one.name not in there)


def wrong(found: Found, layout: Layout, names: Iterable[str] = ()) -> tuple[str, ...]:
    """Return what somebody altered that no statement of ours repairs: a line each, with the repair.

    ``names``: the tables that are wanted; all of them by default.
    """
    lines: list[str] = []
    on = f" ON CLUSTER {layout.cluster}" if layout.cluster else ""
    shard = "on a node of each shard, " if layout.cluster else ""
    for name in names or TABLES:
        table = TABLES[name]
        own = local(name, layout)
        lines += _engines(found, table, layout)
        shown = [own, name] if layout.cluster else [own]
        for one in [*shown, BUFFER] if table.name == AGENTS.name else shown:
            for column, there, kind in retyped(table.columns, found.columns.get(one, {})):
                repair = (
                    f"DROP TABLE {layout.database}.{one}{on}, and run stallscope fleet init again"
                    if found.engines.get(one) in ("Buffer", "Distributed")
                    else f"{shard}ALTER TABLE {layout.database}.{one} MODIFY COLUMN {column} {kind}"
                )
                lines.append(
                    f"table {one} was altered: column {column} is {there} instead of {kind};"
                    f" to repair it: {repair}"
                )
    return tuple(lines)


def _engines(found: Found, table: Table, layout: Layout) -> list[str]:
    own = local(table.name, layout)
    lines: list[str] = []
    engine = found.engines.get(own)
    if engine is not None and not engine.endswith("ReplacingMergeTree"):
        lines.append(_replace(own, f"its engine is {engine}, which keeps old revisions", layout))
    elif engine is not None and found.sorted_by[own].translate(_NO_QUOTES) != ", ".join(table.key):
        lines.append(_replace(own, f"it is sorted by ({found.sorted_by[own]})", layout))
    front = found.engines.get(table.name)
    if layout.cluster and front not in (None, "Distributed"):
        lines.append(_replace(table.name, f"its engine is {front} instead of Distributed", layout))
    buffer = found.engines.get(BUFFER)
    if table.name == AGENTS.name and buffer not in (None, "Buffer"):
        lines.append(_replace(BUFFER, f"its engine is {buffer} instead of Buffer", layout))
    return lines


def _replace(name: str, why: str, layout: Layout) -> str:
    on = f" ON CLUSTER {layout.cluster}" if layout.cluster else ""
    old = f"{layout.database}.{name}_old"
    return (
        f"table {name} was altered: {why}; to repair it: RENAME TABLE {layout.database}.{name} TO"
        f" {old}{on}, stallscope fleet init again, INSERT INTO {layout.database}.{name} SELECT *"
        f" FROM {old}"
    )


def newer(found: Found) -> str | None:
    """Return that the tables are of a later version, or None."""
    if found.version <= tables.VERSION:
        return None
    return (
        f"the tables are of version {found.version}, and this stallscope knows {tables.VERSION}:"
        " install a later one"
    )
