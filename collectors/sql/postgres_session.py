# SPDX-License-Identifier: Apache-2.0
"""A session with a PostgreSQL, which a child process holds (postgres_child.py)."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Callable

import msgspec

from stallscope.base import extras
from stallscope.base.package import module_command
from stallscope.base.text import one_line
from stallscope.collectors.paths import asking
from stallscope.collectors.programs import reap
from stallscope.collectors.sql.asking import ServerConnection
from stallscope.collectors.sql.failures import (
    ConnectError,
    LateError,
    RefusedError,
    StatementError,
)
from stallscope.collectors.sql.postgres_login import PostgresLogin
from stallscope.collectors.sql.postgres_messages import (
    MAX_LINE,
    Answer,
    Failed,
    Hello,
    Opened,
    Query,
    Reply,
)
from stallscope.collectors.sql.retries import LoginRetries
from stallscope.collectors.sql.versions import ServerFacts, ServerVersion

__all__ = ["PostgresConnection", "PostgresSession"]

CHILD = "stallscope.collectors.sql.postgres_child"
END_SECONDS = 1.0
_PIECE = 1 << 16
_MAX_WORDS = 1 << 16
_LEAST_VERSION = 10
_REFUSED = re.compile(
    r"pg_hba\.conf|authentication failed|asks for a password|does not exist|not permitted to log in"
    r"|permission denied for database|is not currently accepting connections",
)
"""The account or its database is refused; another failure may be over in a second."""
_FULL = re.compile(r"too many clients already|connection slots are reserved")
"""libpq gives no SQLSTATE of a refused login, only the server's words (53300)."""
_PREFIX = re.compile(
    r'connection to server (?:on socket "[^"]*"|at "[^"]*"(?: \([^)]*\))?, port \d+) failed: '
    r"(?:FATAL: +)?"
)
"""What libpq puts before the server's words."""
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class PostgresSession:
    """An open session, used by one thread at a time."""

    beat = "SELECT 1"
    """The simplest of all statements."""

    def __init__(self, link: _Child, opened: Opened, database: str | None) -> None:
        self._link = link
        self.role = opened.role
        self.database = database
        """The one that it is in; None: a service says it."""
        self.facts = ServerFacts(
            version=_version(opened.version),
            connection=opened.backend,
            listener_pid=opened.listener,
            role=opened.role,
        )
        self.wanted: Callable[[], bool] = lambda: True
        self.sent = 0

    @property
    def version(self) -> ServerVersion:
        return self.facts.version

    def select(
        self, sql: str, *, max_rows: int = 10_000, database: str | None = None
    ) -> list[list[str | None]]:
        """Return the rows of one statement, each value a text. ``database``: the one to ask on a
        connection of its own.

        Raises: StatementError where the server refuses it, ConnectError where the connection ended.
        """
        if not self.wanted():
            raise LateError("the query was aborted")
        self.sent += 1
        reply = self._link.ask(Query(sql, max_rows, database))
        if isinstance(reply, Answer):
            return reply.rows
        if isinstance(reply, Failed) and not reply.lost:
            state = f" ({reply.state})" if reply.state else ""
            raise StatementError(f"the server refused{state}: {self._link.shown(reply.text)}", 0)
        said = self._link.shown(reply.text) if isinstance(reply, Failed) else "out of turn"
        raise ConnectError(f"the connection ended: {said}")

    def run(self, sql: str) -> None:
        """Run a statement whose rows are not wanted."""
        self.select(sql, max_rows=0)

    def quit(self) -> None:
        """End the session; the child says so to the server."""
        self._link.close()

    def drop(self) -> None:
        """The same: a child that waits for the server ends without a message."""
        self._link.close()


class PostgresConnection(ServerConnection[PostgresSession]):
    """A connection by a login of PostgreSQL."""

    def __init__(
        self,
        login: PostgresLogin,
        *,
        retries: LoginRetries | None = None,
        lives: Callable[[float], bool] = lambda since: False,
        idle_seconds: float | None = None,
    ) -> None:
        super().__init__(
            login.where,
            lambda: _Child(login),
            retries=retries,
            lives=lives,
            idle_seconds=idle_seconds,
        )
        self.login = login


