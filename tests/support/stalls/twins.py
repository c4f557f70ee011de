# SPDX-License-Identifier: Apache-2.0
"""Fixed twins of stalls whose cause is one connection: the same load, and nobody in its way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pymysql.constants import ER

from tests.support.servers.clients import open_transaction, running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls import row_locks, sql_layer
from tests.support.stalls.pool import client_pool

__all__ = [
    "ddl_among_short_transactions",
    "ddl_that_does_not_wait",
    "snapshot_instead_of_read_lock",
    "updates_of_one_row",
]

READ_SHORTLY = ("BEGIN", sql_layer.READ, "COMMIT")
UNDO_ALTER = "ALTER TABLE orders DROP COLUMN note"
ALTER_NOWAIT = "ALTER TABLE orders NOWAIT ADD COLUMN note INT"
DDL_PAUSE = 1.0


@contextmanager
def ddl_among_short_transactions(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Alter the table about once a second while clients read it in short transactions."""
    server.execute(*sql_layer.TABLE)
    with (
        client_pool(server, "shop", [READ_SHORTLY] * clients),
        client_pool(server, "shop", [(sql_layer.ALTER, UNDO_ALTER)], DDL_PAUSE),
    ):
        yield


@contextmanager
def ddl_that_does_not_wait(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Try to alter a table that a long SELECT uses, by a statement that gives up at once."""
    server.execute(*sql_layer.TABLE)
    with (
        running_statements(server, "shop", [sql_layer.LONG_READ]),
        client_pool(server, "shop", [[sql_layer.READ]] * clients),
        client_pool(server, "shop", [[ALTER_NOWAIT]], DDL_PAUSE, {ER.LOCK_WAIT_TIMEOUT}),
    ):
        wait_until(lambda: server.in_state("User sleep") == 1, "the long SELECT runs")
        yield


@contextmanager
def snapshot_instead_of_read_lock(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Write while a backup has a snapshot open, as mariadb-dump --single-transaction does."""
    server.execute(*sql_layer.TABLE)
    writes = [[f"UPDATE orders SET total = total + 1 WHERE id = {row}"] for row in range(clients)]
    server.execute(
        *(f"REPLACE INTO orders VALUES ({row}, 0)" for row in range(clients)), database="shop"
    )
    with (
        open_transaction(server, "shop", "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
        client_pool(server, "shop", writes),
    ):
        yield


@contextmanager
def updates_of_one_row(server: SqlServer, clients: int = 8) -> Iterator[None]:
    """Update one row in transactions that are committed at once."""
    server.execute(*row_locks.HOT_ROW)
    with client_pool(server, "rows_", [[row_locks.UPDATE]] * clients):
        yield
