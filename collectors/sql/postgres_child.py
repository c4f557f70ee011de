# SPDX-License-Identifier: Apache-2.0
"""The child that asks a PostgreSQL, as stallscope.collectors.sql.postgres_messages says. Its one
argument is the descriptor of the socket to its parent.

It waits for the server and for its parent at once, and ends as soon as the parent is gone: so a
server that hangs keeps no child.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import sys

import msgspec
from psycopg import Error, pq
from psycopg.conninfo import make_conninfo

from stallscope.base.text import one_line
from stallscope.collectors.sql import peers
from stallscope.collectors.sql.failures import ConnectError, RefusedError
from stallscope.collectors.sql.identity import PROGRAM, TAG, listener
from stallscope.collectors.sql.postgres_messages import Answer, Failed, Hello, Opened, Query, Reply

__all__ = ["main"]

MAX_MEMORY = 2 << 30
MAX_REQUEST = 1 << 20
MAX_VALUE = 4096
"""Bytes of one value that are passed on."""
# First of all: what the owner of a database put into its search path is not called. Then: the
# server ends statements that nobody waits for any more, in milliseconds.
SESSION = (
    "SET search_path = pg_catalog; SET default_transaction_read_only = on;"
    " SET statement_timeout = 5000; SET lock_timeout = 1000"
)
PARAMETERS = {
    "application_name": PROGRAM,
    "client_encoding": "UTF8",
    # A host that is gone is noticed within about a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_VERIFIED = (b"verify-ca", b"verify-full")
"""Values of libpq's sslmode."""
_ERROR = b"E"
"""The first byte of a message that says why a server takes no login."""
_ENCODING = "22"
"""Class of SQLSTATE: a text that the server cannot convert."""


class _GoneError(Exception):
    """The parent is gone."""


class _ServerError(Exception):
    def __init__(
        self, text: str, state: str | None = None, *, lost: bool = False, stranger: bool = False
    ) -> None:
        super().__init__(text)
        self.failed = Failed(one_line(text, 400), state, lost, stranger)


class _Server:
    """One connection with the server."""

    def __init__(
        self, parameters: dict[str, str], parent: socket.socket, peer: peers.Peer | None, where: str
    ) -> None:
        self._parent = parent
        self._peer = peer
        self._where = where
        conninfo = make_conninfo("", **{**PARAMETERS, **parameters})
        self._raw = pq.PGconn.connect_start(conninfo.encode())
        self._connect()
        self.ask(SESSION, 0)

    def ask(self, sql: str, rows: int) -> Answer:
        """Run one statement."""
        raw = self._raw
        answer = Answer([])
        left_out = 0
        error: _ServerError | None = None
        raw.send_query((TAG + sql).encode())
        with contextlib.suppress(Error):
            raw.set_single_row_mode()
        while (result := self._next()) is not None:
            if result.status in (pq.ExecStatus.SINGLE_TUPLE, pq.ExecStatus.TUPLES_OK):
                for row in range(result.ntuples):
                    if len(answer.rows) < rows:
                        answer.rows.append(_texts(result, row))
                    else:
                        left_out += 1
            elif result.status != pq.ExecStatus.COMMAND_OK:
                error = self._failure(result)
        if error is not None:
            raise error
        return msgspec.structs.replace(answer, left_out=left_out)

    def opened(self) -> Opened:
        raw = self._raw
        role = raw.user.decode("utf-8", "replace")
        return Opened(raw.server_version, role, raw.backend_pid, self._listener())

    def close(self) -> None:
        self._raw.finish()

    def _connect(self) -> None:
        raw = self._raw
        while raw.status != pq.ConnStatus.BAD:
            self._check()
            match raw.connect_poll():
                case pq.PollingStatus.OK:
                    raw.nonblocking = 1
                    return
                case pq.PollingStatus.READING:
                    self._wait(select.POLLIN)
                case pq.PollingStatus.WRITING:
                    self._wait(select.POLLOUT)
                case _:
                    break
        text = raw.get_error_message()
        if raw.needs_password:
            text = f"the server asks for a password: {text}"
        raise _ServerError(text, lost=True)

    def _check(self) -> None:
        """Check who answers: libpq sends a password to who asks for it. It can connect again, to
        another address. Raises: _ServerError."""
        try:
            descriptor = os.dup(self._raw.socket)
        except (OSError, Error):
            return  # there is none yet
        with socket.socket(fileno=descriptor) as end:
            try:
                if end.family == socket.AF_UNIX:
                    peers.check_local(end, self._peer, self._where)
                elif _first(end) not in (b"", _ERROR):
                    verified = any(
                        one.keyword == b"sslmode" and one.val in _VERIFIED for one in self._raw.info
                    )
                    peers.check_network(end, self._peer, self._where, verified=verified)
            except ConnectError as error:
                stranger = isinstance(error, RefusedError)
                self._raw.finish()
                raise _ServerError(str(error), lost=True, stranger=stranger) from error

    def _next(self) -> pq.abc.PGresult | None:
        raw = self._raw
        while raw.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            raw.consume_input()
        while raw.is_busy():
            self._wait(select.POLLIN)
            raw.consume_input()
        return raw.get_result()

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._raw.socket, events)
        poll.register(self._parent, select.POLLRDHUP)
        if any(fd == self._parent.fileno() for fd, _ in poll.poll()):
            raise _GoneError

    def _failure(self, result: pq.abc.PGresult) -> _ServerError:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        words = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
        text = (words or b"").decode("utf-8", "replace") or result.get_error_message()
        lost = self._raw.status != pq.ConnStatus.OK
        return _ServerError(
            text, None if state is None else state.decode("ascii", "replace"), lost=lost
        )

    def _listener(self) -> int | None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._raw.socket)) as end:
            return listener(end) if end.family == socket.AF_UNIX else None
        return None


