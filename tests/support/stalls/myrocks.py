# SPDX-License-Identifier: Apache-2.0
"""Stalls of MyRocks: a hot row, and writes that wait for a flush."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import load_program, open_transaction, running_statements, slap
from tests.support.servers.sql import SqlServer
from tests.support.servers.tasks import at_rest, wait_held_up
from tests.support.servers.waiting import wait_until
from tests.support.stalls.redo_sync import Device, inserting

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

UPDATE = "UPDATE t1 SET b = b + 1 WHERE a = 1"
HOT_ROW = (
    "CREATE DATABASE IF NOT EXISTS rows_",
    "CREATE TABLE rows_.t1 (a INT PRIMARY KEY, b BIGINT) ENGINE=ROCKSDB",
    "INSERT INTO rows_.t1 VALUES (1, 0), (2, 0)",
    # A row-lock wait must outlast the slowest of the backends.
    "SET GLOBAL rocksdb_lock_wait_timeout = 3600",
)
UPDATING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE t1 %'"
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
    with (
        open_transaction(server, "rows_", UPDATE) as holder,
        running_statements(server, "rows_", [UPDATE] * waiters),
    ):
        wait_until(lambda: int(server.query(UPDATING)[0][0]) >= waiters, f"{waiters} update")
        wait_until(lambda: at_rest(server.pid), "their threads sleep")
        yield holder


@contextmanager
def myrocks_row_lock_fixed(server: SqlServer, clients: int = 2) -> Iterator[None]:
    """Update a row in short transactions from few connections, beside an idle transaction."""
    server.execute(*HOT_ROW)
    load = slap(server, "rows_", UPDATE, concurrency=clients, queries=100_000_000)
    before = server.status("Com_update")
    with (
        open_transaction(server, "rows_", "UPDATE t1 SET b = 0 WHERE a = 2"),
        load_program(
            server, load, "updates", lambda: server.status("Com_update") > before + 100, "they run"
        ),
    ):
        yield


@contextmanager
def write_stall(server: SqlServer, device: Device, connections: int = 20) -> Iterator[None]:
    """Insert while a full memtable cannot be written to ``device``, until all writes stop."""
    server.execute(*YARD)
    load = slap(server, "yard", INSERT, concurrency=connections, queries=100_000_000)
    device.freeze()
    try:
        with load_program(
            server, load, "inserts", lambda: inserting(server) == connections, "they insert"
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
    load = slap(
        server,
        "yard",
        "INSERT INTO heap (v) VALUES ('x')",
        concurrency=connections,
        queries=100_000_000,
    )
    before = server.status("Com_insert")
    with load_program(
        server, load, "inserts", lambda: server.status("Com_insert") > before + 100, "they insert"
    ):
        yield
