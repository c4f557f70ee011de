# SPDX-License-Identifier: Apache-2.0
"""Connections that do something to a server until they are asked to stop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql

from tests.support.servers.child import Child, program
from tests.support.servers.sql import Connection, SqlServer

__all__ = [
    "connection_id",
    "idle_connections",
    "load_program",
    "open_transaction",
    "running_statements",
    "slap",
]


def connection_id(connection: Connection[Any]) -> int:
    """Return the id that SHOW PROCESSLIST gives the connection."""
    return int(connection.thread_id())  # type: ignore[no-untyped-call]


def socket_of(connection: Connection[Any]) -> socket.socket:
    """Return the socket under a connection; PyMySQL has no public way to it."""
    inner = connection._sock  # type: ignore[attr-defined]
    if not isinstance(inner, socket.socket):
        raise OSError("closed already")
    return inner


@contextmanager
def idle_connections(server: SqlServer, count: int) -> Iterator[list[Connection[Any]]]:
    """Hold connections that do nothing."""
    connections: list[Connection[Any]] = []
    try:
        for _ in range(count):
            connections.append(server.connect())
        yield connections
    finally:
        for connection in connections:
            with suppress(pymysql.err.Error):
                connection.close()


@contextmanager
def open_transaction(server: SqlServer, database: str, *statements: str) -> Iterator[int]:
    """Hold a transaction that ran ``statements`` and sits idle; yield its connection id."""
    with idle_connections(server, 1) as (connection,):
        connection.select_db(database)
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
        server.wait_until_asleep(connection_id(connection))
        yield connection_id(connection)
        with suppress(pymysql.err.Error):  # a test of the stall may have killed it
            connection.rollback()


@contextmanager
def running_statements(
    server: SqlServer,
    database: str,
    statements: Sequence[str],
    after: Callable[[], object] = lambda: None,
) -> Iterator[list[int]]:
    """Run each statement on a connection of its own; yield the connection ids.

    Statements may block for as long as the block lasts; they are cut off at its end. ``after``
    is called when all are connected and none has run.
    """
    with idle_connections(server, len(statements)) as connections:
        threads = []
        for connection, statement in zip(connections, statements, strict=True):
            connection.select_db(database)
            threads.append(threading.Thread(target=_run, args=(connection, statement)))
        ids = [connection_id(connection) for connection in connections]
        after()
        for thread in threads:
            thread.start()
        try:
            yield ids
        finally:
            _kill(server, ids)
            for connection in connections:
                # The server is gone or hangs: the thread must still end its read.
                with suppress(OSError):
                    socket_of(connection).shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def _run(connection: Connection[Any], statement: str) -> None:
    with suppress(pymysql.err.Error, OSError), connection.cursor() as cursor:
        cursor.execute(statement)


def _kill(server: SqlServer, ids: Sequence[int]) -> None:
    with suppress(pymysql.err.Error):
        for number in ids:
            with suppress(pymysql.err.OperationalError):  # it has ended by itself
                server.execute(f"KILL {number}")


@contextmanager
def load_program(
    server: SqlServer, argv: Sequence[str], name: str, there: Callable[[], bool], what: str
) -> Iterator[Child]:
    """Run a load generator, from when ``there`` says that its load is there."""
    child = Child(argv, server.folder / f"{name}.log")
    try:
        child.wait_until(there, what)
        yield child
    finally:
        child.end()


def slap(
    server: SqlServer, database: str, query: str | Path, *, concurrency: int, queries: int
) -> list[str]:
    """Return the command line of mariadb-slap; a Path is a file with one query a line."""
    return [
        str(program("mariadb-slap")),
        "--no-defaults",
        f"--socket={server.socket}",
        "--user=root",
        "--silent",
        # MySQL 9.7 would have it make keys for each connection.
        "--skip-ssl",
        f"--create-schema={database}",
        "--no-drop",
        f"--concurrency={concurrency}",
        f"--number-of-queries={queries}",
        "--delimiter=;",
        f"--query={query}",
    ]
