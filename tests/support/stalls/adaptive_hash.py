# SPDX-License-Identifier: Apache-2.0
"""A statement that keeps the latch of the adaptive hash index while it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool

__all__ = [
    "ADAPTIVE_HASH_FIXED",
    "ADAPTIVE_HASH_OPTIONS",
    "adaptive_hash",
    "reads_without_adaptive_hash",
]

# Ids without gaps: each reference finds its row.
ADAPTIVE_HASH_OPTIONS = ("--innodb-autoinc-lock-mode=0",)
"""Options the server wants for this stall."""
ADAPTIVE_HASH_FIXED = (*ADAPTIVE_HASH_OPTIONS, "--skip-innodb-adaptive-hash-index")
"""Options the server wants for the twin."""

DOUBLINGS = 16
REFERENCES, CHEAP = 64_000, 60_000
REFERENCE = f"1 + FLOOR(RAND() * {REFERENCES})"
TABLE = (
    "CREATE DATABASE IF NOT EXISTS links",
    "DROP TABLE IF EXISTS links.page",
    "CREATE TABLE links.page (id INT PRIMARY KEY AUTO_INCREMENT, ref INT, v CHAR(100), KEY (ref))"
    " ENGINE=InnoDB CHARACTER SET latin1",
    f"INSERT INTO links.page (ref, v) VALUES ({REFERENCE}, 'x')",
    *(f"INSERT INTO links.page (ref, v) SELECT {REFERENCE}, 'x' FROM links.page",) * DOUBLINGS,
)
JOIN = "SELECT COUNT(b.v) FROM page a JOIN page b ON b.id = a.ref"
WARM_UPS = 6
"""Joins until most pages are in the hash index."""
# A statement whose last 10,000 searches were hits keeps the latch from one row to the next. The
# expression stands for any that takes long, such as a function of the user's.
LONG = f"{JOIN} WHERE b.id < {CHEAP} OR BENCHMARK(1000000000, SHA1(b.v)) > 0"
KEPT = "holds adaptive hash latch"
WAITS_FOR_IT = "X-lock (wait_ex) on RW-latch"
UPDATES = 4
UPDATE = "UPDATE page SET v = 'y' WHERE id = {row}"
ROWS = 100
READ = f"{JOIN} WHERE a.id < 3000"
SHORT_READ = f"{JOIN} WHERE a.id < 100"
READ_ROWS = "Innodb_rows_read"
READING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info = %s"


def make_links(server: SqlServer) -> None:
    """Make the table, and search it until its pages are in the hash index."""
    server.execute(*TABLE)
    server.execute(*[JOIN] * WARM_UPS, database="links")


def updates(count: int) -> list[str]:
    """Return statements that update rows of different pages."""
    return [UPDATE.format(row=(number + 1) * ROWS) for number in range(count)]


@contextmanager
def adaptive_hash(server: SqlServer, readers: int = 20) -> Iterator[int]:
    """Let a statement keep the latch shared; an update wants it exclusively, and readers queue.

    Yields the connection id of the statement.
    """
    make_links(server)
    seen = [server.status(READ_ROWS)]

    def computes() -> bool:
        # It keeps the latch on its way there, too, and would give it up for an update.
        seen.append(server.status(READ_ROWS))
        return (
            seen[-1] == seen[-2] > seen[0] + CHEAP
            and seen[-1] == seen[-3]
            and KEPT in _status(server)
        )

    with running_statements(server, "links", [LONG]) as (holder,):
        wait_until(computes, "a statement keeps the latch and computes")
        with running_statements(server, "links", updates(UPDATES)):
            wait_until(lambda: WAITS_FOR_IT in _status(server), "an update waits for the latch")
            with running_statements(server, "links", [READ] * readers):
                wait_until(
                    lambda: server.number(READING, (READ,)) == readers,
                    f"{readers} connections read",
                )
                yield holder


def _status(server: SqlServer) -> str:
    return str(server.query("SHOW ENGINE INNODB STATUS")[0][2])


@contextmanager
def reads_without_adaptive_hash(server: SqlServer, clients: int = 20) -> Iterator[None]:
    """Read and update beside the same statement, which has no latch to keep."""
    make_links(server)
    work = [[SHORT_READ]] * (clients - UPDATES) + [[update] for update in updates(UPDATES)]
    with running_statements(server, "links", [LONG]), client_pool(server, "links", work):
        yield
