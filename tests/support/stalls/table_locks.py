# SPDX-License-Identifier: Apache-2.0
"""Locks of the SQL layer that are no metadata locks: of tables, of old versions, of users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import connection_id, idle_connections, running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import at_rest
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool

__all__ = [
    "flushes_among_short_reads",
    "long_scan_of_innodb",
    "myisam_table_lock",
    "short_user_locks",
    "table_flush",
    "user_level_lock",
]

DOUBLINGS = 12
# It reads all rows for each pair of rows, without a buffer for joins, and goes on for hours.
SCAN = (
    "SELECT COUNT(*) FROM visits a, visits b WHERE 100 < (SELECT COUNT(*) FROM visits c"
    " WHERE c.page LIKE CONCAT('%', LEFT(a.page, 1), LEFT(b.page, 2), '%'))"
)
UPDATE = "UPDATE visits SET hits = hits + 1 WHERE id = 1"
READ = "SELECT hits FROM visits WHERE id = 2"
FLUSH = "FLUSH TABLES"
FLUSH_PAUSE = 1.0
TABLE_WAITS = ("Waiting for table level lock", "Table lock")
USER_WAIT = "User lock"
FLUSH_WAITS = ("Waiting for table flush", "Flushing tables")
GET_LOCK = "SELECT GET_LOCK('job', 3600)"
# What gets the lock releases it soon, as a job does.
SHORT_LOCK = "SELECT GET_LOCK('job', 3600) + RELEASE_LOCK('job')"
SHORT_USE = ("SELECT GET_LOCK('job', 10)", UPDATE, "SELECT RELEASE_LOCK('job')")
RUNNING = "SELECT state FROM information_schema.processlist WHERE id = %s"
SCANS = ("Sending data", "executing", "Sending to client")


def make_visits(server: SqlServer, engine: str) -> None:
    """Make the table again."""
    server.execute("CREATE DATABASE IF NOT EXISTS web")
    server.execute(
        "DROP TABLE IF EXISTS visits",
        "CREATE TABLE visits (id INT PRIMARY KEY AUTO_INCREMENT, page CHAR(36), hits INT)"
        f" ENGINE={engine}",
        "INSERT INTO visits (page, hits) VALUES (UUID(), 0)",
        *["INSERT INTO visits (page, hits) SELECT UUID(), 0 FROM visits"] * DOUBLINGS,
        database="web",
    )


@contextmanager
def long_scan(server: SqlServer, engine: str) -> Iterator[int]:
    """Scan the table in a SELECT that takes an hour; yield its connection id."""
    make_visits(server, engine)
    with running_statements(server, "web", [SCAN]) as (scan,):
        wait_until(
            lambda: any(row[0] in SCANS for row in server.query(RUNNING, (scan,))), "the scan runs"
        )
        yield scan


def wait_in_states(server: SqlServer, states: tuple[str, ...], count: int) -> None:
    """Return when so many connections are in one of these states."""
    wait_until(
        lambda: sum(server.in_state(state) for state in states) >= count,
        f"{count} connections in {' or '.join(states)}",
    )


@contextmanager
def _behind_a_scan(
    server: SqlServer, engine: str, statement: str, states: tuple[str, ...], waiters: int
) -> Iterator[int]:
    """Let a statement wait for a long scan, and readers behind it; yield the scan's connection."""
    with long_scan(server, engine) as holder, running_statements(server, "web", [statement]):
        wait_in_states(server, states, 1)
        with running_statements(server, "web", [READ] * waiters):
            wait_in_states(server, states, waiters + 1)
            yield holder


@contextmanager
def myisam_table_lock(server: SqlServer, waiters: int = 20) -> Iterator[int]:
    """Let an UPDATE, and readers behind it, wait for a long scan of a MyISAM table.

    Yields the connection id of the scan.
    """
    with _behind_a_scan(server, "MyISAM", UPDATE, TABLE_WAITS, waiters) as holder:
        yield holder


@contextmanager
def long_scan_of_innodb(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Read and update a table beside a long scan, whose engine is InnoDB."""
    work = [[READ, UPDATE] if number == 0 else [READ] for number in range(clients)]
    with long_scan(server, "InnoDB"), client_pool(server, "web", work):
        yield


@contextmanager
def user_level_lock(server: SqlServer, waiters: int = 20) -> Iterator[int]:
    """Let connections wait for a GET_LOCK of an idle one; yield that one's connection id."""
    make_visits(server, "InnoDB")
    with idle_connections(server, 1) as (connection,):
        with connection.cursor() as cursor:
            cursor.execute(GET_LOCK)
        holder = connection_id(connection)
        server.wait_until_asleep(holder)
        with running_statements(server, "web", [SHORT_LOCK] * waiters):
            wait_in_states(server, (USER_WAIT,), waiters)
            wait_until(lambda: at_rest(server.pid), "their threads sleep")
            yield holder


@contextmanager
def short_user_locks(server: SqlServer, clients: int = 4) -> Iterator[None]:
    """Take the same GET_LOCK from a few connections, each for one short statement."""
    make_visits(server, "InnoDB")
    with client_pool(server, "web", [SHORT_USE] * clients):
        yield


@contextmanager
def table_flush(server: SqlServer, waiters: int = 20) -> Iterator[int]:
    """Let readers wait for a new version of a table that a long scan uses.

    Yields the connection id of the scan.
    """
    with _behind_a_scan(server, "InnoDB", FLUSH, FLUSH_WAITS, waiters) as holder:
        yield holder


@contextmanager
def flushes_among_short_reads(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Flush tables about once a second, while nothing uses them for long."""
    make_visits(server, "InnoDB")
    with (
        client_pool(server, "web", [[READ]] * clients),
        client_pool(server, "web", [[FLUSH]], FLUSH_PAUSE),
    ):
        yield
