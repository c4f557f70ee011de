# SPDX-License-Identifier: Apache-2.0
"""Page splits in an index larger than the buffer pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import load_program, slap
from tests.support.servers.sql import SqlServer

__all__ = ["INDEX_LOCK_OPTIONS", "fill", "index_lock"]

INDEX_LOCK_OPTIONS = (
    "--innodb-buffer-pool-size=8M",
    # Without it the page cache answers the reads, at once.
    "--innodb-flush-method=O_DIRECT",
    "--innodb-log-file-size=64M",
    # To 5.5 statements sample the table's pages under way, and others wait for that: another stall.
    "--loose-innodb-stats-sample-pages=1",
)
"""Options the server wants for this stall (later ones win)."""

# Two rows fill a page, so that every other insert splits one.
INSERT = "INSERT IGNORE INTO fat VALUES (FLOOR(RAND() * 2000000000), REPEAT(MD5(RAND()), 218))"
DOUBLE = INSERT.replace("VALUES (", "SELECT ").removesuffix(")") + " FROM fat"
DOUBLINGS = 12
INSERTED = "Com_insert"
INSERTING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'INSERT%'"


def fill(server: SqlServer) -> None:
    """Make the table, larger than the buffer pool; where it is there, nothing is done."""
    server.execute(
        "CREATE DATABASE IF NOT EXISTS fat",
        "CREATE TABLE IF NOT EXISTS fat.fat (id INT PRIMARY KEY, v VARCHAR(7000))"
        " ENGINE=InnoDB CHARACTER SET latin1",
    )
    if not server.query("SELECT id FROM fat.fat LIMIT 1"):
        server.execute(INSERT, *[DOUBLE] * DOUBLINGS, database="fat")


@contextmanager
def index_lock(server: SqlServer, connections: int = 40) -> Iterator[None]:
    """Insert rows of 7 KB at random places from many connections.

    A split holds the index's lock in X mode while it reads pages from the device.
    """
    fill(server)
    inserted = server.status(INSERTED)
    load = slap(server, "fat", INSERT, concurrency=connections, queries=100_000_000)
    with load_program(
        server,
        load,
        "inserts",
        lambda: (
            server.status(INSERTED) > inserted + connections
            and server.number(INSERTING) >= connections * 3 // 4
        ),
        f"{connections} connections insert",
    ):
        yield
