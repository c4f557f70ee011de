# SPDX-License-Identifier: Apache-2.0
"""Statistics that are sampled all the time, from an index larger than the buffer pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import load_program, slap
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.page_io import SMALL_POOL
from tests.support.stalls.pool import client_pool

__all__ = [
    "TABLE_STATS_FIXED",
    "TABLE_STATS_OPTIONS",
    "few_samples",
    "table_stats",
]

TABLE_STATS_OPTIONS = (*SMALL_POOL, "--innodb-stats-sample-pages=100000")
"""Options the server wants for this stall: it reads each page of each index."""
TABLE_STATS_FIXED = (*SMALL_POOL, "--innodb-stats-sample-pages=8")
"""Options the server wants for the twin."""

DOUBLINGS = 16
TEXT = "LPAD(@n := @n + 1, 200, '0')"
TABLE = (
    "CREATE DATABASE IF NOT EXISTS census",
    "DROP TABLE IF EXISTS census.people",
    "CREATE TABLE census.people (id INT PRIMARY KEY AUTO_INCREMENT, name CHAR(200), KEY (name),"
    " KEY (name, id)) ENGINE=InnoDB CHARACTER SET latin1",
    # In the order of the index, so that its pages are written once.
    "SET @n = 0",
    f"INSERT INTO census.people (name) VALUES ({TEXT})",
    *(f"INSERT INTO census.people (name) SELECT {TEXT} FROM census.people",) * DOUBLINGS,
)
ANALYZE = "ANALYZE TABLE people"
READ = "SELECT name FROM people WHERE id = 1 OR id = 2"
READING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT name%'"


@contextmanager
def table_stats(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Analyze a table over and over, while others read it.

    Each of their statements asks for the number of rows, and waits for the statistics.
    """
    server.execute(*TABLE)
    analyze = slap(server, "census", ANALYZE, concurrency=1, queries=100_000_000)
    reads = slap(server, "census", READ, concurrency=connections, queries=100_000_000)
    with (
        load_program(server, analyze, "analyze", lambda: True, "ANALYZE TABLE"),
        load_program(server, reads, "reads", lambda: True, "reads"),
    ):
        wait_until(
            lambda: server.number(READING) >= connections * 3 // 4,
            f"{connections} connections read",
        )
        yield


@contextmanager
def few_samples(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Analyze a table about once a second, from a few pages, while others read it."""
    server.execute(*TABLE)
    with (
        client_pool(server, "census", [[READ]] * clients),
        client_pool(server, "census", [[ANALYZE]], 1.0),
    ):
        yield
