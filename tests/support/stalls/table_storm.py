# SPDX-License-Identifier: Apache-2.0
"""Thousands of tables, a table cache that is too small, and everyone opening them."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.cache import cache_folder
from tests.support.servers.clients import load_program, slap
from tests.support.servers.mysql55 import MySQL55
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool

__all__ = [
    "TABLE_STORM_FIXED",
    "TABLE_STORM_OPTIONS",
    "create_tables",
    "open_table_reads",
    "table_open_storm",
    "template_of_tables",
]

TABLE_STORM_OPTIONS = ("--table-open-cache=64",)
"""Options the server wants for this stall."""
TABLE_STORM_FIXED = ("--table-open-cache=4000", "--table-definition-cache=4000")
"""Options the server wants for its twin: no table is ever closed."""

TABLES = 2000
QUERIES = 200
"""Per connection, over and over."""
COLUMNS = 200
"""The more there are, the longer opening takes."""
FLUSHES = 20
"""Of them, on the first connection."""
TABLES_PER_QUERY = 16
OPENED_FOR_SURE = 2000
QUERIES_PER_ROUND, PAUSE = 20, 0.25
"""Of the twin's clients."""


def create_tables(server: SqlServer, tables: int) -> None:
    """Make InnoDB tables tN with one row each."""
    server.execute("CREATE DATABASE IF NOT EXISTS many")
    have = len(server.query("SHOW TABLES FROM many"))
    columns = ", ".join(f"c{number} VARCHAR(40) DEFAULT 'nothing'" for number in range(COLUMNS))
    statements = []
    for number in range(have, tables):
        statements.append(f"CREATE TABLE t{number} (id INT PRIMARY KEY, {columns}) ENGINE=InnoDB")
        statements.append(f"INSERT INTO t{number} (id) VALUES ({number})")
    server.execute(*statements, database="many")


def template_of_tables() -> Path:
    """Return a data folder of MySQL 5.5.9 with the tables in it; it is made once and kept."""
    template = cache_folder() / f"mysql55-{TABLES}-tables-of-{COLUMNS}-columns"
    if not template.exists():
        with MySQL55() as server:
            create_tables(server, TABLES)
            server.shut_down()
            aside = Path(tempfile.mkdtemp(prefix="part-", dir=cache_folder()))
            shutil.copytree(server.data, aside / "data")
        with suppress(OSError):  # another run was faster
            (aside / "data").rename(template)
        shutil.rmtree(aside, ignore_errors=True)
    return template


def random_select(randomness: random.Random, tables: int) -> str:
    """Return a query that opens many tables, so that a connection does little else."""
    numbers = randomness.sample(range(tables), TABLES_PER_QUERY)
    return " UNION ALL ".join(f"SELECT id FROM t{number} WHERE id > 0" for number in numbers)


@contextmanager
def table_open_storm(
    server: SqlServer, tables: int = TABLES, connections: int = 64, seed: int = 1
) -> Iterator[None]:
    """Select from random tables, flushing all of them at intervals.

    Under MySQL 5.5 tables are opened one at a time under LOCK_open.
    """
    create_tables(server, tables)
    randomness = random.Random(seed)
    before = server.status("Opened_tables")
    with ExitStack() as stack:
        for number in range(connections):
            queries = [random_select(randomness, tables) for _ in range(QUERIES)]
            if number == 0:
                queries[:: QUERIES // FLUSHES] = ["FLUSH TABLES"] * FLUSHES
            file = server.folder / f"storm-{number}.sql"
            file.write_text(";".join(queries))
            load = slap(server, "many", file, concurrency=1, queries=100_000_000)
            stack.enter_context(
                load_program(server, load, f"storm-{number}", lambda: True, "a connection")
            )
        wait_until(
            lambda: (
                server.status("Opened_tables") > before + OPENED_FOR_SURE
                and server.in_state("Opening tables") >= connections // 3
            ),
            "tables are opened all the time",
        )
        yield


@contextmanager
def open_table_reads(
    server: SqlServer, tables: int = TABLES, clients: int = 8, seed: int = 1
) -> Iterator[None]:
    """Run the queries of the storm from a pool of clients, on tables that are all open."""
    create_tables(server, tables)
    server.execute(*(f"SELECT id FROM t{number}" for number in range(tables)), database="many")
    randomness = random.Random(seed)
    work = [
        [random_select(randomness, tables) for _ in range(QUERIES_PER_ROUND)]
        for _ in range(clients)
    ]
    with client_pool(server, "many", work, PAUSE):
        yield
