# SPDX-License-Identifier: Apache-2.0
"""DROP and TRUNCATE TABLE on a disk that does not answer, and statistics that take long."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.child import program
from tests.support.servers.clients import running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import wait_held_up
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.support.stalls.file_extend import write_dirty_pages
from tests.support.stalls.pool import client_pool
from tests.support.stalls.processlist import running
from tests.support.stalls.redo_sync import Device

__all__ = ["DROP", "DROP_OPTIONS", "TRUNCATE", "ddl_on_a_hung_disk", "ddl_on_a_quick_disk"]

DROP_OPTIONS = ("--innodb-file-per-table",)
"""Options the server wants for these stalls."""

DOUBLINGS = 8
SMALL_TABLES = 20
DROP = "DROP TABLE old"
TRUNCATE = "TRUNCATE TABLE old"
CREATE_OLD = (
    "CREATE TABLE old (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(7000))"
    " ENGINE=InnoDB CHARACTER SET latin1"
)
FILL_OLD = (
    "INSERT INTO old (v) VALUES (REPEAT('x', 7000))",
    *("INSERT INTO old (v) SELECT v FROM old",) * DOUBLINGS,
)
READS = [f"SELECT COUNT(*) FROM small{number}" for number in range(SMALL_TABLES)]


def make_attic(server: SqlServer) -> None:
    """Make a table to drop, and small ones beside it."""
    server.execute("CREATE DATABASE attic")
    server.execute(
        CREATE_OLD,
        *FILL_OLD,
        *(
            f"CREATE TABLE small{number} (id INT PRIMARY KEY) ENGINE=InnoDB"
            for number in range(SMALL_TABLES)
        ),
        database="attic",
    )


@contextmanager
def ddl_on_a_hung_disk(server: SqlServer, device: Device, ddl: str) -> Iterator[None]:
    """Drop or truncate a table of a server whose disk, ``device``, stops answering.

    Others open tables meanwhile, for which InnoDB's dictionary must not be locked.
    """
    make_attic(server)
    # The readers are to wait for the dictionary, and the statement for the file it removes: neither
    # for a definition that is still to be read, nor for a page that is just written.
    server.execute(*READS, "FLUSH TABLES", database="attic")
    write_dirty_pages(server)
    # A file system removes a file in its journal, and says so before it has written that. Where
    # the journal is full, or this attribute is set, it says so afterwards.
    subprocess.run(
        [str(program("chattr")), "+D", str(server.data / "attic")],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    with running_statements(server, "attic", [ddl], after=device.freeze):
        try:
            wait_until(lambda: running(server, ddl) == 1, f"{ddl} runs")
            wait_held_up(server.pid)
            with running_statements(server, "attic", READS):
                try:
                    wait_until(
                        lambda: running(server, "SELECT COUNT") == len(READS),
                        f"{len(READS)} connections open tables",
                    )
                    wait_held_up(server.pid)
                    yield
                finally:
                    device.thaw()
        finally:
            device.thaw()


@contextmanager
def ddl_on_a_quick_disk(server: SqlServer) -> Iterator[None]:
    """Drop, truncate and fill a table about once a second, while clients read others."""
    make_attic(server)
    with (
        client_pool(server, "attic", [[read] for read in READS]),
        client_pool(
            server, "attic", [(TRUNCATE, *FILL_OLD[:5], DROP, CREATE_OLD, FILL_OLD[0])], 1.0
        ),
    ):
        yield
