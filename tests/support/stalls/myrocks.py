# SPDX-License-Identifier: Apache-2.0
"""Stalls of MyRocks: a hot row, and writes that wait for a flush."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import open_transaction
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import wait_held_up
from tests.support.servers.waiting import wait_until
from tests.support.stalls.disk_load import loop_counted, loop_statements
from tests.support.stalls.processlist import running
from tests.support.stalls.redo_sync import Device
from tests.support.stalls.row_locks import UPDATE, UPDATING, wait_for_row

__all__ = [
    "WRITE_STALL_OPTIONS",
    "myrocks_row_lock",
    "myrocks_row_lock_fixed",
    "write_stall",
    "write_stall_fixed",
]

WRITE_STALL_OPTIONS = (
    "--rocksdb-default-cf-options=write_buffer_size=1m;max_write_buffer_number=2",
    "--rocksdb-flush-log-at-trx-commit=0",
)
"""Two small memtables: when one is full and the other is not written, writes stop."""

HOT_ROW = (
    "CREATE DATABASE IF NOT EXISTS rows_",
    "CREATE TABLE rows_.t1 (a INT PRIMARY KEY, b BIGINT) ENGINE=ROCKSDB",
    "INSERT INTO rows_.t1 VALUES (1, 0), (2, 0)",
    # A row-lock wait must outlast the slowest of the backends.
    "SET GLOBAL rocksdb_lock_wait_timeout = 3600",
)
YARD = (
    "CREATE DATABASE IF NOT EXISTS yard",
    "CREATE TABLE yard.heap (id BIGINT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(7000)) ENGINE=ROCKSDB"
    " CHARACTER SET latin1",
)
INSERT = "INSERT INTO heap (v) VALUES (REPEAT('x', 7000))"


@contextmanager
def myrocks_row_lock(server: SqlServer, waiters: int = 20) -> Iterator[int]:
    """Let connections wait for a row of an idle transaction; yield that one's connection id."""
    server.execute(*HOT_ROW)
    with wait_for_row(server, waiters, UPDATING) as holder:
        yield holder


@contextmanager
def myrocks_row_lock_fixed(server: SqlServer, clients: int = 2) -> Iterator[None]:
    """Update a row in short transactions from few connections, beside an idle transaction."""
    server.execute(*HOT_ROW)
    with (
        open_transaction(server, "rows_", "UPDATE t1 SET b = 0 WHERE a = 2"),
        loop_counted(server, UPDATE, clients, "Com_update", 100, database="rows_"),
    ):
        yield


@contextmanager
def write_stall(server: SqlServer, device: Device, connections: int = 20) -> Iterator[None]:
    """Insert while a full memtable cannot be written to ``device``, until all writes stop."""
    server.execute(*YARD)
    device.freeze()
    try:
        with loop_statements(
            server,
            INSERT,
            connections,
            lambda: running(server, "INSERT") == connections,
            "they insert",
            database="yard",
        ):
            try:
                wait_until(lambda: _stops(server) > 0, "writes are stopped")
                wait_held_up(server.pid)
                yield
            finally:
                device.thaw()
    finally:
        device.thaw()


def _stops(server: SqlServer) -> int:
    return server.status("rocksdb_stall_total_stops")


@contextmanager
def write_stall_fixed(server: SqlServer, connections: int = 2) -> Iterator[None]:
    """Insert from few connections, into memtables that are written to a quick disk."""
    server.execute(*YARD)
    insert = "INSERT INTO heap (v) VALUES ('x')"
    with loop_counted(server, insert, connections, "Com_insert", 100, database="yard"):
        yield
