# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of data pages on a disk that serves few requests a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.servers.clients import load_program, slap
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.disk_load import (
    PAUSE,
    READ,
    ROWS,
    UPDATE,
    fill_pages,
    loop_counted,
    loop_statements,
)
from tests.support.stalls.processlist import running
from tests.support.stalls.redo_sync import Device
from tests.support.stalls.slow_device import slow_device

__all__ = ["SMALL_POOL", "page_reads", "page_updates", "quick", "scans"]

SMALL_POOL = (
    "--innodb-buffer-pool-size=8M",
    # Without it the page cache answers the reads, at once.
    "--innodb-flush-method=O_DIRECT",
)
"""Options of a server whose table is eight times its buffer pool."""
REQUESTS = 40
"""A second: a slow disk, or the limit of a cloud volume that is used up."""
SCANS = 20
SCANNED = 4 << 20
"""Bytes a second. A limit of requests would let most scans read their first pages, which no
read-ahead asked for, one by one."""
AHEAD = 64
"""Pages that a scan asks for at a time."""


@contextmanager
def page_reads(server: SqlServer, device: Device, connections: int = 20) -> Iterator[None]:
    """Read rows at random places."""
    with _loop(server, device, READ, connections, reads=REQUESTS):
        yield


@contextmanager
def scans(server: SqlServer, device: Device) -> Iterator[None]:
    """Scan tables, each in a connection of its own, so that none reads what another has read."""
    fill_pages(server)
    tables = [f"scan{number}" for number in range(SCANS)]
    for table in tables:
        server.execute(
            f"CREATE TABLE {table} LIKE pages",
            f"INSERT INTO {table} SELECT * FROM pages LIMIT {ROWS // 4}",
            database="disk",
        )
    ahead = server.status("Innodb_buffer_pool_read_ahead")
    with ExitStack() as stack:
        for table in tables:
            scan = f"SELECT SUM(LENGTH(v)) FROM {table}"
            load = slap(server, "disk", scan, concurrency=1, queries=100_000_000)
            stack.enter_context(load_program(server, load, table, lambda: True, "a connection"))
        wait_until(
            lambda: server.status("Innodb_buffer_pool_read_ahead") > ahead + AHEAD * SCANS,
            "scans read ahead",
        )
        # Before, it would take long until each has read the first pages, which it does one by one.
        with slow_device(server, device, read_bytes=SCANNED):
            wait_until(lambda: running(server, "SELECT") == SCANS, "all scans wait")
            yield


@contextmanager
def page_updates(server: SqlServer, device: Device, connections: int = 20) -> Iterator[None]:
    """Change rows at random places."""
    with _loop(server, device, UPDATE, connections, writes=REQUESTS):
        yield


@contextmanager
def _loop(
    server: SqlServer,
    device: Device,
    statements: str,
    connections: int,
    *,
    reads: int | None = None,
    writes: int | None = None,
) -> Iterator[None]:
    fill_pages(server)
    verb = "UPDATE" if statements == UPDATE else "SELECT"
    with (
        slow_device(server, device, reads=reads, writes=writes),
        loop_statements(
            server,
            statements,
            connections,
            lambda: running(server, verb) >= connections * 3 // 4,
            f"{connections} connections wait in their {verb}",
        ),
    ):
        yield


@contextmanager
def quick(server: SqlServer, statements: str, connections: int = 20) -> Iterator[None]:
    """Run the same statements with pauses, on a server and a disk that are good for them."""
    fill_pages(server)
    with loop_counted(server, statements + PAUSE, connections, "Questions", 30 * connections):
        yield
