# SPDX-License-Identifier: Apache-2.0
"""Connections with the kernel's ids of their threads, where the server reports them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.identity import PROGRAM
from stallscope.collectors.sql.protocol import Row, SqlSession
from stallscope.model.sessions import MAX_STATEMENT, Session

__all__ = [
    "MAX_SESSIONS",
    "PerfThreads",
    "client_host",
    "digests",
    "last_statements",
    "own_connections",
    "read_sessions",
]

MAX_SESSIONS = 20_000
MAX_LAST = 100

# MySQL from 5.7 on; 1024 is MAX_STATEMENT here and below.
THREADS = """\
SELECT PROCESSLIST_ID, THREAD_OS_ID, PROCESSLIST_USER, PROCESSLIST_DB, PROCESSLIST_COMMAND,
PROCESSLIST_STATE, PROCESSLIST_TIME, LEFT(PROCESSLIST_INFO, 1024), THREAD_ID,
PROCESSLIST_HOST
FROM performance_schema.threads WHERE PROCESSLIST_ID IS NOT NULL AND TYPE = 'FOREGROUND'"""
# MariaDB from 10.0 on.
PROCESSLIST_TID = """\
SELECT ID, TID, USER, DB, COMMAND, STATE, TIME_MS / 1000, LEFT(INFO, 1024), ID, HOST
FROM information_schema.PROCESSLIST"""
LAST_STATEMENTS = """\
SELECT t.PROCESSLIST_ID, LEFT(e.SQL_TEXT, 1024)
FROM performance_schema.threads t
JOIN performance_schema.events_statements_current e ON e.THREAD_ID = t.THREAD_ID
WHERE t.PROCESSLIST_ID IN ({}) AND e.SQL_TEXT IS NOT NULL
AND (e.NESTING_EVENT_TYPE IS NULL OR e.NESTING_EVENT_TYPE = 'TRANSACTION')"""
# Only the server knows the SQL mode of the session.
DIGESTS = """\
SELECT t.PROCESSLIST_ID, LEFT(e.SQL_TEXT, 1024), e.DIGEST_TEXT
FROM performance_schema.threads t
JOIN performance_schema.events_statements_current e ON e.THREAD_ID = t.THREAD_ID
WHERE t.PROCESSLIST_ID IN ({}) AND e.DIGEST_TEXT IS NOT NULL"""
PROGRAMS = """\
SELECT PROCESSLIST_ID FROM performance_schema.session_connect_attrs
WHERE ATTR_NAME = 'program_name' AND ATTR_VALUE = %s"""
KINDS = """\
SELECT NAME, COUNT(*) FROM performance_schema.threads WHERE THREAD_OS_ID IS NOT NULL
GROUP BY NAME"""

_MISSING = frozenset({1054, 1109, 1142, 1146, 1227})
"""Errors: no such column, no such table, or no right to it."""


class PerfThreads(SqlCollector):
    """``perf_threads.<name>``: threads of the server by the name it gives them."""

    name = "perf_threads"

    def read(self, session: SqlSession) -> dict[str, float]:
        if not session.has_threads_table:
            raise StatementError(
                f"{session.version.text} has no performance_schema.threads, or it is off", 1146
            )
        rows = session.select(KINDS, max_rows=500)
        values = {"perf_threads.total": 0.0}
        for name, count in rows:
            found = number(count) or 0.0
            values["perf_threads.total"] += found
            values[f"perf_threads.{one_line(str(name), 80)}"] = found
        return values


def read_sessions(session: SqlSession) -> tuple[list[Session], dict[int, int], str | None]:
    """Return the connections, a map from thread numbers of performance_schema to connections, and
    why there are none. MariaDB's tables use the connections' own numbers: there both are the same.
    """
    version = session.version
    statement = PROCESSLIST_TID if version.mariadb else THREADS
    if version.mariadb and not session.has_process:
        return [], {}, "the account sees only its own connections: GRANT PROCESS ON *.* TO it"
    if not version.mariadb and version.numbers >= (5, 7, 0) and not session.has_threads_table:
        return (
            [],
            {},
            "performance_schema.threads cannot be read, or is off: threads have no connections",
        )
    try:
        rows = session.select(statement, max_rows=MAX_SESSIONS)
    except StatementError as error:
        if error.number not in _MISSING:
            raise
        since = "MariaDB does from 10.0 on" if version.mariadb else "MySQL does from 5.7 on"
        return (
            [],
            {},
            (
                f"{version.text} does not report the OS thread of a connection ({since}), so"
                " threads have no statements"
            ),
        )
    sessions = [_session(row) for row in rows]
    threads = {int(row[8]): s.connection for row, s in zip(rows, sessions, strict=True)}
    return sessions, threads, None


def _session(row: Row) -> Session:
    def word(value: object, limit: int = 128) -> str | None:
        return one_line(str(value), limit) if value not in (None, "") else None

    statement = row[7]
    return Session(
        connection=int(row[0]),
        os_tid=None if row[1] is None else int(row[1]),
        user=word(row[2]),
        database=word(row[3]),
        command=word(row[4]),
        state=word(row[5]),
        seconds=number(row[6]),
        statement=str(statement)[:MAX_STATEMENT] if statement else None,
        host=client_host(word(row[9])),
    )


def client_host(text: str | None) -> str | None:
    """Return the host of ``10.0.0.7:51324``, without the port."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    alone = colon and port.isdecimal() and (":" not in host or host.startswith("["))
    return host if alone and host else text


def own_connections(session: SqlSession) -> set[int]:
    """Return the connections of stallscope: those of this process, and of others where the server
    keeps what a connection says of itself."""
    found = session.siblings
    if session.has_threads_table:
        with contextlib.suppress(StatementError):
            rows = session.select(PROGRAMS, [PROGRAM], max_rows=MAX_LAST)
            found |= {int(row[0]) for row in rows}
    return found


def last_statements(session: SqlSession, connections: Collection[int]) -> dict[int, str]:
    """Return the last statements of idle connections."""
    wanted = sorted(connections)[:MAX_LAST]
    if not wanted or not session.has_threads_table:
        return {}
    marks = ", ".join(["%s"] * len(wanted))
    try:
        rows = session.select(LAST_STATEMENTS.format(marks), wanted, max_rows=MAX_LAST)
    except StatementError:
        return {}
    return {int(row[0]): str(row[1])[:MAX_STATEMENT] for row in rows}


def digests(session: SqlSession, statements: Mapping[int, str]) -> dict[int, str]:
    """Return the server's own texts without data of statements, by connection; those that it has
    not parsed yet, or that another one has followed, are left out."""
    wanted = sorted(statements)[:MAX_LAST]
    if not wanted or not session.has_threads_table:
        return {}
    marks = ", ".join(["%s"] * len(wanted))
    try:
        rows = session.select(DIGESTS.format(marks), wanted, max_rows=MAX_LAST)
    except StatementError:
        return {}
    return {
        int(number): str(digest)
        for number, text, digest in rows
        if str(text)[:MAX_STATEMENT] == statements[int(number)]
    }
