# SPDX-License-Identifier: Apache-2.0
"""A data file that grows on a disk that has stopped answering."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import running_statements
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import wait_held_up
from tests.support.servers.waiting import wait_until
from tests.support.stalls.disk_load import PAUSE, loop_counted
from tests.support.stalls.processlist import running
from tests.support.stalls.redo_sync import Device

__all__ = ["FILE_EXTEND_OPTIONS", "file_extend", "quick_extend", "write_dirty_pages"]

FILE_EXTEND_OPTIONS = (
    "--innodb-file-per-table",
    # Without it the new pages go into the page cache, and only a sync waits for the device.
    "--innodb-flush-method=O_DIRECT",
    # Changes of pages go to the log buffer; none of it is to be written meanwhile, and no page.
    "--innodb-log-buffer-size=64M",
    "--skip-innodb-adaptive-flushing",
)
"""Options the server wants for this stall (later ones win)."""

# Two rows fill a page: each INSERT wants many pages more than its file has.
ROWS = 64
ROW = "(NULL, REPEAT('x', 7000))"
INSERT = f"INSERT INTO heap (id, v) VALUES {', '.join([ROW] * ROWS)}"


@contextmanager
def quick_extend(server: SqlServer, connections: int = 20) -> Iterator[None]:
    """Insert the same rows, two at a time and with pauses, on a disk that answers."""
    _make_heap(server)
    insert = f"INSERT INTO yard.heap (id, v) VALUES {ROW}, {ROW}{PAUSE}"
    with loop_counted(server, insert, connections, "Com_insert", 10 * connections, database="yard"):
        yield


@contextmanager
def file_extend(server: SqlServer, device: Device, connections: int = 20) -> Iterator[None]:
    """Insert large rows into one table of a server whose data is on ``device``.

    One connection extends the table's file; the others wait for the pages that it has latched.
    """
    _make_heap(server)
    server.execute(INSERT, database="yard")
    write_dirty_pages(server)
    with running_statements(server, "yard", [INSERT] * connections, after=device.freeze):
        try:
            wait_until(
                lambda: running(server, "INSERT") == connections,
                f"{connections} connections insert",
            )
            wait_held_up(server.pid)
            yield
        finally:
            device.thaw()


def _make_heap(server: SqlServer) -> None:
    server.execute(
        "CREATE DATABASE IF NOT EXISTS yard",
        "CREATE TABLE IF NOT EXISTS yard.heap (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(7000))"
        " ENGINE=InnoDB CHARACTER SET latin1",
    )


def write_dirty_pages(server: SqlServer) -> None:
    """Let the server write the pages that have changed.

    The table's first page is latched while it is written: on a disk that does not answer, the
    connection that is to extend the file would wait for that instead.
    """
    (before,) = server.query("SELECT @@GLOBAL.innodb_max_dirty_pages_pct")[0]
    server.execute("SET GLOBAL innodb_max_dirty_pages_pct = 0")
    wait_until(
        lambda: server.status("Innodb_buffer_pool_pages_dirty") == 0, "no page is to be written"
    )
    server.execute(f"SET GLOBAL innodb_max_dirty_pages_pct = {before}")
