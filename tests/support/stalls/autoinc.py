# SPDX-License-Identifier: Apache-2.0
"""A bulk insert into a table with an AUTO_INCREMENT column, and others that insert into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool
from tests.support.stalls.row_locks import LOCK_WAITS

__all__ = ["AUTOINC_FIXED", "AUTOINC_OPTIONS", "autoinc_lock", "inserts_beside_a_bulk_insert"]

AUTOINC_OPTIONS = ("--innodb-autoinc-lock-mode=1",)
"""The default before MySQL 8.0: a bulk insert holds the lock until its statement ends."""
AUTOINC_FIXED = ("--innodb-autoinc-lock-mode=2",)
"""Options the server wants for the twin."""

DOUBLINGS = 11
TABLES = (
    "DROP TABLE IF EXISTS words, found",
    "CREATE TABLE words (word CHAR(8)) ENGINE=InnoDB",
    "INSERT INTO words VALUES (LEFT(UUID(), 8))",
    *("INSERT INTO words SELECT LEFT(UUID(), 8) FROM words",) * DOUBLINGS,
    "CREATE TABLE found (id INT PRIMARY KEY AUTO_INCREMENT, words INT) ENGINE=InnoDB",
    # A wait must outlast the slowest of the backends.
    "SET GLOBAL innodb_lock_wait_timeout = 3600",
)
# A scan for each row, and millions of rows: it goes on for hours.
BULK_INSERT = (
    "INSERT INTO found (words) SELECT"
    " (SELECT COUNT(*) FROM words c WHERE c.word LIKE CONCAT('%', LEFT(a.word, 1), b.word, '%'))"
    " FROM words a, words b"
)
INSERT = "INSERT INTO found (words) VALUES (0)"
INSERTED = 100
CHANGED_ROWS = (
    "SELECT trx_rows_modified FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = %s"
)


@contextmanager
def bulk_insert(server: SqlServer) -> Iterator[int]:
    """Insert rows by one statement that takes hours; yield its connection id."""
    server.execute("CREATE DATABASE IF NOT EXISTS bulk")
    server.execute(*TABLES, database="bulk")

    def inserted() -> int:
        return sum(int(row[0]) for row in server.query(CHANGED_ROWS, (connection,)))

    with running_statements(server, "bulk", [BULK_INSERT]) as (connection,):
        wait_until(lambda: inserted() > INSERTED, "the bulk insert has begun")
        yield connection


@contextmanager
def autoinc_lock(server: SqlServer, waiters: int = 20) -> Iterator[int]:
    """Let inserts wait for the AUTO-INC lock of a bulk insert; yield its connection id."""
    with (
        bulk_insert(server) as holder,
        running_statements(server, "bulk", [INSERT] * waiters),
    ):
        wait_until(lambda: server.number(LOCK_WAITS) >= waiters, f"{waiters} inserts wait")
        yield holder


@contextmanager
def inserts_beside_a_bulk_insert(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Insert single rows while a bulk insert runs that takes no lock to its end."""
    with bulk_insert(server), client_pool(server, "bulk", [[INSERT]] * clients):
        yield
