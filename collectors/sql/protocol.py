# SPDX-License-Identifier: Apache-2.0
"""Open one connection: socket, TLS, login, and a session whose statements block nobody.

All of this can hang as long as the server hangs; stallscope.collectors.sql.connection runs it in
its own thread.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pymysql
from pymysql.constants import COMMAND, CR, ER, FIELD_TYPE
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors import ownthreads
from stallscope.collectors.paths import asking
from stallscope.collectors.sql import peers
from stallscope.collectors.sql.authentication import Plugins
from stallscope.collectors.sql.failures import (
    AbortedLoginError,
    ConnectError,
    LateError,
    RefusedError,
    StatementError,
)
from stallscope.collectors.sql.identity import PROGRAM, TAG, listener
from stallscope.collectors.sql.login import Login, Tls
from stallscope.collectors.sql.versions import ServerFacts, parse

__all__ = ["Row", "Rows", "SqlSession", "connect", "reach"]

Row = tuple[Any, ...]

_MAX_PACKET = 16 << 20
_HEADER = 4
_ERROR = 0xFF
"""The first byte of a packet that says why a server takes no login."""
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 60_000),
)
"""A host that is gone is noticed within about a minute; a host that only hangs is waited for."""

SESSION = (
    "SET SESSION sql_mode = ''",
    "SET SESSION sql_select_limit = DEFAULT",
    # A metadata lock or a row lock that somebody holds costs us a second, then an error.
    "SET SESSION lock_wait_timeout = 1",
    "SET SESSION innodb_lock_wait_timeout = 1",
    "SET SESSION TRANSACTION READ ONLY",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    # The server ends statements that no caller waits for any more: milliseconds, or seconds.
    "SET SESSION max_execution_time = 5000",
    "SET SESSION max_statement_time = 5",
)
"""Sent one by one: a server refuses the settings that it does not have."""

_FACTS = "SELECT CONNECTION_ID(), VERSION(), @@version_comment, @@socket, @@port, @@datadir"

OWN_THREAD_OS_ID = """\
SELECT THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()"""
OWN_TID = "SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()"
"""MariaDB makes a temporary table on disk for it: it is not asked where the kernel knows."""

_LOST = frozenset({0, 2006, 2013, 2055, ER.SERVER_SHUTDOWN, 1927, 4031})
"""After these no answer comes on this connection; 1927 is MariaDB's, 4031 MySQL's way to end it."""
_REFUSED = frozenset(
    {
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        1129,  # ER_HOST_IS_BLOCKED
        1130,  # ER_HOST_NOT_PRIVILEGED
        1251,  # ER_NOT_SUPPORTED_AUTH_MODE
        1698,  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
        1862,  # ER_MUST_CHANGE_PASSWORD_LOGIN
        3118,  # ER_ACCOUNT_HAS_BEEN_LOCKED
        3159,  # ER_SECURE_TRANSPORT_REQUIRED
        3955,  # ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK
        4151,  # ER_ACCOUNT_HAS_BEEN_LOCKED of MariaDB
    }
)


_CONVERSIONS: dict[Any, Any] = {
    **{kind: encode for kind, encode in conversions.items() if not isinstance(kind, int)},
    **dict.fromkeys(
        (
            FIELD_TYPE.TINY,
            FIELD_TYPE.SHORT,
            FIELD_TYPE.LONG,
            FIELD_TYPE.INT24,
            FIELD_TYPE.LONGLONG,
            FIELD_TYPE.YEAR,
        ),
        int,
    ),
    **dict.fromkeys(
        (FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL), float
    ),
}


_NUMBERS = itertools.count(1)


class Rows(list[Row]):
    """Rows of an answer. ``left_out``: how many rows beyond the limit were dropped."""

    def __init__(self, rows: Sequence[Row] = (), left_out: int = 0) -> None:
        super().__init__(rows)
        self.left_out = left_out


_sessions: weakref.WeakSet[SqlSession] = weakref.WeakSet()


class SqlSession:
    """An open connection, used by one thread at a time."""

    beat = "DO 1"
    """The simplest of all statements."""

    def __init__(self, raw: pymysql.Connection[Any], facts: ServerFacts) -> None:
        self._raw = raw
        self.thread = ownthreads.opened(self, raw._sock, facts.listener_pid)  # type: ignore[attr-defined]
        """The server's thread that serves it."""
        self.number = next(_NUMBERS)
        """Unique among the sessions of this process."""
        self.facts = facts
        self.wanted: Callable[[], bool] = lambda: True
        """Returns whether a caller still waits for the answers: if not, no further statement is
        sent."""
        self.version = facts.version
        self.sent = 0
        """Statements so far."""
        _sessions.add(self)

    @property
    def siblings(self) -> set[int]:
        """Return the ids of this process's open connections to the same server."""
        return {other.facts.connection for other in list(_sessions) if self._is_sibling(other)}

    def _is_sibling(self, other: SqlSession) -> bool:
        mine, theirs = (
            (facts.socket, facts.port, facts.datadir) for facts in (self.facts, other.facts)
        )
        return other.open and mine == theirs

    @property
    def open(self) -> bool:
        return bool(self._raw.open)

    @cached_property
    def has_process(self) -> bool:
        """Return whether the account has the PROCESS privilege and sees all connections."""
        try:
            # This harmless table needs the same privilege, roles included.
            self.select("SELECT COUNT(*) FROM information_schema.INNODB_CMP")
        except StatementError as error:
            return error.number != ER.SPECIFIC_ACCESS_DENIED_ERROR
        return True

    @cached_property
    def has_threads_table(self) -> bool:
        """Return whether performance_schema.threads is there and kept up to date for clients."""
        try:
            rows = self.select(
                "SELECT INSTRUMENTED FROM performance_schema.threads"
                " WHERE PROCESSLIST_ID = CONNECTION_ID()"
            )
        except StatementError:
            return False
        return [row[0] for row in rows] == ["YES"]

    @cached_property
    def has_pool(self) -> bool:
        """Return whether threads of the server serve several connections by turns."""
        try:
            rows = self.select("SHOW GLOBAL VARIABLES LIKE 'thread_handling'")
        except StatementError:
            return False
        return ownthreads.is_pool(str(rows[0][1]) if rows else None)

    def _find_thread(self) -> None:
        """Ask the server for the number of the thread that serves this connection."""
        self.thread.wants_tid = False
        statement = OWN_TID if self.version.mariadb else OWN_THREAD_OS_ID
        pool = self.has_pool
        rows = Rows()
        if not pool:
            with contextlib.suppress(StatementError):
                rows = self.select(statement)
        tid = rows[0][0] if rows else None
        self.thread.found(int(tid) if tid else None, pool=pool)

    def run(self, sql: str) -> None:
        """Run a statement that has no rows."""
        with self._asking() as cursor:
            cursor.execute(TAG + sql)

    def select(self, sql: str, arguments: Sequence[object] = (), *, max_rows: int = 10_000) -> Rows:
        """Return the rows of one statement; those beyond ``max_rows`` are read and dropped.

        Raises: StatementError where the server refuses it, ConnectError where the connection ended.
        """
        rows = Rows()

        def take(row: Row) -> None:
            if len(rows) < max_rows:
                rows.append(row)
            else:
                rows.left_out += 1

        self.each(sql, take, arguments)
        return rows

    def records(
        self, sql: str, arguments: Sequence[object] = (), *, max_rows: int = 10_000
    ) -> list[dict[str, Any]]:
        """Return rows as dictionaries by the column names in lower case."""
        found: list[dict[str, Any]] = []
        with self._asking() as cursor:
            cursor.execute(TAG + sql, tuple(arguments) or None)
            names = [str(column[0]).lower() for column in cursor.description or ()]
            for row in cursor.fetchall_unbuffered():
                if len(found) < max_rows:
                    found.append(dict(zip(names, map(_text, row), strict=True)))
        return found

    def each(
        self, sql: str, take: Callable[[Row], object], arguments: Sequence[object] = ()
    ) -> None:
        """Give each row to ``take`` as it arrives; no row is kept."""
        with self._asking() as cursor:
            cursor.execute(TAG + sql, tuple(arguments) or None)
            for row in cursor.fetchall_unbuffered():
                take(tuple(map(_text, row)))

    def several(self, sql: str, count: int) -> None:
        """Send the same statement so many times at once, and drop the answers: the server works on
        one after the other and waits for nothing in between.

        The answers must be small: nobody reads them before the last statement is sent.
        """
        with self._asking() as cursor:
            raw: Any = self._raw
            for _ in range(count):
                raw._execute_command(COMMAND.COM_QUERY, TAG + sql)
            for _ in range(count):
                raw._next_seq_id = 1  # each answer counts again from 1
                raw._read_query_result()
            del cursor

    def begin(self, sql: str, *, prepared: bool = False) -> None:
        """Send a statement and do not wait for its answer: only the end of the session follows.

        ``prepared``: by the protocol of prepared statements (``Execute`` in the processlist).
        """
        try:
            if prepared:
                self._raw._execute_command(COMMAND.COM_STMT_EXECUTE, self._prepare(TAG + sql))  # type: ignore[attr-defined]
            else:
                self._raw._execute_command(COMMAND.COM_QUERY, TAG + sql)  # type: ignore[attr-defined]
        except Exception as error:
            raise self._failure(error) from error

    def await_answer(self) -> None:
        """Wait until a statement that was begun has an answer, which is not read further: a server
        counts a client that is gone by then (Aborted_clients)."""
        with contextlib.suppress(Exception):
            raw: Any = self._raw
            raw._read_packet()

    def _prepare(self, sql: str) -> bytes:
        """Prepare a statement without parameters; return what executes it."""
        raw: Any = self._raw
        raw._execute_command(COMMAND.COM_STMT_PREPARE, sql)
        number, columns = struct.unpack_from("<xIH", raw._read_packet().get_all_data())
        if columns:
            while not raw._read_packet().is_eof_packet():
                pass
        return struct.pack("<IBI", number, 0, 1)

    @contextlib.contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Limit each read and write within: an answer that is late ends the connection."""
        _limit(self._raw, seconds)
        try:
            yield
        finally:
            _limit(self._raw, None)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[SSCursor]:
        if not self.wanted():
            raise LateError("the query was aborted")
        if self.thread.wants_tid:
            self._find_thread()
        try:
            self.sent += 1
            with self._raw.cursor(SSCursor) as cursor:
                yield cursor
        except StallscopeError:
            raise
        except Exception as error:  # bytes of a hostile server can raise anything in PyMySQL
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StatementError | ConnectError:
        number, text = _said(error)
        if number in _LOST or not self.open or not isinstance(error, pymysql.err.Error):
            self.drop()
            return ConnectError(f"the connection ended: {text}")
        return StatementError(f"the server refused ({number}): {text}", number)

    def quit(self) -> None:
        """Send COM_QUIT: a server counts and logs clients that just vanish (Aborted_clients)."""
        ownthreads.close(self.thread)
        with contextlib.suppress(Exception):
            self._raw.close()

    def drop(self) -> None:
        """Close without sending COM_QUIT."""
        ownthreads.close(self.thread)
        with contextlib.suppress(Exception):
            self._raw._force_close()  # type: ignore[attr-defined]


def reach(login: Login) -> socket.socket:
    """Open the socket; raises ConnectError."""
    try:
        if login.socket is None:
            return _reach_tcp(login.host or "localhost", login.port, login.connect_seconds)
        return _reach_unix(login.socket, login.connect_seconds)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConnectError(f"no server answers at {login.where}: {reason}") from error


def _reach_tcp(host: str, port: int, seconds: float) -> socket.socket:
    end = socket.create_connection((host, port), seconds)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        end.setsockopt(socket.IPPROTO_TCP, option, value)
    return end


def _reach_unix(path: str, seconds: float) -> socket.socket:
    end = asking.connected(path)
    end.settimeout(seconds)
    return end


def connect(login: Login, end: socket.socket, seconds: float | None = None) -> SqlSession:
    """Log in on an open socket and set the session up; the socket is closed where that fails.

    ``seconds``: the longest wait for each answer; None: the caller limits the waiting. A read that
    times out ends the connection, and a server that hangs would get one new connection after
    another from a caller that tries again at once.
    """
    try:
        return _connect(login, end, seconds)
    except BaseException:
        end.close()
        raise


def _connect(login: Login, end: socket.socket, seconds: float | None) -> SqlSession:
    local = login.socket is not None
    raw = _prepared(login, local)
    _check(login, end, seconds)
    _limit(raw, seconds)
    if local:
        raw._secure = True  # type: ignore[attr-defined]
    try:
        raw.connect(end)
    except (pymysql.err.Error, OSError, EOFError) as error:
        raise _connect_failure(login, error) from error
    except Exception as error:  # another protocol can raise anything in PyMySQL's parser
        raise AbortedLoginError(
            f"the program at {login.where} is no MySQL server: {type(error).__name__}"
        ) from error
    try:
        session = SqlSession(raw, _set_up(raw, end if local else None))
        _limit(raw, None)
        return session
    except (pymysql.err.Error, OSError, EOFError, ValueError, TypeError, IndexError) as error:
        raise _connect_failure(login, error) from error


def _check(login: Login, end: socket.socket, seconds: float | None) -> None:
    """Check who answers, before anything is sent. Raises: ConnectError."""
    if end.family == socket.AF_UNIX:
        peers.check_local(end, login.peer, login.where)
        return
    end.settimeout(seconds)
    try:
        # The kernel knows who has accepted a connection, and not who will.
        first = end.recv(_HEADER + 1, socket.MSG_PEEK | socket.MSG_WAITALL)
    except OSError as error:
        raise _connect_failure(login, error) from error
    if first and first[_HEADER:] != bytes([_ERROR]):  # a refusal ends the login by itself
        verified = login.tls.mode in ("verify-ca", "verify-identity")
        peers.check_network(end, login.peer, login.where, verified=verified)


def _limit(raw: pymysql.Connection[Any], seconds: float | None) -> None:
    """Limit each read and write: PyMySQL sets the socket's own limit before each of them."""
    raw._read_timeout = raw._write_timeout = seconds  # type: ignore[attr-defined]


