# SPDX-License-Identifier: Apache-2.0
"""Deadlocks between two connections, a known number of them."""

from __future__ import annotations

import threading
from typing import Any

import pymysql

from tests.support.servers.clients import connection_id, idle_connections
from tests.support.servers.sql import Connection, SqlServer

__all__ = ["Deadlocks"]

ER_LOCK_DEADLOCK = 1213
TABLE = (
    "CREATE DATABASE IF NOT EXISTS deadlocks_",
    "CREATE TABLE IF NOT EXISTS deadlocks_.t (a INT PRIMARY KEY, b VARCHAR(40)) ENGINE=InnoDB",
    "REPLACE INTO deadlocks_.t VALUES (1, ''), (2, '')",
)
UPDATE = "UPDATE t SET b = '{mark}' WHERE a = {row}"


class Deadlocks:
    """Two connections that lock two rows, each in its own order.

    Of each deadlock one connection is rolled back; ``mark`` is a literal in the statements.
    """

    def __init__(self, server: SqlServer, mark: str = "SECRET") -> None:
        self._server = server
        self._mark = mark
        server.execute(*TABLE)

    def make(self, count: int) -> frozenset[int]:
        """Make so many, one after the other; return the ids of the two connections."""
        with idle_connections(self._server, 2) as (one, two):
            for connection in (one, two):
                connection.select_db("deadlocks_")
            for _ in range(count):
                self._one(one, two)
            return frozenset({connection_id(one), connection_id(two)})

    def _one(self, one: Connection[Any], two: Connection[Any]) -> None:
        for connection in (one, two):
            connection.begin()
        self._update(one, 1)
        self._update(two, 2)
        failed: list[bool] = []
        # Whichever comes second closes the circle: nobody has to wait for the other to wait.
        other = threading.Thread(target=lambda: failed.append(self._fails(one, 2)))
        other.start()
        failed.append(self._fails(two, 1))
        other.join()
        assert sorted(failed) == [False, True], failed
        for connection in (one, two):
            connection.rollback()

    def _update(self, connection: Connection[Any], row: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(UPDATE.format(mark=self._mark, row=row))

    def _fails(self, connection: Connection[Any], row: int) -> bool:
        """Return whether it was the victim; the other one gets the row then."""
        try:
            self._update(connection, row)
        except pymysql.err.OperationalError as error:
            if error.args[0] != ER_LOCK_DEADLOCK:
                raise
            return True
        return False
