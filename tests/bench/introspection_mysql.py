# SPDX-License-Identifier: Apache-2.0
"""Connections to MySQL and MariaDB that record what they send, and what SQL says of them."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND, SERVER_STATUS

from tests.bench.introspection_clients import (
    LOCK_SECONDS,
    ROWS,
    SCHEMAS,
    USERS,
    Facts,
    Place,
    Refused,
    common_statements,
)
from tests.bench.introspection_compare import Said
from tests.support.servers import SqlServer
from tests.support.servers.clients import connection_id, socket_of

__all__ = ["MySQLDialect", "look", "options", "prepare", "strangers"]

if TYPE_CHECKING:
    _Connection = Connection[Any]
else:
    _Connection = Connection

LOCK_WAIT_TIMEOUT, DEADLOCK = 1205, 1213
UNAUTHENTICATED = "unauthenticated user"
NETWORK = frozenset(
    {"Reading from net", "Writing to net", "Receiving from client", "Sending to client"}
)
SETTLED = 2.0
"""Seconds of TIME from which on it says that nothing began in the last second."""

LOOKS = {
    "mysql97": """\
SELECT p.ID, t.THREAD_OS_ID, p.USER, p.HOST, p.DB, p.COMMAND, p.STATE, p.TIME, LEFT(p.INFO, 1024)
FROM information_schema.PROCESSLIST p
LEFT JOIN performance_schema.threads t ON t.PROCESSLIST_ID = p.ID""",
    "mysql55": """\
SELECT ID, NULL, USER, HOST, DB, COMMAND, STATE, TIME, LEFT(INFO, 1024)
FROM information_schema.PROCESSLIST""",
}
LOOK_OF_MARIADB = """\
SELECT ID, TID, USER, HOST, DB, COMMAND, STATE, TIME_MS / 1000, LEFT(INFO, 1024)
FROM information_schema.PROCESSLIST"""


@contextmanager
def strangers(port: int, count: int) -> Iterator[None]:
    """Hold connections that never say who they are."""
    with ExitStack() as stack:
        for _ in range(count):
            end = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            end.recv(1)  # the server has greeted: a thread waits for the answer
        yield


def options(port: int) -> tuple[str, ...]:
    """Return options of a server that is also reached by TCP, with hosts as their addresses."""
    return (
        "--skip-networking=0",
        "--bind-address=0.0.0.0",
        f"--port={port}",
        "--skip-name-resolve",
        "--connect-timeout=3600",
        "--max-connections=6000",
    )


def prepare(server: SqlServer) -> None:
    """Make users, schemas and tables."""
    rows = ", ".join(f"({number}, 0, '')" for number in range(ROWS))
    for name in SCHEMAS:
        server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    server.execute(
        "CREATE TABLE shop.contended (id INT PRIMARY KEY, v INT, w TEXT) ENGINE = InnoDB",
        f"INSERT INTO shop.contended VALUES {rows}",
        "CREATE TABLE shop.notes (id INT PRIMARY KEY AUTO_INCREMENT, text LONGTEXT)"
        " ENGINE = InnoDB",
        "CREATE PROCEDURE shop.nap(seconds DOUBLE, word TEXT) DO SLEEP(seconds)",
    )
    for user in USERS:
        for host in ("localhost", "%"):
            server.execute(
                f"CREATE USER '{user}'@'{host}'", f"GRANT ALL ON *.* TO '{user}'@'{host}'"
            )


def look(server: SqlServer) -> dict[int, Said]:
    """Return what SQL says of all connections but the one that asks."""
    asking = connection_id(server.control())
    sql = LOOKS.get(server.name, LOOK_OF_MARIADB)
    found = {}
    for number, tid, user, host, database, command, state, seconds, info in server.query(sql):
        if number == asking:
            continue
        known = user != UNAUTHENTICATED
        found[int(number)] = Said(
            connection=int(number),
            tid=int(tid) if tid else None,
            user=user if known and user else None,
            host=(host or "").partition(":")[0] or None,
            database=database or None,
            command=command or None,
            state=state or None,
            statement=info or None,
            # A connection that logs in has begun nothing.
            seconds=None if seconds is None or not known else float(seconds),
            idle=command == "Sleep",
            staged=state not in NETWORK,
            settled=not known or (seconds is not None and float(seconds) >= SETTLED),
        )
    return found


class Recording(_Connection):
    """A connection that says what is sent."""

    def __init__(self, report: Callable[[int, bytes], None], quiet: bool, **settings: Any) -> None:
        self._report = report
        self._quiet = quiet
        super().__init__(**settings)

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Send nothing where nothing was asked for: the handshake has said it."""
        if not self._quiet:
            super().set_character_set(charset, collation)

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        text = sql.encode() if isinstance(sql, str) else sql
        self._report(command, text)
        super()._execute_command(command, text)  # type: ignore[misc]