def _prepared(login: Login, local: bool) -> pymysql.Connection[Any]:
    tls = login.tls
    plain = tls.mode == "disabled" or (local and not tls.demanded)
    arguments: dict[str, Any] = {}
    if not plain and tls.demanded:
        arguments["ssl"] = _context(tls)
    return pymysql.Connection(
        user=login.user,
        password=(login.password or "").encode("utf-8", "surrogateescape"),
        host=login.host or "localhost",
        port=login.port,
        charset="utf8mb4",
        # Text stays bytes until _text: statements are cut in the middle of characters, and
        # InnoDB's status prints rows as they are.
        use_unicode=False,
        conv=_CONVERSIONS,
        autocommit=True,
        local_infile=False,
        defer_connect=True,
        max_allowed_packet=_MAX_PACKET,
        program_name=PROGRAM,
        ssl_disabled=plain,
        auth_plugin_map=Plugins(plain=login.cleartext and (local or tls.demanded)),
        **arguments,
    )


def _context(tls: Tls) -> ssl.SSLContext:
    """Make the context for a connection that must be encrypted."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The certificates that MySQL makes for itself lack what strict X.509 asks for.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        context.check_hostname = tls.mode == "verify-identity"
        verify = tls.mode in ("verify-ca", "verify-identity")
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        if tls.ca is not None or tls.capath is not None:
            context.load_verify_locations(tls.ca, tls.capath)
        elif verify:
            context.load_default_certs()
        if tls.crl is not None:
            context.load_verify_locations(tls.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if tls.cert is not None:
            # The callback keeps OpenSSL from asking for a passphrase at the terminal.
            context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")
        if tls.cipher is not None:
            context.set_ciphers(tls.cipher)
    except (OSError, ValueError) as error:
        raise RefusedError(f"the TLS files of the options cannot be used: {error}") from error
    return context


def _set_up(raw: pymysql.Connection[Any], local: socket.socket | None) -> ServerFacts:
    with raw.cursor() as cursor:
        for statement in SESSION:
            with contextlib.suppress(pymysql.err.DatabaseError):
                cursor.execute(TAG + statement)
            if not raw.open:
                raise pymysql.err.OperationalError(2013, "it ended while the session was set up")
        cursor.execute(TAG + _FACTS)
        row = cursor.fetchone()
    assert row is not None
    number, version, comment, path, port, datadir = map(_text, row)
    return ServerFacts(
        version=parse(str(version), str(comment)),
        connection=int(str(number)),
        socket=str(path) if path else None,
        port=int(str(port)) if port else None,
        datadir=str(datadir) if datadir else None,
        listener_pid=None if local is None else listener(local),
    )


def _connect_failure(login: Login, error: Exception) -> ConnectError:
    number, text = _said(error)
    if number in _REFUSED:
        return RefusedError(f"the server refuses {login} ({number}): {text}", number=number)
    if number == CR.CR_AUTH_PLUGIN_CANNOT_LOAD:
        return RefusedError(f"the account {login} cannot be used: {text}")
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLError):
        return AbortedLoginError(f"no TLS with {login.where}: {_about_tls(cause, login.tls)}")
    if number == CR.CR_SSL_CONNECTION_ERROR or not (number or isinstance(cause, OSError)):
        return AbortedLoginError(f"no connection as {login}: {text}")
    # Numbers from 2000 to 2999 are of clients: the server has said nothing.
    said = number if number and number // 1000 != 2 else None
    full = number in (ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS)
    return ConnectError(f"no connection as {login}: {text}", number=said, full=full)


def _about_tls(error: ssl.SSLError, tls: Tls) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        said = one_line(error.verify_message, 200)
        mode = tls.mode.upper().replace("-", "_")
        return f"certificate verify failed: {said} (ssl-mode={mode})"
    said = one_line(error.reason or str(error), 200).replace("_", " ").lower()
    more = "" if tls.demanded else "; ssl-mode=DISABLED connects without"
    return f"{said}{more}"


def _text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _said(error: Exception) -> tuple[int, str]:
    """Return the server's error number, 0 where there is none, and its words."""
    arguments = error.args
    if arguments and isinstance(arguments[0], int) and isinstance(error, pymysql.err.Error):
        words = str(arguments[1]) if len(arguments) > 1 else type(error).__name__
        return arguments[0], one_line(words, 300)
    return 0, one_line(str(error) or type(error).__name__, 300)
