# SPDX-License-Identifier: Apache-2.0
"""Connections of our own that differ in all that a processlist shows: what the server's memory has
of each is compared with what the server says of it."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors.sql.failures import SqlError, StatementError
from stallscope.collectors.sql.innodb_status import read_report
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import TAG, Row, SqlSession, connect, reach

__all__ = ["Known", "Staged"]

T = TypeVar("T")

LONGEST = 20
"""Seconds after which the server itself ends what the connections run."""
_STATES = ("User sleep", "User lock")
_SCHEMAS = ("information_schema", "performance_schema", "mysql", "test")
_MARK = "stallscope-"

THREADS = """\
SELECT PROCESSLIST_ID, THREAD_OS_ID, PROCESSLIST_USER, PROCESSLIST_HOST, PROCESSLIST_DB,
PROCESSLIST_COMMAND, PROCESSLIST_STATE, PROCESSLIST_TIME, LEFT(PROCESSLIST_INFO, 1024)
FROM performance_schema.threads WHERE PROCESSLIST_ID IS NOT NULL AND TYPE = 'FOREGROUND'"""
WITH_TID = """\
SELECT ID, TID, USER, HOST, DB, COMMAND, STATE, TIME_MS / 1000, LEFT(INFO, 1024)
FROM information_schema.PROCESSLIST"""
WITHOUT_TID = """\
SELECT ID, NULL, USER, HOST, DB, COMMAND, STATE, TIME, LEFT(INFO, 1024)
FROM information_schema.PROCESSLIST"""

# "MySQL thread id 7, OS thread handle 0x7f3a5c0f7700, query id 12 localhost root" of 5.6 (decimal
# in 5.7), and "OS thread id 139948231771840" at the end of the line before that of 5.1 and 5.5.
_HANDLE = re.compile(
    r"(?:OS thread id (?P<before>\d{1,19})\n)?"
    r"MySQL thread id (?P<number>\d{1,19}), "
    r"(?:OS thread handle (?P<handle>0x[0-9a-f]{1,16}|\d{1,19}))?"
)


class Known(msgspec.Struct, frozen=True):
    """What the server says of a connection."""

    connection: int
    os_tid: int | None = None
    user: str | None = None
    host: str | None = None
    database: str | None = None
    command: str | None = None
    state: str | None = None
    statement: str | None = None
    """At most 1,024 characters; None where it runs nothing."""
    handle: int | None = None
    """``pthread_self()`` of its thread, where only InnoDB's status names threads."""
    last: str | None = None
    """Of our own connections: the statement that it ran last, and that has ended."""
    begun: tuple[int, int] | None = None
    """Of our own connections: nanoseconds of CLOCK_MONOTONIC before and after its statement was
    sent."""
    transaction: bool | None = None
    """Of our own connections: whether it has an open transaction."""
    own: bool = False