class MySQLConnected:
    """A connection of a client."""

    def __init__(
        self, server: SqlServer, port: int, place: Place, know: Callable[[Facts], None]
    ) -> None:
        self._know = know
        self._user, self._host = place.user, place.host or "localhost"
        self._facts: Facts | None = None
        self._sent: tuple[str | None, bool] = (None, True)
        self._inner = Recording(
            self._report,
            place.quiet,
            user=place.user,
            database=place.database,
            autocommit=None,
            charset="utf8mb4",
            ssl_disabled=True,
            defer_connect=True,
            host="127.0.0.1",
            port=port,
            bind_address=place.host,
        )
        if place.host is None:
            end = socket.socket(socket.AF_UNIX)
            end.connect(str(server.socket))
            self._inner.connect(end)
        else:
            self._inner.connect()
        self._number = connection_id(self._inner)
        self._answered()

    def run(self, sql: str) -> None:
        try:
            with self._inner.cursor() as cursor:
                cursor.execute(sql)
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (LOCK_WAIT_TIMEOUT, DEADLOCK):
                raise
            # The answer does not say whether the transaction is still open.
            self._answered(transaction=None)
            raise Refused from error
        self._answered()

    def begin(self, sql: str) -> None:
        """Send a statement whose end nobody waits for."""
        self._inner._execute_command(COMMAND.COM_QUERY, sql)

    def use(self, database: str) -> None:
        self._inner.select_db(database)
        self._answered()

    def ping(self) -> None:
        self._inner.ping(reconnect=False)
        self._answered()

    def close(self) -> None:
        self._inner.close()

    def cut(self) -> None:
        with suppress(OSError, AttributeError):
            socket_of(self._inner).shutdown(socket.SHUT_RDWR)

    @property
    def _in_transaction(self) -> bool:
        status = int(self._inner.server_status)  # type: ignore[attr-defined]
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def _report(self, command: int, text: bytes) -> None:
        if command == COMMAND.COM_QUERY:
            self._sent = (text.decode(), True)
        else:
            self._sent = (self._sent[0], False)
        if self._facts is not None:
            before = self._facts.transaction
            self._set(answered=False, transaction=before)

    def _answered(self, transaction: bool | None = False) -> None:
        self._set(answered=True, transaction=None if transaction is None else self._in_transaction)

    def _set(self, *, answered: bool, transaction: bool | None) -> None:
        statement, is_last = self._sent
        self._facts = Facts(
            self._number, self._user, self._host, statement, is_last, answered, transaction
        )
        self._know(self._facts)


class MySQLDialect:
    """MySQL and MariaDB."""

    def __init__(self, server: SqlServer, port: int) -> None:
        self._server = server
        self._port = port

    def connect(self, place: Place, know: Callable[[Facts], None]) -> MySQLConnected:
        return MySQLConnected(self._server, self._port, place, know)

    def statements(self, rng: random.Random, word: str) -> Sequence[str]:
        return (
            *common_statements(rng, word),
            f"SET @last = '{word}'",
            f"SHOW TABLES FROM shop LIKE '{word[:60]}'",
            f"SELECT BENCHMARK(20000, REVERSE('{word[:90]}'))",
            f"SELECT REPEAT('{word[:50]}', 3000)",
        )

    def sleep(self, seconds: float, word: str) -> str:
        if len(word) % 7 == 0:
            return f"CALL shop.nap({seconds}, '{word}')"
        return f"SELECT SLEEP({seconds}), '{word}'"

    def lock(self, number: int, seconds: int, word: str) -> str:
        return f"SELECT GET_LOCK('lock {number}', {seconds}), '{word}'"

    def unlock(self, number: int) -> str:
        return f"SELECT RELEASE_LOCK('lock {number}')"

    def settings(self) -> Sequence[str]:
        return (f"SET innodb_lock_wait_timeout = {LOCK_SECONDS}",)
