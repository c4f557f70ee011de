# SPDX-License-Identifier: Apache-2.0
"""Connections of our own that differ in all that a processlist shows: what the server's memory has
of each is compared with what the server says of it."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors.sql.failures import SqlError, StatementError
from stallscope.collectors.sql.identity import TAG
from stallscope.collectors.sql.innodb_status import read_report
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import Row, SqlSession, connect, reach

__all__ = ["Known", "Staged"]

T = TypeVar("T")

LONGEST = 20
"""Seconds after which the server itself ends what the connections run."""
_END_SECONDS = 1.0
"""Of each step of the end, also where no time is left for the rest."""
_STATES = ("User sleep", "User lock")
_SCHEMAS = ("information_schema", "performance_schema", "mysql", "test")
_MARK = "stallscope-"
_ROLES = 4
_OTHER_ID = 2_000_000_000
"""From which the id of a connection is subtracted: no connection has the difference as its id."""

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

IDLE = "SELECT ID, TIME_MS FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'"
TRANSACTIONS = "SELECT trx_id, trx_mysql_thread_id FROM information_schema.INNODB_TRX"
_LEAST_ADDRESS = 1 << 48
TABLE = "SELECT 1 FROM performance_schema.setup_consumers LIMIT 1"
SLEEP = "SELECT '{}', SLEEP({})"
LOCK = "SELECT '{}', GET_LOCK('{}', {})"
TAKEN = "SELECT '{}', GET_LOCK('{}', 0), SLEEP({})"
_TAKEN_SECONDS = 0.03
"""It ends long enough after its beginning for the two to be distinguished."""
KILL = "KILL QUERY {}"

# "MySQL thread id 7, OS thread handle 0x7f3a5c0f7700, query id 12 localhost root" of 5.6 (decimal
# in 5.7), and "OS thread id 139948231771840" at the end of the line before that of 5.1 and 5.5.
_HANDLE = re.compile(
    r"(?:OS thread id (?P<before>\d{1,19})\n)?"
    r"(?:MySQL|MariaDB) thread id (?P<number>\d{1,19}), "
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
    user's lock in a prepared statement, and one asks. Where idle connections have no thread (a
    thread pool), a fifth one sleeps in a transaction. A context manager."""

    def __init__(self, login: Login, seconds: float) -> None:
        """``seconds`` are for everything. Raises: SqlError."""
        self._deadline = time.monotonic() + seconds
        self._sessions: list[SqlSession] = []
        """The one that asks is the first."""
        self._running: list[SqlSession] = []
        """Those of which a statement does not end by itself soon."""
        self._own: dict[int, Known] = {}
        self._login = login
        self.listener_pid: int | None = None
        self.lock = ""
        """Name of the user's lock that the idle connection has, and another one waits for."""

    def __enter__(self) -> Staged:
        try:
            self._stage()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what the connections run, and the connections."""
        for session in self._running:  # COM_QUIT is read when the statement has ended
            with contextlib.suppress(SqlError), self._asking.limited(_END_SECONDS):
                self._asking.run(f"KILL QUERY {session.facts.connection}")
        for session in self._running:
            with contextlib.suppress(SqlError), session.limited(_END_SECONDS):
                session.await_answer()
        for session in reversed(self._sessions):
            with contextlib.suppress(Exception), session.limited(_END_SECONDS):
                session.quit()
        self._sessions.clear()
        self._running.clear()

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

    def idle(self) -> dict[int, tuple[int, int]]:
        """Return since when connections are idle, by the server's own count: the earliest and the
        latest moment in nanoseconds of CLOCK_MONOTONIC. Only where it counts in milliseconds.
        Raises: SqlError."""
        if not self._asking.version.mariadb:
            return {}
        asked = time.monotonic_ns()
        rows = self._ask(lambda session: session.select(IDLE))
        answered = time.monotonic_ns()
        found = {}
        for row in rows:
            since = round(float(str(row[1])) * 1_000_000)
            found[int(str(row[0]))] = (asked - since, answered - since)
        return found

    def transactions(self) -> dict[int, int]:
        """Return the ids of InnoDB's transactions that have one of their own, by connection.
        Raises: SqlError."""
        base = 16 if self._asking.version.numbers < (5, 6) else 10
        found = {}
        for text, connection in self._ask(lambda session: session.select(TRANSACTIONS)):
            with contextlib.suppress(ValueError):
                # A transaction that only reads has none, and shows an address in its place.
                if 0 < (number := int(str(text), base)) < _LEAST_ADDRESS:
                    found[int(str(connection))] = number
        return found

    @property
    def version(self) -> str:
        """Return the server's version."""
        return self._asking.facts.version.text

    @property
    def _asking(self) -> SqlSession:
        return self._sessions[0]

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
        self._use_threads()
        asking, idle, sleeping, waiting = (self._connect() for _ in range(_ROLES))
        self.listener_pid = asking.facts.listener_pid
        schemas = iter(_SCHEMAS)
        for session in (idle, waiting):
            self._use(session, schemas)
        # Before MySQL 5.7 only InnoDB's status says which thread a connection has, and it lists
        # transactions.
        listed = bool(self._ask(self._list)[0][1])
        for session in (idle,) if listed else (idle, sleeping, waiting):
            self._open_transaction(session)
        name = self.lock = _MARK + secrets.token_hex(6)
        with idle.limited(self._left()):
            with contextlib.suppress(StatementError):  # or its id is at one place more
                idle.run(f"SET pseudo_thread_id = {_OTHER_ID - idle.facts.connection}")
            with contextlib.suppress(StatementError):  # for a lock of its transaction
                idle.select(TABLE)
            self._last(idle, TAKEN.format(secrets.token_hex(9), name, _TAKEN_SECONDS))
        self._begin(sleeping, SLEEP.format(secrets.token_hex(7), LONGEST))
        lock = LOCK.format(secrets.token_hex(11), name, LONGEST)
        self._begin(waiting, lock, prepared=True)
        self._wait()
        if any(known.os_tid == 0 for known in self.own()):  # a thread pool
            self._stage_another()
            self._add_handles(session.facts.connection for session in self._running)
        elif not listed:
            self._add_handles(self._own)

    def _use_threads(self) -> None:
        """Let the server keep used threads for our connections, where it does so: their objects
        then still have what belonged to other connections."""
        used = [self._connect() for _ in range(_ROLES)]
        for session in used:
            self._own.pop(session.facts.connection)
            with contextlib.suppress(Exception), session.limited(_END_SECONDS):
                session.quit()
        self._sessions.clear()

    def _stage_another(self) -> None:
        session = self._connect()
        self._open_transaction(session)
        self._begin(session, SLEEP.format(secrets.token_hex(13), LONGEST))
        self._wait()

    def _connect(self) -> SqlSession:
        session = connect(self._login, reach(self._login), self._left())
        self._sessions.append(session)
        number = session.facts.connection
        self._own[number] = Known(number, transaction=False, own=True)
        return session

    def _open_transaction(self, session: SqlSession) -> None:
        """A snapshot makes an engine know it; not every engine has one."""
        with session.limited(self._left()):
            try:
                session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            except StatementError:
                session.run("START TRANSACTION")
        self._set(session, transaction=True)

    def _set(self, session: SqlSession, **facts: object) -> None:
        number = session.facts.connection
        self._own[number] = msgspec.structs.replace(self._own[number], **facts)

    def _use(self, session: SqlSession, schemas: Iterator[str]) -> None:
        with session.limited(self._left()):
            for schema in schemas:
                with contextlib.suppress(StatementError):
                    session.run(f"USE {schema}")
                    return

    def _last(self, session: SqlSession, sql: str) -> None:
        session.select(sql)
        self._set(session, last=TAG + sql)

    def _begin(self, session: SqlSession, sql: str, *, prepared: bool = False) -> None:
        before = time.monotonic_ns()
        self._running.append(session)
        with session.limited(self._left()):
            session.begin(sql, prepared=prepared)
        self._set(session, begun=(before, 0))

    def _wait(self) -> None:
        """Wait until the statements are in the wait that they are for, and those of the others have
        ended: a client has the answer before the server shows the connection as idle."""
        while True:
            own = self.own()
            states = {known.connection: known.state for known in own}
            now = time.monotonic_ns()
            running = {session.facts.connection for session in self._running}
            missing = any(
                known.command != "Sleep" for known in own if known.connection not in running
            )
            for session in self._running:
                begun = self._own[session.facts.connection].begun
                if begun is None or begun[1]:
                    continue
                if states.get(session.facts.connection) in _STATES:
                    self._set(session, begun=(begun[0], now))
                else:
                    missing = True
            if not missing:
                return
            self._left()
            time.sleep(0.002)

    def _add_handles(self, connections: Iterable[int]) -> None:
        wanted = frozenset(connections)
        with contextlib.suppress(SqlError):
            text = self._ask(read_report)
            for found in _HANDLE.finditer(text):
                number, handle = int(found["number"]), found["before"] or found["handle"]
                if handle and number in wanted:
                    own = self._own[number]
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