class Staged:
    """Four connections: one is idle in a transaction, one sleeps in a statement, one waits for a
    user's lock in a prepared statement, and one asks. A context manager."""

    def __init__(self, login: Login, seconds: float) -> None:
        """``seconds`` are for everything. Raises: SqlError."""
        self._deadline = time.monotonic() + seconds
        self._sessions: list[SqlSession] = []
        self._own: dict[int, Known] = {}
        self._login = login
        self.listener_pid: int | None = None

    def __enter__(self) -> Staged:
        try:
            self._stage()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what the connections run, and the connections."""
        for session in self._sessions[1:3]:  # COM_QUIT is read when the statement has ended
            with contextlib.suppress(SqlError):
                self._kill(session.facts.connection)
        for session in reversed(self._sessions):
            with contextlib.suppress(Exception), session.limited(1.0):
                session.quit()
        self._sessions.clear()

    def rows(self) -> list[Known]:
        """Return all connections, as the server shows them now; the one that asks is shown as it is
        between two questions. Raises: SqlError."""
        found = []
        for row in self._ask(self._list):
            known = _known(row)
            own = self._own.get(known.connection)
            if own is not None:
                known = _with_own(known, own)
            if known.connection == self._asking.facts.connection:
                known = msgspec.structs.replace(
                    known, command="Sleep", state=None, statement=None, last=known.statement
                )
            found.append(known)
        return found

    def own(self) -> list[Known]:
        """Return our own connections. Raises: SqlError."""
        return [known for known in self.rows() if known.own]

    @property
    def version(self) -> str:
        """Return the server's version."""
        return self._asking.facts.version.text

    @property
    def _asking(self) -> SqlSession:
        return self._sessions[-1]

    def _kill(self, connection: int) -> None:
        self._ask(lambda session: session.run(f"KILL QUERY {connection}"))

    def _ask(self, ask: Callable[[SqlSession], T]) -> T:
        session = self._asking
        with session.limited(self._left()):
            return ask(session)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise StallscopeError("the server did not answer in time")
        return left

    def _list(self, session: SqlSession) -> list[Row]:
        version = session.version
        if version.mariadb:
            statement = WITH_TID
        else:
            statement = THREADS if session.has_threads_table else WITHOUT_TID
        try:
            return session.select(statement)
        except StatementError:
            return session.select(WITHOUT_TID)

    def _stage(self) -> None:
        for _ in range(4):
            end = reach(self._login)
            end.settimeout(self._left())
            self._sessions.append(connect(self._login, end))
        self.listener_pid = self._asking.facts.listener_pid
        idle, sleeping, waiting, asking = self._sessions
        schemas = iter(_SCHEMAS)
        for session in (idle, waiting):
            self._use(session, schemas)
        # Before MySQL 5.7 only InnoDB's status says which thread a connection has, and it lists
        # transactions.
        listed = bool(self._ask(self._list)[0][1])
        transaction = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
        for session in (idle,) if listed else (idle, sleeping, waiting):
            with session.limited(self._left()):
                session.run(transaction)
        name = _MARK + secrets.token_hex(6)
        with idle.limited(self._left()):
            self._last(idle, f"SELECT '{secrets.token_hex(9)}', GET_LOCK('{name}', 0)")
        self._begin(sleeping, f"SELECT '{secrets.token_hex(7)}', SLEEP({LONGEST})", False, listed)
        lock = f"SELECT '{secrets.token_hex(11)}', GET_LOCK('{name}', {LONGEST})"
        self._begin(waiting, lock, True, listed)
        number = asking.facts.connection
        self._own[number] = Known(number, transaction=False, own=True)
        self._wait()
        if not listed:
            self._add_handles()

    def _use(self, session: SqlSession, schemas: Iterator[str]) -> None:
        with session.limited(self._left()):
            for schema in schemas:
                with contextlib.suppress(StatementError):
                    session.run(f"USE {schema}")
                    return

    def _last(self, session: SqlSession, sql: str) -> None:
        session.select(sql)
        number = session.facts.connection
        self._own[number] = Known(number, last=TAG + sql, transaction=True, own=True)

    def _begin(self, session: SqlSession, sql: str, prepared: bool, listed: bool) -> None:
        before = time.monotonic_ns()
        with session.limited(self._left()):
            session.begin(sql, prepared=prepared)
        number = session.facts.connection
        self._own[number] = Known(number, begun=(before, 0), transaction=not listed, own=True)

    def _wait(self) -> None:
        """Wait until the two statements are in the wait that they are for."""
        numbers = [session.facts.connection for session in self._sessions[1:3]]
        while True:
            states = {known.connection: known.state or "" for known in self.rows()}
            now = time.monotonic_ns()
            for number in numbers:
                own = self._own[number]
                assert own.begun is not None
                if states.get(number, "") in _STATES and not own.begun[1]:
                    self._own[number] = msgspec.structs.replace(own, begun=(own.begun[0], now))
            if all((own := self._own[number]).begun and own.begun[1] for number in numbers):
                return
            self._left()
            time.sleep(0.002)

    def _add_handles(self) -> None:
        with contextlib.suppress(SqlError):
            text = self._ask(read_report)
            for found in _HANDLE.finditer(text):
                number, handle = int(found["number"]), found["before"] or found["handle"]
                if handle and (own := self._own.get(number)) is not None:
                    self._own[number] = msgspec.structs.replace(own, handle=int(handle, 0))


def _known(row: Row) -> Known:
    def text(value: object) -> str | None:
        return None if value is None else str(value)

    return Known(
        connection=int(row[0]),
        os_tid=None if row[1] is None else int(row[1]),
        user=text(row[2]),
        host=text(row[3]),
        database=text(row[4]),
        command=text(row[5]),
        state=text(row[6]),
        statement=text(row[8]),
    )


def _with_own(known: Known, own: Known) -> Known:
    return msgspec.structs.replace(
        known,
        handle=own.handle,
        last=own.last,
        begun=own.begun,
        transaction=own.transaction,
        own=True,
    )
