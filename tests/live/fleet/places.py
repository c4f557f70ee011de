# SPDX-License-Identifier: Apache-2.0
"""A database of an engine, for one test."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from stallscope.fleet import batch
from stallscope.fleet.address import parse
from stallscope.fleet.engines.clickhouse import ClickHouse, ClickHouseDestination
from stallscope.fleet.engines.clickhouseclient import Client, Failure
from stallscope.fleet.engines.clickhouseddl import plain_type
from stallscope.fleet.engines.clickhousetables import Report, init
from stallscope.fleet.tables import TABLES, Row
from tests.support.servers.waiting import wait_until

__all__ = ["Place"]


class Place:
    """``url``: its address. ``cluster``: the name of the cluster that it is on; empty: none."""

    def __init__(self, url: str, cluster: str = "") -> None:
        self.address = parse(url)
        self.cluster = cluster
        self.destination = ClickHouseDestination(self.address)
        self.engine = ClickHouse(self.address)

    @property
    def database(self) -> str:
        return self.address.database

    def local(self, table: str) -> str:
        """Return the table that has the rows of a node."""
        return f"{table}_local" if self.cluster else table

    @property
    def on(self) -> str:
        return f" ON CLUSTER {self.cluster}" if self.cluster else ""

    def init(self) -> Report:
        """Make the tables."""
        return init([self.address], self.cluster)

    def statement(self, sql: str) -> str:
        """Execute any statement."""
        return Client(self.address).execute(sql, database="").decode().strip()

    def alter(self, table: str, what: str) -> None:
        """Alter a table as somebody does by hand, on each node."""
        self.on_each(f"ALTER TABLE {self.database}.{table} {what}")

    def on_each(self, sql: str) -> None:
        """Execute a statement on each node, though another replica may have done it."""
        for host in self.address.hosts:
            with suppress(Failure):
                Client(msgspec.structs.replace(self.address, hosts=(host,))).execute(
                    sql, database=""
                )

    def again(self, table: str, column: str, kind: str = "") -> None:
        """Make a Distributed table again by hand, without a column, or with one of this type."""
        if not self.cluster:
            return
        columns = ", ".join(
            f"{one.name} {kind if one.name == column else plain_type(one)}"
            for one in TABLES[table].columns
            if kind or one.name != column
        )
        name = f"{self.database}.{table}{self.on}"
        self.statement(f"DROP TABLE {name}")
        where = f"{self.cluster}, {self.database}, {table}_local, cityHash64(host)"
        self.statement(f"CREATE TABLE {name} ({columns}) ENGINE = Distributed({where})")

    def send(self, *rows: Row) -> None:
        """Send a batch of rows."""
        self.destination.send(batch.make(rows))

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Ask."""
        return self.engine.rows(sql)

    def table(self, name: str, *columns: str, where: str = "") -> str:
        """Return the rows that count, as questions have them."""
        return self.engine.dialect.table(name, columns, where)

    def becomes(self, sql: str, wanted: Iterable[dict[str, Any]]) -> None:
        """Wait until this is the answer: replicas take a moment. What is asked after it may be
        answered by another of them, so each has what this one had."""
        expected = list(wanted)
        wait_until(lambda: self.rows(sql) == expected, sql)
        for table in TABLES if self.cluster else ():
            self.on_each(f"SYSTEM SYNC REPLICA {self.database}.{self.local(table)}")
