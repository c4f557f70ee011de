# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL on disks that have stopped answering: its log, and a table that grows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.servers.child import program
from tests.support.servers.pgclients import bench, sessions_in
from tests.support.servers.postgres import Postgres
from tests.support.stalls.postgres_locks import running
from tests.support.stalls.redo_sync import Device

__all__ = [
    "WAL_SYNC_SETTINGS",
    "relation_extend",
    "relation_extend_fixed",
    "relation_extend_page",
    "wal_sync",
    "wal_sync_fixed",
]

WAL_SYNC_SETTINGS = ("fsync=on", "synchronous_commit=on")
INSERT = "INSERT INTO journal (v) VALUES (:client_id);"
JOURNAL = "CREATE TABLE journal (id serial, v int)"
LOG_WAITS = "lower(wait_event) IN ('walwrite', 'walsync')"


@contextmanager
def wal_sync(server: Postgres, device: Device, clients: int = 20) -> Iterator[None]:
    """Let commits wait for the log of a server whose log is on ``device``."""
    server.execute(JOURNAL, "INSERT INTO journal (v) VALUES (1)", "CHECKPOINT")
    device.freeze()
    with bench(
        server,
        INSERT,
        clients,
        lambda: sessions_in(server, LOG_WAITS) == clients,
        f"{clients} commits wait for the log",
        undo=device.thaw,
    ):
        yield


@contextmanager
def wal_sync_fixed(server: Postgres, clients: int = 20) -> Iterator[None]:
    """Commit as often as a quick disk can sync."""
    server.execute(JOURNAL)
    with running(server, clients, INSERT):
        yield


HEAP = "CREATE TABLE heap (v text) TABLESPACE {space}"
# Four rows fill a page: each INSERT wants many pages more than the table has.
LARGE_INSERT = "INSERT INTO heap SELECT repeat('x', 1800) FROM generate_series(1, {rows});"
EXTENDS = "lower(wait_event) IN ('extend', 'datafileextend', 'bufferio')"


@contextmanager
def relation_extend(server: Postgres, device: Device, clients: int = 20) -> Iterator[None]:
    """Insert large rows into one table, whose tablespace is on ``device``.

    No file can grow, as while a volume is copied. The others wait for the lock of the extension.
    """
    with _inserting_large(server, device, clients, device.freeze_files):
        yield


@contextmanager
def relation_extend_page(server: Postgres, device: Device, clients: int = 20) -> Iterator[None]:
    """Insert large rows into one table; the device does not answer when it writes a new page.

    The file has grown by then, so the others find its new page, and wait until it is written.
    """
    with _inserting_large(server, device, clients, device.freeze, synchronous=True):
        yield


@contextmanager
def _inserting_large(
    server: Postgres,
    device: Device,
    clients: int,
    freeze: Callable[[], None],
    *,
    synchronous: bool = False,
) -> Iterator[None]:
    folder = server.device_subfolder("heap")
    if synchronous:
        # Else the new pages go into the page cache, and no write waits for the device.
        subprocess.run([str(program("chattr")), "+S", str(folder)], check=True)
    server.execute(
        f"CREATE TABLESPACE slow LOCATION '{folder}'",
        HEAP.format(space="slow"),
        LARGE_INSERT.format(rows=100),
        "CHECKPOINT",
    )
    most = clients * 3 // 4
    freeze()
    with bench(
        server,
        LARGE_INSERT.format(rows=100),
        clients,
        lambda: sessions_in(server, EXTENDS) >= most,
        f"{most} wait until the table has grown",
        undo=device.thaw,
    ):
        yield


@contextmanager
def relation_extend_fixed(server: Postgres, clients: int = 20) -> Iterator[None]:
    """Insert such rows one by one into a table on a quick disk."""
    server.execute(HEAP.format(space="pg_default"))
    with running(server, clients, LARGE_INSERT.format(rows=1)):
        yield
