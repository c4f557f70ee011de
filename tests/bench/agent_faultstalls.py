# SPDX-License-Identifier: Apache-2.0
"""Stalls whose clients are the bench's own: it knows when each began to wait, and when it stopped.

An idle transaction holds a table, an ALTER TABLE waits for it, and SELECTs wait behind that.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import pymysql

from tests.bench.agent_faultreferee import Span
from tests.support.servers import PATIENCE, Child, Postgres, SqlServer, wait_until
from tests.support.servers.pgclients import idle_transactions, lock_waits
from tests.support.servers.sql import Connection

__all__ = ["Clients", "LockStall", "PostgresStall", "Stall", "prepare"]

CLIENTS = 5
"""That wait: one ALTER TABLE, the others SELECT. The default trigger has three in mind."""
COUNTED = 3
"""The stall begins when so many wait."""
TABLE = (
    "CREATE DATABASE IF NOT EXISTS paged",
    "CREATE TABLE IF NOT EXISTS paged.orders (id INT PRIMARY KEY) ENGINE=InnoDB",
)
READ = "SELECT COUNT(*) FROM paged.orders"
ALTER = "ALTER TABLE paged.orders COMMENT = 'paged'"
WAITS = "Waiting for table metadata lock"


class Stall(Protocol):
    """One stall: ``begin`` returns when clients wait, ``finish`` when none does."""

    def begin(self) -> None: ...

    def finish(self) -> Span:
        """End it; return from when to when clients waited."""


def prepare(server: SqlServer | Postgres) -> None:
    """Make the table, once for each server."""
    if isinstance(server, SqlServer):
        server.execute(*TABLE)
    else:
        server.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)")


class Clients:
    """Clients of a server, each in a thread, with the times of its statement."""

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._connections: list[Connection[Any]] = []
        self._threads: list[threading.Thread] = []
        self._locked = threading.Lock()
        self.begun: list[float] = []
        self.returned: list[float] = []

    def connect(self, count: int) -> None:
        """Connect so many, before anything waits."""
        self._connections += [self._server.connect() for _ in range(count)]

    def run(self, statement: str, count: int = 1) -> None:
        """Run a statement by clients that are connected, and idle."""
        for _ in range(count):
            connection = self._connections[len(self._threads)]
            thread = threading.Thread(target=self._run, args=(connection, statement))
            self._threads.append(thread)
            thread.start()

    def join(self) -> float:
        """Wait until each has its answer, or has lost its server; return when that was."""
        for thread in self._threads:
            thread.join(PATIENCE)
        for connection in self._connections:
            with suppress(pymysql.err.Error, OSError):
                connection.close()
        return max(self.returned)

    def _run(self, connection: Connection[Any], statement: str) -> None:
        with self._locked:
            self.begun.append(time.monotonic())
        with (
            suppress(pymysql.err.Error, OSError, ValueError),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
        with self._locked:
            self.returned.append(time.monotonic())


class LockStall:
    """Statements wait for a table's metadata lock."""

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._clients = Clients(server)
        self._holder: Connection[Any] | None = None

    def begin(self) -> None:
        server, clients = self._server, self._clients
        self._holder = server.connect()
        clients.connect(CLIENTS)
        with self._holder.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(READ)
        clients.run(ALTER)
        wait_until(lambda: server.in_state(WAITS) == 1, "ALTER TABLE waits")
        clients.run(READ, CLIENTS - 1)
        wait_until(lambda: server.in_state(WAITS) == CLIENTS, "all clients wait")

    def finish(self) -> Span:
        assert self._holder is not None
        with suppress(pymysql.err.Error, OSError):  # the server may have ended
            self._holder.rollback()
        over = self._clients.join()
        with suppress(pymysql.err.Error, OSError):
            self._holder.close()
        return Span(sorted(self._clients.begun)[COUNTED - 1], over)


class PostgresStall:
    """The same in PostgreSQL, whose clients are processes."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._stack = ExitStack()
        self._waiting: list[Child] = []
        self._begun = 0.0

    def begin(self) -> None:
        held = idle_transactions(self._server, ["BEGIN", "SELECT count(*) FROM orders"])
        self._stack.enter_context(held)
        self._start("BEGIN; LOCK TABLE orders", 1)
        wait_until(lambda: lock_waits(self._server) == 1, "one waits for the table")
        self._start("SELECT count(*) FROM orders", 2 * CLIENTS)
        self._begun = time.monotonic()
        wait_until(
            lambda: lock_waits(self._server) == len(self._waiting), "all clients of PostgreSQL wait"
        )

    def finish(self) -> Span:
        self._stack.close()
        for child in self._waiting:
            child.wait()
        return Span(self._begun, time.monotonic())

    def _start(self, sql: str, count: int) -> None:
        log = Path(self._server.folder) / "clients.log"
        self._waiting += [Child(self._server.psql(sql), log) for _ in range(count)]
