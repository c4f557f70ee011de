# SPDX-License-Identifier: Apache-2.0
"""Make the tables of a fleet in ClickHouse, bring them to this version, and drop old days."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence

import msgspec

from stallscope.base.errors import UsageError
from stallscope.fleet import tables
from stallscope.fleet.address import Address
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import clickhouseschema
from stallscope.fleet.engines.clickhouseclient import Client, Failure
from stallscope.fleet.engines.clickhouseddl import (
    BUFFER,
    VERSION_VIEW,
    Layout,
    definitions,
    local,
    quoted,
    version_view,
)
from stallscope.fleet.engines.clickhousedialect import literal
from stallscope.fleet.engines.clickhouseschema import Found
from stallscope.fleet.engines.migrations import additions
from stallscope.fleet.tables import AGENTS, PARTS, STACKS, TABLES, Table

__all__ = ["Report", "drop_old", "init"]

_CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_DDL_SECONDS = 60
_DONE_ELSEWHERE = (15, 44, 517)
"""Codes: the column is there; this replica does not know yet what another one has altered."""


class Report(msgspec.Struct, frozen=True):
    """``done``: what was made or changed. ``wrong``: what somebody altered, and how it is repaired:
    nothing was done about it."""

    done: tuple[str, ...]
    wrong: tuple[str, ...] = ()


class _Nodes:
    """The nodes on which statements are executed: all of a cluster through any of them, or each of
    those that were given."""

    def __init__(
        self, clients: Sequence[Client], cluster: str, *, ddl: bool, every: Sequence[Client] = ()
    ) -> None:
        self.clients = clients
        self._every = every
        self._on = f" ON CLUSTER {quoted(cluster)}" if ddl else ""
        self._settings = {"distributed_ddl_task_timeout": _DDL_SECONDS} if ddl else {}

    def run(self, client: Client, begin: str, rest: str = "") -> None:
        """Execute ``begin``, ``ON CLUSTER`` where that is meant, and ``rest`` through a client."""
        client.execute(
            f"{begin}{self._on} {rest}",
            database="",
            settings=self._settings,
            seconds=_DDL_SECONDS + 10,
        )

    def alter(self, client: Client, table: str, what: str) -> None:
        """Alter a table with rows, on all nodes where their addresses are known.

        Where ON CLUSTER alters replicated tables, version 18.16 can hang for good: both replicas of
        a shard write down that it is done.
        """
        if not self._every:
            self.run(client, f"ALTER TABLE {table}", what)
            return
        for one in self._every:
            try:
                one.execute(f"ALTER TABLE {table} {what}", database="", seconds=_DDL_SECONDS)
            except Failure as error:
                if error.code not in _DONE_ELSEWHERE:
                    raise


def init(
    addresses: Sequence[Address],
    cluster: str = "",
    *,
    days: Mapping[str, int] = {},
    ca_file: str = "",
) -> Report:
    """Make what is missing, of this version; what is there stays, with its rows.

    ``cluster``: its name in the servers' configuration. Where ON CLUSTER works there, one address
    is enough; else that of each node is needed. ``days``: how long rows are kept, by table, where
    the engine removes them itself (19.6 and later). Raises: EngineError, UsageError.
    """
    if cluster and _CLUSTER.fullmatch(cluster) is None:
        raise UsageError("the name of a cluster has letters, digits, _, . and - only")
    done: dict[str, None] = {}
    wrong: dict[str, None] = {}
    try:
        nodes = _nodes(addresses, cluster, ca_file)
        for client in nodes.clients:
            layout = Layout(
                database=client.address.database,
                version=client.version,
                cluster=cluster,
                replicated=bool(cluster) and _replicated(client),
                days=days,
            )
            report = _init(nodes, client, layout)
            done.update(dict.fromkeys(report.done))
            wrong.update(dict.fromkeys(report.wrong))
    except Failure as error:
        raise EngineError(str(error)) from None
    return Report(tuple(done), tuple(wrong))


def _nodes(addresses: Sequence[Address], cluster: str, ca_file: str) -> _Nodes:
    first = Client(addresses[0], ca_file=ca_file)
    single = [
        Client(msgspec.structs.replace(address, hosts=(host,)), ca_file=ca_file)
        for address in addresses
        for host in address.hosts
    ]
    if not cluster:
        return _Nodes(single, "", ddl=False)
    known = _numbers(first, f"SELECT count() FROM system.clusters WHERE cluster = '{cluster}'")
    if not known:
        raise EngineError(
            f"{first.address.shown} knows no cluster {cluster}: define it under remote_servers in"
            " the configuration of each server"
        )
    if _ddl_works(first, cluster):
        every = single if len(single) >= known else ()
        return _Nodes([first], cluster, ddl=True, every=every)
    if len(single) < known:
        raise EngineError(
            f"the cluster {cluster} has {known} nodes, and ON CLUSTER does not work there (it needs"
            f" ZooKeeper, and distributed_ddl in the configuration): give the address of each node,"
            f" {len(single)} given"
        )
    return _Nodes(single, cluster, ddl=False)


def _ddl_works(client: Client, cluster: str) -> bool:
    """Create the database everywhere, as the first statement that shows it."""
    name = quoted(client.address.database)
    nodes = _Nodes([client], cluster, ddl=True)
    try:
        nodes.run(client, f"CREATE DATABASE IF NOT EXISTS {name}")
    except Failure as error:
        # No distributed_ddl, or no ZooKeeper, in the configuration; of 49 only the text says that.
        if error.code in (139, 225, 392) or "DDL" in str(error):
            return False
        raise
    return True


def _replicated(client: Client) -> bool:
    """Return whether ZooKeeper is there; then macros must say which replica a server is."""
    try:
        client.execute("SELECT count() FROM system.zookeeper WHERE path = '/'", database="")
    except Failure as error:
        if not error.status or error.code in (192, 193, 194, 516, 497):
            raise
        return False
    named = "SELECT count() FROM system.macros WHERE macro IN ('shard', 'replica')"
    if _numbers(client, named) != 2:
        raise EngineError(
            f"{client.address.shown} has ZooKeeper, and no macros: set shard and replica under"
            " macros in the configuration of each server"
        )
    return True


def _numbers(client: Client, sql: str) -> int:
    said = client.execute(sql, database="").strip()
    return int(said) if said.isdigit() and len(said) < 19 else 0


def _init(nodes: _Nodes, client: Client, layout: Layout) -> Report:
    database = quoted(layout.database)
    nodes.run(client, f"CREATE DATABASE IF NOT EXISTS {database}")
    found = clickhouseschema.look(client)
    too_new = clickhouseschema.newer(found)
    if too_new is not None:
        raise EngineError(f"{client.address.shown}: {too_new}")
    if found.cluster and found.cluster != layout.cluster:
        raise EngineError(
            f"the tables of {client.address.shown} are of the cluster {found.cluster}: give"
            f" --cluster {found.cluster}"
        )
    done = list(_migrated(nodes, client, layout, found))
    outdated = _outdated(layout, found)
    if done or outdated:
        outdated |= set(PARTS)
    for name, body in definitions(layout):
        old = name in found.engines
        if old and name in outdated:
            nodes.run(client, f"DROP TABLE IF EXISTS {database}.{name}")
        kind = "VIEW" if name in PARTS else "TABLE"
        nodes.run(client, f"CREATE {kind} IF NOT EXISTS {database}.{name}", body)
        if not old or (name in outdated and not done):
            done.append(f"made {kind.lower()} {name}" + (" again" if old else ""))
    if found.version != tables.VERSION:
        _set_version(nodes, client, layout)
        done.append(
            f"version {tables.VERSION}"
            + (f", from {found.version}" if found.version else " of the tables")
        )
    return Report(tuple(done), clickhouseschema.wrong(found, layout))


def _migrated(nodes: _Nodes, client: Client, layout: Layout, found: Found) -> tuple[str, ...]:
    """Add the columns that tables with rows lack; return what was done."""
    done: list[str] = []
    for table in TABLES.values():
        name = local(table.name, layout)
        if name not in found.engines:
            continue
        changes = additions(table, found.columns.get(name, {}), layout.version)
        if not changes:
            continue
        inside = ", ".join(change.sql for change in changes)
        nodes.alter(client, f"{quoted(layout.database)}.{name}", inside)
        why = " (somebody dropped them)" if found.version == tables.VERSION else ""
        columns = ", ".join(change.column for change in changes)
        done.append(f"added to table {name}: {columns}{why}")
    return tuple(done)


def _outdated(layout: Layout, found: Found) -> set[str]:
    """Return the tables and views without rows of their own that lack columns: they are made
    again. (Distributed tables cannot be altered on a cluster.)"""
    wanted = {BUFFER: TABLES[AGENTS.name].columns}
    wanted |= {name: part.columns for name, part in PARTS.items()}
    if layout.cluster:
        wanted |= {name: table.columns for name, table in TABLES.items()}
    return {
        name
        for name, columns in wanted.items()
        if any(one.name not in found.columns.get(name, {}) for one in columns)
    }


def _set_version(nodes: _Nodes, client: Client, layout: Layout) -> None:
    name = f"{quoted(layout.database)}.{VERSION_VIEW}"
    nodes.run(client, f"DROP TABLE IF EXISTS {name}")
    nodes.run(client, f"CREATE VIEW IF NOT EXISTS {name}", version_view(tables.VERSION))


def drop_old(
    addresses: Sequence[Address],
    days: Mapping[str, int] = {},
    *,
    now_ms: int,
    ca_file: str = "",
) -> dict[str, int]:
    """Drop the days that are older than ``days`` says, by table; the table's default otherwise.

    Returns: by table how many rows went. On a cluster all shards are meant; where ON CLUSTER does
    not work there, the address of each node is needed. Raises: EngineError.
    """
    try:
        cluster = clickhouseschema.look(Client(addresses[0], ca_file=ca_file)).cluster
        nodes = _nodes(addresses, cluster, ca_file)
        layout = Layout(
            addresses[0].database, nodes.clients[0].version, cluster, replicated=bool(cluster)
        )
        return {
            table.name: _drop(nodes, layout, table, days.get(table.name, table.days), now_ms)
            for table in TABLES.values()
        }
    except Failure as error:
        raise EngineError(str(error)) from None


def _drop(nodes: _Nodes, layout: Layout, table: Table, days: int, now_ms: int) -> int:
    today = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).date()
    oldest = literal((today - datetime.timedelta(days=days)).isoformat())
    database = quoted(layout.database)
    # A node without a cluster has rows of its own; one of a cluster is asked for all of them.
    asked = nodes.clients[:1] if layout.cluster else nodes.clients
    rows, gone = 0, set[str]()
    for client in asked:
        sql = (
            f"SELECT toString(day), count() FROM {database}.{table.name} FINAL"
            f" WHERE day < {oldest} GROUP BY day ORDER BY day"
        )
        for line in client.execute(sql, database="").decode("utf-8", "replace").splitlines():
            day, _, count = line.partition("\t")
            gone.add(datetime.date.fromisoformat(day).isoformat())
            rows += int(count)
    if not gone:
        return 0
    own = f"{database}.{local(table.name, layout)}"
    what = [f"DROP PARTITION {literal(day)}" for day in sorted(gone)]
    if table is STACKS:
        what = [f"DELETE WHERE day < {oldest}"]
    for client in nodes.clients:
        for one in what:
            nodes.alter(client, own, one)
    return rows
