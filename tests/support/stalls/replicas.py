# SPDX-License-Identifier: Apache-2.0
"""Replication that stands still, or holds up commits, and servers that became read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers import MEMORY, MariaDB
from tests.support.servers.clients import open_transaction, running_statements
from tests.support.servers.ports import free_port
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool

__all__ = [
    "REPLICA_OPTIONS",
    "SEMISYNC_OPTIONS",
    "SEMISYNC_OPTIONS_MYSQL",
    "applier_behind",
    "applier_error",
    "read_only",
    "replica_that_works",
    "semisync_off",
    "semisync_without_replica",
]

LOGGED = ("--log-bin", "--binlog-format=ROW", "--server-id=1")
REPLICA_OPTIONS = ("--server-id=2",)
SEMISYNC_OPTIONS = (*LOGGED, "--rpl-semi-sync-master-timeout=3600000")
SEMISYNC_OPTIONS_MYSQL = (
    *("--log-bin=binlog", "--server-id=1"),
    "--plugin-load-add=semisync_source.so",
    "--loose-rpl-semi-sync-source-timeout=3600000",
)
COMMITS = 5
SEMISYNC_WAITS = "Waiting for semi-sync ACK from %"
TABLE = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, total INT) ENGINE=InnoDB",
)
OLD = 3600
"""Seconds: how long ago the clock of a session of the source is."""
DUPLICATE = 1062


@contextmanager
def semisync_without_replica(server: SqlServer, side: str = "master") -> Iterator[None]:
    """Commit where each commit is to be acknowledged, and no replica is connected. ``side``: what
    the server calls itself."""
    server.execute(*TABLE, f"SET GLOBAL rpl_semi_sync_{side}_enabled = ON")
    inserts = [f"INSERT INTO orders VALUES ({row}, 0)" for row in range(COMMITS)]
    with running_statements(server, "shop", inserts):
        wait_until(lambda: server.in_state(SEMISYNC_WAITS) >= 1, "a commit waits")
        yield
        server.execute(f"SET GLOBAL rpl_semi_sync_{side}_enabled = OFF")


@contextmanager
def semisync_off(server: SqlServer) -> Iterator[None]:
    """Let the same commits go on without a replica."""
    server.execute(*TABLE)
    updates = [[f"REPLACE INTO orders VALUES ({row}, 0)"] for row in range(COMMITS)]
    with client_pool(server, "shop", updates):
        yield


@contextmanager
def _source(replica: MariaDB) -> Iterator[MariaDB]:
    """Start a source, and let the server replicate from it."""
    port = free_port()
    network = ("--skip-networking=OFF", "--bind-address=127.0.0.1", f"--port={port}")
    with MariaDB(*network, *LOGGED, parent=MEMORY) as source:
        source.execute(
            "CREATE USER repl@'%' IDENTIFIED BY ''", "GRANT REPLICATION SLAVE ON *.* TO repl@'%'"
        )
        (position,) = source.query("SELECT @@gtid_current_pos")
        replica.execute(
            f"SET GLOBAL gtid_slave_pos = '{position[0]}'",
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {port},"
            " master_user = 'repl', master_use_gtid = slave_pos",
            "START SLAVE",
        )
        source.execute(*TABLE)
        wait_until(lambda: _has_table(replica), "the table is replicated")
        yield source


def _has_table(replica: MariaDB) -> bool:
    found = replica.query(
        "SELECT COUNT(*) FROM information_schema.innodb_sys_tables WHERE name = 'shop/orders'"
    )
    return found == ((1,),)


@contextmanager
def replica_that_works(server: MariaDB) -> Iterator[None]:
    """Replicate rows of a source."""
    with _source(server) as source:
        updates = [[f"REPLACE INTO orders VALUES ({row}, 0)"] for row in range(COMMITS)]
        with client_pool(source, "shop", updates):
            wait_until(lambda: server.query("SELECT COUNT(*) FROM shop.orders") != ((0,),), "rows")
            yield


@contextmanager
def applier_error(server: MariaDB) -> Iterator[None]:
    """Let the applier fail: a row that it is to insert is there."""
    with _source(server) as source:
        server.execute("INSERT INTO shop.orders VALUES (1, 0)")
        source.execute("INSERT INTO shop.orders VALUES (1, 1)")
        wait_until(lambda: _errno(server) == DUPLICATE, "the applier has failed")
        yield


@contextmanager
def applier_behind(server: MariaDB) -> Iterator[None]:
    """Let the applier wait for a row that a client has locked, with a change of an hour ago."""
    with _source(server) as source:
        source.execute("INSERT INTO shop.orders VALUES (1, 0)")
        wait_until(lambda: server.query("SELECT COUNT(*) FROM shop.orders") == ((1,),), "the row")
        with open_transaction(server, "shop", "UPDATE orders SET total = 7 WHERE id = 1"):
            source.execute(
                f"SET TIMESTAMP = UNIX_TIMESTAMP() - {OLD}",
                "UPDATE shop.orders SET total = 1 WHERE id = 1",
            )
            wait_until(lambda: _behind(server) >= OLD, "the applier is behind")
            yield


@contextmanager
def read_only(server: SqlServer) -> Iterator[None]:
    """Let the server refuse writes, although it is no replica."""
    server.execute("SET GLOBAL read_only = ON")
    try:
        yield
    finally:
        server.execute("SET GLOBAL read_only = OFF")


def _errno(server: MariaDB) -> int:
    return int(_status(server, "Last_SQL_Errno") or 0)


def _behind(server: MariaDB) -> int:
    return int(_status(server, "Seconds_Behind_Master") or 0)


def _status(server: MariaDB, column: str) -> str | None:
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW SLAVE STATUS")
        names = [str(one[0]) for one in cursor.description or ()]
        rows = cursor.fetchall()
    value = rows[0][names.index(column)] if rows else None
    return None if value is None else str(value)
