# SPDX-License-Identifier: Apache-2.0
"""Statements that wait for the log of Aria."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.sql import SqlServer
from tests.support.stalls.disk_load import loop_counted
from tests.support.stalls.redo_sync import Device, held_up_inserts

__all__ = ["aria_log_sync", "aria_log_sync_fixed"]

TABLE = "(id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=Aria TRANSACTIONAL=1"


def _make_tables(server: SqlServer, count: int) -> list[str]:
    """Make a table for each connection: the lock of one would be waited for as well."""
    tables = [f"diary.page{number}" for number in range(count)]
    server.execute(
        "CREATE DATABASE diary",
        *(f"CREATE TABLE {table} {TABLE}" for table in tables),
        *(f"INSERT INTO {table} VALUES (NULL)" for table in tables),
    )
    return tables


@contextmanager
def aria_log_sync(server: SqlServer, device: Device, connections: int = 20) -> Iterator[None]:
    """Let statements wait for the log of a server whose data is on ``device``."""
    tables = _make_tables(server, connections)
    inserts = [f"INSERT INTO {table} VALUES (NULL)" for table in tables]
    with held_up_inserts(server, device, "diary", inserts):
        yield


@contextmanager
def aria_log_sync_fixed(server: SqlServer, connections: int = 2) -> Iterator[None]:
    """Insert from a pool of few connections, with the log on a quick disk."""
    (table, *_) = _make_tables(server, 1)
    insert = f"INSERT INTO {table} VALUES (NULL)"
    with loop_counted(server, insert, connections, "Com_insert", 100, database="diary"):
        yield
