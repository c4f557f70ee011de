# SPDX-License-Identifier: Apache-2.0
"""Row-lock waits and their owners in MyRocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from stallscope.collectors.sql.failures import NO_SUCH_TABLE, StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait, Session

__all__ = ["read_rocksdb_waits"]

TRANSACTIONS = """\
SELECT TRANSACTION_ID, WAITING_COLUMN_FAMILY_ID, WAITING_KEY, LOCK_COUNT, THREAD_ID
FROM information_schema.ROCKSDB_TRX"""
LOCKS = """\
SELECT COLUMN_FAMILY_ID, `KEY`, TRANSACTION_ID
FROM information_schema.ROCKSDB_LOCKS WHERE `KEY` IN ({})"""

WAITS = "Waiting for row lock"
"""The state of a session that waits; InnoDB's waiters have another one."""
MAX_TRANSACTIONS = 20_000
MAX_KEYS = 20
"""The most keys whose owner is queried: those with most waiters."""
MAX_LOCKED = 100_000
"""The server copies all locks before it filters them, with all of them locked meanwhile."""
_INDEX_DIGITS = 8
"""A key begins with the number of its index, in hexadecimal digits. The rest is data."""


class _Key(NamedTuple):
    family: int
    key: str


def read_rocksdb_waits(session: SqlSession, sessions: Sequence[Session]) -> list[LockWait]:
    """Return one wait for each connection that waits for a row of MyRocks.

    Raises: StatementError.
    """
    if not any(s.state == WAITS for s in sessions):
        return []
    try:
        rows = session.select(TRANSACTIONS, max_rows=MAX_TRANSACTIONS)
    except StatementError as error:
        if error.number in NO_SUCH_TABLE:
            return []  # another engine words it alike
        raise
    connections = {int(row[0]): int(row[4]) for row in rows}
    waiting = {int(row[4]): _Key(int(row[1]), str(row[2])) for row in rows if row[2]}
    locked = sum(int(row[3]) for row in rows)
    if locked > MAX_LOCKED:
        raise StatementError(f"owners of MyRocks' locks are not read: there are {locked}", 0)
    keys = [key for key, _ in Counter(waiting.values()).most_common(MAX_KEYS)]
    owners = _owners(session, keys) if keys else {}
    return [
        LockWait(LockKind.ROW, waiter, connections[owners[key]], _name(key.key), "X")
        for waiter, key in waiting.items()
        if key in owners and owners[key] in connections
    ]


def _owners(session: SqlSession, keys: Sequence[_Key]) -> dict[_Key, int]:
    """Return key → transaction."""
    text = LOCKS.format(", ".join(["%s"] * len(keys)))
    found = session.select(text, [key.key for key in keys], max_rows=MAX_TRANSACTIONS)
    return {_Key(int(row[0]), str(row[1])): int(row[2]) for row in found}


def _name(key: str) -> str:
    digits = key[:_INDEX_DIGITS]
    try:
        return f"a row of index {int(digits, 16)}"
    except ValueError:
        return "a row"