def _first(end: socket.socket) -> bytes:
    """Return the first byte that waits to be read; empty: none does."""
    try:
        return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _texts(result: pq.abc.PGresult, row: int) -> list[str | None]:
    values = (result.get_value(row, column) for column in range(result.nfields))
    return [None if v is None else v[:MAX_VALUE].decode("utf-8", "replace") for v in values]


class _Child:
    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._lines = parent.makefile("rb")
        self._hello = Hello({})
        self._parameters: dict[str, str] = {}

    def run(self) -> None:
        """Log in, and answer until the parent closes."""
        self._hello = hello = msgspec.json.decode(self._lines.readline(MAX_REQUEST), type=Hello)
        self._parameters = hello.parameters
        if hello.becomes is not None or not hello.uses_passfile:
            os.environ["PGPASSFILE"] = os.devnull
        if hello.becomes is not None:
            _become(*hello.becomes)
        try:
            server = self._login(hello.instead)
            self._say(server.opened())
        except _ServerError as error:
            self._say(msgspec.structs.replace(error.failed, lost=True))
            return
        while line := self._lines.readline(MAX_REQUEST):
            query = msgspec.json.decode(line, type=Query)
            try:
                self._say(self._answer(server, query))
            except _ServerError as error:
                self._say(error.failed)
                if error.failed.lost:
                    return
        server.close()

    def _login(self, instead: str | None) -> _Server:
        try:
            return self._connected(self._parameters)
        except _ServerError as error:
            role = self._parameters.get("user")
            # The role's name is in each language.
            if instead is None or f'"{role}"' not in error.failed.text:
                raise
        self._parameters = {**self._parameters, "user": instead}
        return self._connected(self._parameters)

    def _connected(self, parameters: dict[str, str]) -> _Server:
        return _Server(parameters, self._parent, self._hello.peer, self._hello.where)

    def _answer(self, server: _Server, query: Query) -> Answer:
        if query.database is not None:
            return self._elsewhere(query, query.database)
        try:
            return server.ask(query.sql, query.rows)
        except _ServerError as error:
            if not (error.failed.state or "").startswith(_ENCODING):
                raise
        # Bytes as they are: other databases can have other encodings.
        server.ask("SET client_encoding = 'SQL_ASCII'", 0)
        return server.ask(query.sql, query.rows)

    def _elsewhere(self, query: Query, database: str) -> Answer:
        try:
            other = self._connected({**self._parameters, "dbname": database})
        except _ServerError as error:
            raise _ServerError(error.failed.text, error.failed.state) from error
        try:
            return other.ask(query.sql, query.rows)
        finally:
            other.close()

    def _say(self, reply: Reply) -> None:
        self._parent.sendall(msgspec.json.encode(reply) + b"\n")


def _become(user: int, group: int) -> None:
    """Become the server's user, for good: root's own files are not read, nor its groups used."""
    os.environ.pop("HOME", None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def main(arguments: list[str]) -> int:
    """Serve the parent at the other end of the descriptor."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = socket.socket(fileno=int(arguments[0]))
    child = _Child(parent)
    try:
        child.run()
    except (_GoneError, BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:  # bytes of a hostile server can raise anything
        text = one_line(f"{type(error).__name__}: {error}", 300)
        with contextlib.suppress(OSError):
            child._say(Failed(text, lost=True))
        return 1
    return 0


if __name__ == "__main__":
    # No end of the interpreter: it takes longer than the connection did.
    os._exit(main(sys.argv[1:]))