class _Child:
    """The child, and the socket to it."""

    def __init__(self, login: PostgresLogin) -> None:
        """Start it. Raises: ConnectError."""
        if not extras.is_installed("postgres"):
            raise RefusedError(
                "asking PostgreSQL needs the Python package psycopg, which is not installed:"
                f" {extras.how_to_install('postgres')}"
            )
        self._login = login
        self._host = login.host
        self._said = -1
        descriptors: list[int] = []
        try:
            if login.folder is not None:
                asking.exists(f"{login.folder}/.s.PGSQL.{login.port}")  # else the child would wait
                # Opened before the child becomes another user, who may not go through /proc.
                descriptors.append(asking.folder(login.folder))
                self._host = f"/proc/self/fd/{descriptors[0]}"
            self._end, other = socket.socketpair()
            descriptors.append(other.detach())
            self._said = os.memfd_create("stallscope-postgres-child")
            argv, environment = module_command(CHILD)
            self._process = subprocess.Popen(
                [*argv, str(descriptors[-1])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=descriptors,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or error
            raise ConnectError(f"no server answers at {login.where}: {reason}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def login(self) -> PostgresSession:
        """Let it log in."""
        login = self._login
        hello = Hello(
            self._parameters(),
            login.becomes,
            login.uses_passfile,
            login.instead,
            login.peer,
            login.where,
        )
        reply = self._exchange(hello)
        if isinstance(reply, Opened):
            session = PostgresSession(self, reply, None if login.service else login.database)
            if session.version.numbers < (_LEAST_VERSION,):
                raise RefusedError(
                    f"{login.where} is PostgreSQL {session.version.text}: asked are versions from"
                    f" {_LEAST_VERSION} on"
                )
            return session
        said = self.shown(reply.text) if isinstance(reply, Failed) else "out of turn"
        if isinstance(reply, Failed) and reply.stranger:
            raise RefusedError(said)
        if _REFUSED.search(said):
            raise RefusedError(f"the server refuses {login}: {said}")
        raise ConnectError(f"no connection as {login}: {said}", full=_FULL.search(said) is not None)

    def ask(self, query: Query) -> Reply:
        """Send a query, and wait for its reply. Raises: ConnectError."""
        return self._exchange(query)

    def shown(self, text: str) -> str:
        """Return a message with the socket's path as the server's people know it."""
        if self._login.folder is not None and self._host is not None:
            folder = self._login.shown.rpartition("/")[0]
            text = text.replace(self._host, folder)
        return one_line(_PREFIX.sub("", text).strip(), 300)

    def cut(self) -> None:
        """End what waits for the child: it ends, too."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the child, and wait for that."""
        self.cut()
        self._end.close()
        if self._said >= 0:
            os.close(self._said)
        self._said = -1
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            reap(self._process)

    def _parameters(self) -> dict[str, str]:
        login = self._login
        given: dict[str, str | None] = {
            "user": login.user,
            "password": login.password,
            "dbname": login.database,
        }
        if login.service is not None:
            return {
                "service": login.service,
                **({"user": login.user} if login.user != login.owner else {}),
                **({"password": login.password} if login.password else {}),
            }
        given |= {"host": self._host, "port": str(login.port)}
        return {name: value for name, value in given.items() if value is not None}

    def _exchange(self, message: Hello | Query) -> Reply:
        try:
            self._end.sendall(msgspec.json.encode(message) + b"\n")
            line = self._line()
            return _replies.decode(line)
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            why = one_line(self._last_words() or str(error), 200)
            raise ConnectError(
                f"the child that asks {self._login.where} does not work: {why}"
            ) from error

    def _last_words(self) -> str:
        """Return the last line of what it printed: a package of it may not load."""
        with contextlib.suppress(OSError):
            text = os.pread(self._said, _MAX_WORDS, 0).decode("utf-8", "replace")
            return text.strip().rpartition("\n")[2]
        return ""

    def _line(self) -> bytes:
        data = bytearray()
        while not data.endswith(b"\n"):
            piece = self._end.recv(_PIECE)
            if not piece:
                raise OSError("it has ended")
            data += piece
            if len(data) > MAX_LINE:
                raise OSError(f"it sent more than {MAX_LINE >> 20} MiB")
        return bytes(data)


def _version(number: int) -> ServerVersion:
    """Return ``17.10`` of 170010; before 10 the numbers are three."""
    major, minor = divmod(number, 10_000)
    numbers = (major, minor, 0) if major >= _LEAST_VERSION else (major, *divmod(minor, 100))
    text = f"{major}.{minor}" if major >= _LEAST_VERSION else ".".join(map(str, numbers))
    return ServerVersion(text=text, family="postgres", vendor="postgres", numbers=numbers)
