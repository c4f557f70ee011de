# SPDX-License-Identifier: Apache-2.0
"""Clients with time to think: the load of an application whose server keeps up."""

from __future__ import annotations

import random
import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from tests.support.servers.clients import idle_connections
from tests.support.servers.sql import Connection, SqlServer
from tests.support.servers.waiting import wait_until

__all__ = ["client_pool"]

ROUNDS = 3
"""Of each client, until the load counts as there."""


@contextmanager
def client_pool(
    server: SqlServer,
    database: str,
    work: Sequence[Sequence[str]],
    pause: float = 0.05,
    may_fail: Container[int] = (),
) -> Iterator[None]:
    """Run each client's statements over and over, with ``pause`` seconds on average in between.

    Every client is a connection of its own. A statement that fails ends its client, and the block
    raises the error; codes of ``may_fail`` are part of the load.
    """
    with idle_connections(server, len(work)) as connections:
        clients = [
            _Client(number, connection, statements, pause, may_fail)
            for number, (connection, statements) in enumerate(zip(connections, work, strict=True))
        ]
        for connection in connections:
            connection.select_db(database)
        for client in clients:
            client.start()
        try:
            wait_until(
                lambda: all(client.failed or client.rounds >= ROUNDS for client in clients),
                f"{len(work)} clients run",
            )
            yield
        finally:
            for client in clients:
                client.ended.set()
            for client in clients:
                client.join()
        for client in clients:
            if client.failed is not None:
                raise client.failed


class _Client(threading.Thread):
    def __init__(
        self,
        number: int,
        connection: Connection[Any],
        statements: Sequence[str],
        pause: float,
        may_fail: Container[int],
    ) -> None:
        super().__init__()
        self.rounds = 0
        self.failed: pymysql.err.Error | None = None
        self.ended = threading.Event()
        self._connection = connection
        self._statements = statements
        self._pause = pause
        self._may_fail = may_fail
        # Clients that think equally long would come all at once.
        self._random = random.Random(number)

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                for statement in self._statements:
                    self._execute(statement)
                self.rounds += 1
                self.ended.wait(self._random.uniform(0, 2 * self._pause))
        except pymysql.err.Error as error:
            self.failed = error

    def _execute(self, statement: str) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
        except pymysql.err.Error as error:
            if error.args[0] not in self._may_fail:
                raise
