# SPDX-License-Identifier: Apache-2.0
"""Stalls on one hot row: a convoy behind an open transaction, and deadlock checking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import load_program, open_transaction, running_statements, slap
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import at_rest
from tests.support.servers.waiting import wait_until

__all__ = [
    "LONG_CHECKS",
    "UPDATE",
    "UPDATING",
    "deadlock_check_storm",
    "row_lock_convoy",
    "wait_for_row",
]

LONG_CHECKS = 900
"""Connections in a storm whose deadlock checks hold others up one by one.

A check takes as long as the square of those that wait. With 900 of them MySQL 5.5 keeps its mutex
for milliseconds at a time, and a capture meets whom the others wait for. With 190 it is 0.2 ms: on
a quiet machine they take turns, and for minutes no wait for the mutex is long enough to report; on
a busy one those that are reported wait for a CPU instead, and of their captures one in fifty meets
a check.
"""

UPDATE = "UPDATE t1 SET b = b + 1 WHERE a = 1"
HOT_ROW = (
    "CREATE DATABASE IF NOT EXISTS rows_",
    "CREATE TABLE IF NOT EXISTS rows_.t1 (a INT PRIMARY KEY, b BIGINT) ENGINE=InnoDB",
    "REPLACE INTO rows_.t1 VALUES (1, 0)",
    # A row-lock wait must outlast the slowest of the backends.
    "SET GLOBAL innodb_lock_wait_timeout = 3600",
)
LOCK_WAITS = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
UPDATING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE t1 %'"


@contextmanager
def row_lock_convoy(server: SqlServer, waiters: int = 40) -> Iterator[int]:
    """Let connections wait for a row of an idle transaction; yield that one's connection id."""
    server.execute(*HOT_ROW)
    with wait_for_row(server, waiters, LOCK_WAITS) as holder:
        yield holder


@contextmanager
def wait_for_row(server: SqlServer, waiters: int, counting: str) -> Iterator[int]:
    """Update the hot row in a transaction that stays open, and from others; ``counting`` is a query
    that counts those. Yields the connection id of the first."""
    with (
        open_transaction(server, "rows_", UPDATE) as holder,
        running_statements(server, "rows_", [UPDATE] * waiters),
    ):
        wait_until(lambda: server.number(counting) >= waiters, f"{waiters} wait for the row")
        wait_until(lambda: at_rest(server.pid), "their threads sleep")
        yield holder


@contextmanager
def deadlock_check_storm(server: SqlServer, connections: int = 190) -> Iterator[None]:
    """Update one row from many connections, as fast as they can.

    On MySQL 5.5 each new waiter walks the queue of all others under the kernel mutex.
    """
    server.execute(*HOT_ROW)
    load = slap(server, "rows_", UPDATE, concurrency=connections, queries=100_000_000)
    most = connections * 3 // 4
    with load_program(
        server,
        load,
        "storm",
        lambda: server.number(UPDATING) >= most,
        f"{most} connections update one row",
    ):
        yield
