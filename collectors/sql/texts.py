# SPDX-License-Identifier: Apache-2.0
"""What a server says of itself in a stall, as texts for people; no data is in them.

Statements are normalized, and of InnoDB's report what can hold data is left out
(stallscope.server.innodbtext). Each text has its own deadline; one that is not there is said to be
missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import SqlError
from stallscope.collectors.sql.innodb_status import read_report
from stallscope.collectors.sql.lock_waits import read_lock_waits
from stallscope.collectors.sql.processlist import SHOW
from stallscope.collectors.sql.protocol import Row, SqlSession
from stallscope.collectors.sql.sessions import MODE, fetch
from stallscope.collectors.sql.sessiontexts import (
    Normalize,
    Texts,
    lock_waits_text,
    processlist_text,
)
from stallscope.model.sessions import Sessions
from stallscope.server.innodbtext import redact
from stallscope.server.statements import normalizer

__all__ = ["fetch_texts"]

DEADLINES = {"processlist": 1.0, "lock-waits": 1.0, "innodb-status": 2.0}
MODE_SECONDS = 1.0
MAX_ROWS = 20_000


def fetch_texts(connection: Connection) -> Texts:
    """Ask for all of them, one after the other. Raises: SqlError where the server says nothing."""
    mode = connection.ask(lambda session: str(session.select(MODE)[0][0]), MODE_SECONDS)
    normalize = normalizer(mode)
    readers: dict[str, Callable[[float], str]] = {
        "processlist": lambda seconds: _processlist(connection, normalize, seconds),
        "lock-waits": lambda seconds: _lock_waits(connection, normalize, seconds),
        # Last: where InnoDB's own mutexes are what everybody waits for, it waits with them.
        "innodb-status": lambda seconds: redact(
            connection.ask(read_report, seconds, name="innodb-status"), normalize
        ),
    }
    found: dict[str, str] = {}
    missing: list[str] = []
    for name, read in readers.items():
        try:
            found[name] = read(DEADLINES[name])
        except SqlError as error:
            missing.append(f"{name}: {error}")
    return Texts(found, tuple(missing))


def _processlist(connection: Connection, normalize: Normalize, seconds: float) -> str:
    counts: Counter[tuple[str, str, str]] = Counter()
    longest: dict[tuple[str, str, str], int] = {}

    def take(row: Row) -> None:
        if len(counts) < MAX_ROWS:
            key = (str(row[4] or ""), str(row[6] or ""), str(row[7] or ""))
            counts[key] += 1
            longest[key] = max(longest.get(key, 0), int(row[5] or 0))

    def ask(session: SqlSession) -> None:
        own = session.facts.connection
        session.each(SHOW, lambda row: None if row[0] == own else take(row))

    connection.ask(ask, seconds, name="processlist")
    return processlist_text(counts, longest, normalize)


def _lock_waits(connection: Connection, normalize: Normalize, seconds: float) -> str:
    known = fetch(connection, seconds)
    if known.reason is not None:
        # The server does not report which thread serves a connection, but who waits for whom.
        waits = connection.ask(read_lock_waits, seconds, name="lock_waits")
        known = Sessions(sessions=(), waits=tuple(waits))
    return lock_waits_text(known, normalize)
