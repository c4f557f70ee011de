# SPDX-License-Identifier: Apache-2.0
"""Stalls of many statements inside InnoDB, or before its door: its thread limit, index dives."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import load_program, running_statements, slap
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls import table_locks
from tests.support.stalls.pool import client_pool

__all__ = [
    "CONCURRENCY_OPTIONS",
    "DIVE_OPTIONS",
    "long_in_lists",
    "long_in_lists_of_a_pool",
    "reads_of_a_pool",
    "short_in_lists",
    "thread_concurrency",
]

CONCURRENCY_OPTIONS = ("--innodb-thread-concurrency=1",)
"""Options the server wants for this stall."""
DIVE_OPTIONS = ("--loose-eq-range-index-dive-limit=0",)
"""Options the server wants for this stall: MySQL 5.5 has no such limit."""

IN_QUEUE = re.compile(r"(\d+) queries inside InnoDB, (\d+) queries in queue")
COUNT = "SELECT COUNT(*) FROM visits"

DOUBLINGS = 16
ITEMS = (
    "CREATE DATABASE IF NOT EXISTS shelf",
    "DROP TABLE IF EXISTS shelf.items",
    # The optimizer estimates each range in each of the indexes; one of them is used.
    "CREATE TABLE shelf.items (id INT PRIMARY KEY AUTO_INCREMENT, k INT, a INT, b INT, c INT,"
    " KEY (k, a), KEY (k, b), KEY (k, c), KEY (k, a, b), KEY (k, a, c), KEY (k, b, a),"
    " KEY (k, b, c), KEY (k, c, a)) ENGINE=InnoDB",
    "INSERT INTO shelf.items (k, a, b, c) VALUES (FLOOR(RAND() * 1000000) * 2, 1, 2, 3)",
    *(
        "INSERT INTO shelf.items (k, a, b, c) SELECT FLOOR(RAND() * 1000000) * 2, 1, 2, 3"
        " FROM shelf.items",
    )
    * DOUBLINGS,
)
# MariaDB makes a table of 1000 values and more, and a join of that.
LONG_LIST, SHORT_LIST = 900, 5
LONG_PAUSE = 0.15
DIVING = (
    "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT c FROM items%'"
)


@contextmanager
def thread_concurrency(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Scan a table from more connections than may be inside InnoDB at a time."""
    table_locks.make_visits(server, "InnoDB")
    with running_statements(server, "web", [table_locks.SCAN] * connections):
        wait_until(lambda: _queued(server) >= connections // 2, "connections queue at the limit")
        yield


def _queued(server: SqlServer) -> int:
    (row,) = server.query("SHOW ENGINE INNODB STATUS")
    found = IN_QUEUE.search(str(row[2]))
    return int(found[2]) if found else 0


@contextmanager
def reads_of_a_pool(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Read from a pool of clients whose server has no limit."""
    table_locks.make_visits(server, "InnoDB")
    with client_pool(server, "web", [[table_locks.READ, COUNT]] * clients):
        yield


def in_list(randomness: random.Random, values: int) -> str:
    """Return a query with a list of values that few rows have."""
    numbers = ", ".join(str(randomness.randrange(1_000_000) * 2 + 1) for _ in range(values))
    return f"SELECT c FROM items WHERE k IN ({numbers})"


@contextmanager
def long_in_lists(server: SqlServer, connections: int = 16) -> Iterator[None]:
    """Run queries with thousands of values in an IN list from many connections."""
    server.execute(*ITEMS)
    query = in_list(random.Random(1), LONG_LIST)
    file = server.folder / "in-list.sql"
    file.write_text(query)
    before = server.status("Questions")
    load = slap(server, "shelf", file, concurrency=connections, queries=100_000_000)
    with load_program(
        server,
        load,
        "in-lists",
        lambda: (
            server.status("Questions") > before + connections
            and server.number(DIVING) >= connections // 2
        ),
        f"{connections} connections dive into indexes",
    ):
        yield


@contextmanager
def short_in_lists(server: SqlServer, clients: int = 8) -> Iterator[None]:
    """Run queries with few values from a pool of clients."""
    server.execute(*ITEMS)
    query = in_list(random.Random(1), SHORT_LIST)
    with client_pool(server, "shelf", [[query]] * clients):
        yield


@contextmanager
def long_in_lists_of_a_pool(server: SqlServer, clients: int = 8) -> Iterator[None]:
    """Run queries with many values, for which the server takes its statistics."""
    server.execute(*ITEMS)
    query = in_list(random.Random(1), LONG_LIST)
    with client_pool(server, "shelf", [[query]] * clients, LONG_PAUSE):
        yield
