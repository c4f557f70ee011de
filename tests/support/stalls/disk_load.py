# SPDX-License-Identifier: Apache-2.0
"""Loads that need the disk: commits, reads and changes of pages at random places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.servers.clients import load_program, slap
from tests.support.servers.sql import SqlServer

__all__ = [
    "COMMIT",
    "PAUSE",
    "READ",
    "ROWS",
    "SCAN",
    "UPDATE",
    "fill_pages",
    "loop_counted",
    "loop_statements",
    "make_log",
]

DOUBLINGS = 13
ROWS = 1 << DOUBLINGS
"""Two fill a page: 64 MB."""
# MySQL 9.7 has no MD5().
V = "REPEAT(LEFT(RAND(), 10), 698)"
# A variable is a constant to the optimizer, and RAND() in a condition is not.
PICK = f"SET @id = 1 + FLOOR(RAND() * {ROWS})"
READ = f"{PICK}; SELECT LENGTH(v) FROM pages WHERE id = @id"
UPDATE = f"{PICK}; UPDATE pages SET v = {V} WHERE id = @id"
SCAN = "SELECT SUM(LENGTH(v)) FROM pages"
COMMIT = "INSERT INTO log VALUES ()"
PAUSE = "; DO SLEEP(0.1)"
"""Behind a statement: what its client needs until the next one. Many clients are no load then."""


def fill_pages(server: SqlServer) -> None:
    """Make a table of rows that are half a page each; pages of it are then read and changed."""
    server.execute("CREATE DATABASE IF NOT EXISTS disk")
    server.execute(
        "CREATE TABLE pages (id INT PRIMARY KEY, v VARCHAR(7000))"
        " ENGINE=InnoDB CHARACTER SET latin1",
        f"INSERT INTO pages VALUES (1, {V})",
        *(
            f"INSERT INTO pages SELECT id + {1 << power}, {V} FROM pages"
            for power in range(DOUBLINGS)
        ),
        database="disk",
    )


def make_log(server: SqlServer) -> None:
    """Make the table that ``COMMIT`` inserts into."""
    server.execute(
        "CREATE DATABASE IF NOT EXISTS disk",
        "CREATE TABLE disk.log (id INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB",
    )


@contextmanager
def loop_statements(
    server: SqlServer,
    statements: str,
    connections: int,
    there: Callable[[], bool],
    what: str,
    *,
    database: str = "disk",
) -> Iterator[None]:
    """Run statements over and over on so many connections, from when ``there`` is true."""
    load = slap(server, database, statements, concurrency=connections, queries=100_000_000)
    with load_program(server, load, "load", there, what):
        yield


@contextmanager
def loop_counted(
    server: SqlServer,
    statements: str,
    connections: int,
    counter: str,
    least: int,
    *,
    database: str = "disk",
) -> Iterator[None]:
    """Run statements over and over, from when the server's ``counter`` has grown by ``least``."""
    before = server.status(counter)
    with loop_statements(
        server,
        statements,
        connections,
        lambda: server.status(counter) > before + least,
        f"{connections} connections run",
        database=database,
    ):
        yield
