# SPDX-License-Identifier: Apache-2.0
"""Stalls above the storage engine: metadata locks and the global read lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pymysql

from tests.support.servers.clients import (
    connection_id,
    idle_connections,
    open_transaction,
    running_statements,
)
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import at_rest
from tests.support.servers.waiting import Late, wait_until

__all__ = ["global_read_lock", "metadata_lock_pileup"]

TABLE = (
    "CREATE DATABASE IF NOT EXISTS shop",
    "DROP TABLE IF EXISTS shop.orders",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, total INT) ENGINE=InnoDB",
    "REPLACE INTO shop.orders VALUES (1, 10), (2, 20)",
)
# A test may have let the ALTER TABLE end.
AS_MADE = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'shop'"
AS_MADE += " AND table_name = 'orders'"
ROWS = "SELECT id, total FROM shop.orders ORDER BY id"
HISTORY = "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'"
PURGE = 5.0
"""Seconds at most."""
READ = "SELECT SUM(total) FROM orders"
LONG_READ = "SELECT SLEEP(3600) FROM orders"
ALTER = "ALTER TABLE orders ADD COLUMN note INT"
WRITE = "UPDATE orders SET total = total + 1 WHERE id = 1"
METADATA_WAIT = "Waiting for table metadata lock"
# MySQL 5.5 to 8.4 and MariaDB word the wait of a writer in three ways.
READ_LOCK_WAITS = ("Waiting for global read lock", "Waiting for backup lock")


@contextmanager
def metadata_lock_pileup(
    server: SqlServer, waiters: int = 20, *, long_select: bool = False
) -> Iterator[int]:
    """Let SELECTs queue behind an ALTER TABLE that waits for an idle transaction.

    With ``long_select`` it waits for a statement that takes long, while others are idle. Yields the
    connection id of what it waits for.
    """
    _make_table(server)
    held = _long_select(server) if long_select else open_transaction(server, "shop", READ)
    with held as holder:
        with running_statements(server, "shop", [ALTER]):
            wait_until(lambda: server.in_state(METADATA_WAIT) == 1, "ALTER TABLE waits")
            with running_statements(server, "shop", [READ] * waiters):
                wait_until(
                    lambda: server.in_state(METADATA_WAIT) == waiters + 1,
                    f"{waiters} SELECTs wait behind ALTER TABLE",
                )
                wait_until(lambda: at_rest(server.pid), "their threads sleep")
                yield holder
        # KILL only sets a flag: a lock that is free before the thread of ALTER TABLE sees the
        # flag is granted to it, and the table has its column.
        with suppress(pymysql.err.Error):  # a test of the stall may have ended the server
            wait_until(lambda: server.in_state(METADATA_WAIT) == 0, "ALTER TABLE was killed")


def _make_table(server: SqlServer) -> None:
    """Make the table, unless it is there as it was made.

    Returns when MariaDB has purged what that has changed: else its purge would spin, and take a
    CPU, for as long as DDL waits for the table.
    """
    if server.query(AS_MADE) == ((2,),) and server.query(ROWS) == ((1, 10), (2, 20)):
        return
    server.execute(*TABLE)
    with suppress(Late):  # a transaction of the test may keep it
        wait_until(lambda: all(row[1] == "0" for row in server.query(HISTORY)), "purge", PURGE)


@contextmanager
def _long_select(server: SqlServer, idle: int = 5) -> Iterator[int]:
    """Use the table in a statement that takes an hour, with idle connections."""
    with (
        idle_connections(server, idle),
        running_statements(server, "shop", [LONG_READ]) as (holder,),
    ):
        wait_until(lambda: server.in_state("User sleep") == 1, "the long SELECT runs")
        yield holder


@contextmanager
def global_read_lock(server: SqlServer, waiters: int = 20) -> Iterator[int]:
    """Let writers pile up behind FLUSH TABLES WITH READ LOCK; yield its connection id."""
    server.execute(*TABLE)
    with idle_connections(server, 1) as (connection,):
        with connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
        with running_statements(server, "shop", [WRITE] * waiters):
            wait_until(
                lambda: sum(server.in_state(state) for state in READ_LOCK_WAITS) >= waiters,
                f"{waiters} writers wait for the global read lock",
            )
            wait_until(lambda: at_rest(server.pid), "their threads sleep")
            yield connection_id(connection)
