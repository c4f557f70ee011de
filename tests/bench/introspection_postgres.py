# SPDX-License-Identifier: Apache-2.0
"""Connections to PostgreSQL that know what they send, and what SQL says of them."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

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
from tests.bench.stats import BenchError
from tests.support.servers import Postgres

__all__ = ["Asking", "PostgresDialect", "options", "prepare"]

PORT = 5432
EXPECTED = frozenset({"55P03", "40P01", "25P02"})
"""lock_not_available, deadlock_detected, in_failed_sql_transaction."""
PROTOCOL = 3 << 16
LOOK = """\
SELECT pid, usename, client_addr, datname, backend_type, state, xact_start IS NOT NULL,
extract(epoch FROM clock_timestamp() - CASE WHEN state LIKE 'idle%' THEN state_change
ELSE query_start END), query, client_port FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"""


def options(address: str) -> tuple[str, ...]:
    """Return settings of a server that is also reached by TCP, at an address of its own."""
    return ("max_connections=400", f"listen_addresses={address}")


def prepare(server: Postgres) -> None:
    """Make users, databases and tables."""
    for user in USERS:
        server.execute(f"CREATE ROLE {user} SUPERUSER LOGIN")
    for name in SCHEMAS:
        server.execute(f"CREATE DATABASE {name}")
    with (server.folder / "data" / "pg_hba.conf").open("a") as file:
        file.write("host all all 127.0.0.0/8 trust\n")
    server.query("SELECT pg_reload_conf()")
    asking = Asking(server, database="shop")
    rows = ", ".join(f"({number}, 0, '')" for number in range(ROWS))
    for name in SCHEMAS:
        other = Asking(server, database=name)
        other.rows("CREATE SCHEMA shop")
        other.rows("CREATE TABLE shop.contended (id int PRIMARY KEY, v int, w text)")
        other.rows(f"INSERT INTO shop.contended VALUES {rows}")
        other.rows("CREATE TABLE shop.notes (id serial PRIMARY KEY, text text)")
        other.close()
    asking.close()


class ServerError(BenchError):
    """What the server says of a statement; ``code`` is its SQLSTATE."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Wire:
    """The protocol: one statement at a time, without a password."""

    def __init__(self, end: socket.socket, user: str, database: str) -> None:
        self._end = end
        self._file = end.makefile("rb")
        self.pid = 0
        self.status = b"I"
        """Idle, in a Transaction, or in one with an Error."""
        words = f"user\0{user}\0database\0{database}\0\0".encode()
        try:
            end.sendall(struct.pack("!ii", len(words) + 8, PROTOCOL) + words)
            self._answer()
        except BaseException:
            self.close()
            raise

    def run(self, sql: str) -> list[list[str | None]]:
        text = sql.encode() + b"\0"
        self._end.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
        return self._answer()

    def close(self) -> None:
        with suppress(OSError):
            self._end.sendall(b"X" + struct.pack("!i", 4))
        self._file.close()
        self._end.close()

    def cut(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> list[list[str | None]]:
        rows: list[list[str | None]] = []
        failure: ServerError | None = None
        while True:
            kind, body = self._message()
            if kind == b"D":
                rows.append(_row(body))
            elif kind == b"E":
                failure = _error(body)
                if not self.pid:
                    raise failure
            elif kind == b"K":
                (self.pid,) = struct.unpack_from("!i", body)
            elif kind == b"Z":
                self.status = body
                break
        if failure is not None:
            raise failure
        return rows

    def _message(self) -> tuple[bytes, bytes]:
        head = self._file.read(5)
        if len(head) < 5:
            raise ConnectionError("the server has closed the connection")
        (size,) = struct.unpack("!i", head[1:])
        return head[:1], self._file.read(size - 4)


def _row(body: bytes) -> list[str | None]:
    (count,) = struct.unpack_from("!h", body)
    at = 2
    found: list[str | None] = []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        found.append(None if size < 0 else body[at : at + size].decode(errors="replace"))
        at += max(size, 0)
    return found


def _error(body: bytes) -> ServerError:
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    return ServerError(fields.get(b"C", ""), fields.get(b"M", ""))


def _connect(server: Postgres, user: str, database: str, address: str, host: str | None) -> Wire:
    if host is None:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(str(server.folder / f".s.PGSQL.{PORT}"))
        except BaseException:
            end.close()
            raise
    else:
        end = socket.create_connection((address, PORT), source_address=(host, 0))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Wire(end, user, database)


class Asking:
    """The connection by which SQL is asked."""

    def __init__(self, server: Postgres, database: str = "postgres") -> None:
        self._wire = _connect(server, "postgres", database, "", None)

    def rows(self, sql: str) -> list[list[str | None]]:
        return self._wire.run(sql)

    def close(self) -> None:
        self._wire.close()

    def look(self) -> dict[int, Said]:
        """Return what SQL says of the backends of clients, but for the one that asks."""
        found = {}
        for pid, user, address, database, kind, state, transaction, age, query, port in self.rows(
            LOOK
        ):
            number = int(pid or 0)
            found[number] = Said(
                connection=number,
                tid=number,
                user=user,
                host=address or ("[local]" if port == "-1" else None),
                database=database,
                command=kind,
                state=state,
                statement=query or None,
                seconds=None if age is None else float(age),
                idle=state != "active",
                transaction=transaction == "t",
            )
        return found


class PostgresConnected:
    """A connection of a client."""

    def __init__(self, wire: Wire, place: Place, know: Callable[[Facts], None]) -> None:
        self._wire = wire
        self._place = place
        self._know = know
        self._sent: str | None = None
        self._set(answered=True)

    def run(self, sql: str) -> None:
        self._sent = sql
        self._set(answered=False)
        try:
            self._wire.run(sql)
        except ServerError as error:
            if error.code not in EXPECTED:
                raise
            self._set(answered=True)
            raise Refused from error
        self._set(answered=True)

    def use(self, database: str) -> None:
        """A connection has one database for all of its life."""

    def ping(self) -> None:
        """There is no command for it."""

    def close(self) -> None:
        self._wire.close()

    def cut(self) -> None:
        self._wire.cut()

    def _set(self, *, answered: bool) -> None:
        host = self._place.host or "[local]"
        self._know(Facts(self._wire.pid, self._place.user, host, self._sent, answered=answered))


class PostgresDialect:
    """PostgreSQL."""

    def __init__(self, server: Postgres, address: str) -> None:
        self._server = server
        self._address = address

    def connect(self, place: Place, know: Callable[[Facts], None]) -> PostgresConnected:
        wire = _connect(
            self._server, place.user, place.database or SCHEMAS[0], self._address, place.host
        )
        return PostgresConnected(wire, place, know)

    def statements(self, rng: random.Random, word: str) -> Sequence[str]:
        return (
            *common_statements(rng, word),
            f"SET application_name = '{word[:40]}'",
            f"SELECT count(*), '{word[:90]}' FROM generate_series(1, 20000)",
            f"SELECT repeat('{word[:50]}', 3000)",
        )

    def sleep(self, seconds: float, word: str) -> str:
        return f"SELECT pg_sleep({seconds}), '{word}'"

    def lock(self, number: int, seconds: int, word: str) -> str:
        return f"SELECT pg_advisory_lock({number}), '{word}'"

    def unlock(self, number: int) -> str:
        return f"SELECT pg_advisory_unlock({number})"

    def settings(self) -> Sequence[str]:
        return (f"SET lock_timeout = '{LOCK_SECONDS}s'",)
