# SPDX-License-Identifier: Apache-2.0
"""Row-lock waits and their owners, from the tables of each version.

MySQL 8 and later have ``performance_schema.data_lock_waits``, MySQL 5.5 to 5.7 and MariaDB
``information_schema.INNODB_LOCK_WAITS``. Both list each waiter once for every transaction before it
in the queue, so that 1,000 waiters of one row make half a million rows. So only waiters behind a
transaction that does not wait itself are queried, and the server counts them.

``data_lock_waits`` has an index in name only: MySQL goes through all transactions for each id in
``IN``, under the latches of the lock system. With 500 open transactions that takes seconds. So a
few waiters are looked up first. Where they wait for a few transactions, as all waiters of one row
do, these are looked up; otherwise the table is read once, and filtered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import SqlCollector
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import NO_SUCH_TABLE, StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait

__all__ = ["LockWaits", "RowLocks", "Transaction", "read_lock_waits", "read_row_locks"]

TRANSACTIONS = """\
SELECT trx_id, trx_state, trx_mysql_thread_id,
TIMESTAMPDIFF(SECOND, trx_wait_started, NOW()), TIMESTAMPDIFF(SECOND, trx_started, NOW()), {}
FROM information_schema.INNODB_TRX"""
AUTOCOMMIT = "trx_autocommit_non_locking"
AUTOCOMMIT_SINCE = {"mysql": (5, 6, 4), "mariadb": (10, 0, 0)}
# Whom a few waiters wait for, of the transactions that do not wait themselves. The sum keeps MySQL
# from looking each id up.
BLOCKERS = """\
SELECT DISTINCT BLOCKING_ENGINE_TRANSACTION_ID FROM performance_schema.data_lock_waits
WHERE REQUESTING_ENGINE_TRANSACTION_ID IN ({}) AND BLOCKING_ENGINE_TRANSACTION_ID + 0 IN ({})"""
DATA_LOCK_WAITS = """\
SELECT REQUESTING_ENGINE_TRANSACTION_ID, MIN(BLOCKING_ENGINE_TRANSACTION_ID),
MIN(REQUESTING_ENGINE_LOCK_ID)
FROM performance_schema.data_lock_waits
WHERE {} IN ({}) GROUP BY REQUESTING_ENGINE_TRANSACTION_ID"""
BLOCKING, REQUESTING = "BLOCKING_ENGINE_TRANSACTION_ID", "REQUESTING_ENGINE_TRANSACTION_ID"
# First the waiters behind a transaction that does not wait itself, then the others.
INNODB_LOCK_WAITS = """\
SELECT requesting_trx_id, MIN(blocking_trx_id), MIN(requested_lock_id)
FROM information_schema.INNODB_LOCK_WAITS
WHERE {}_trx_id IN ({}) GROUP BY requesting_trx_id"""
DATA_LOCKS = """\
SELECT ENGINE_LOCK_ID, OBJECT_SCHEMA, OBJECT_NAME, INDEX_NAME, LOCK_MODE
FROM performance_schema.data_locks WHERE ENGINE_LOCK_ID IN ({})"""
INNODB_LOCKS = """\
SELECT lock_id, NULL, lock_table, lock_index, lock_mode
FROM information_schema.INNODB_LOCKS WHERE lock_id IN ({})"""

MAX_TRANSACTIONS = 20_000
MAX_ROOTS = 1000
MAX_CHAINED = 200
"""The most waiters behind other waiters that are queried."""
MAX_LOOKED_UP = 20
"""The same of MySQL 8 and later: there each one is a lookup."""
SAMPLE = 10
"""Waiters that are looked up first."""
FEW = 3
"""So many transactions for which they wait are looked up; else the table is read once."""
ROUNDS = 3
"""The most samples: each finds other transactions."""
MAX_NAMED = 10
"""The most locks whose table is queried: those with most waiters."""

_WAITS = "LOCK WAIT"
AUTO_INC = "AUTO_INC"
"""Part of the mode of a lock that a table's counter has, and no row."""


class Transaction(msgspec.Struct, frozen=True):
    """An open transaction."""

    waits: bool
    connection: int
    waited_s: float
    age_s: float
    autocommit: bool | None
    """Whether it is one SELECT that ends with itself; None: the server does not say."""


class LockWaits(SqlCollector):
    """``lock_waits.waiting``, ``.blockers``, ``.longest_s``, and ``transactions.*``."""

    name = "lock_waits"

    def __init__(
        self, connection: Connection, deadline: float | None = None, *, needed: bool = True
    ) -> None:
        """``needed``: somebody decides by the values; else nothing is asked of a server that would
        hold its kernel mutex meanwhile."""
        super().__init__(connection, deadline)
        self._needed = needed

    def read(self, session: SqlSession) -> dict[str, float]:
        if not self._needed and session.version.has_kernel_mutex:
            return {}
        transactions = _transactions(session)
        waits = _waits(session, transactions, named=False)
        owners = Counter(wait.owner for wait in waits)
        return {
            "lock_waits.waiting": float(sum(t.waits for t in transactions.values())),
            "lock_waits.blockers": float(len(owners)),
            "lock_waits.largest": float(max(owners.values(), default=0)),
            "lock_waits.longest_s": max((t.waited_s for t in transactions.values()), default=0.0),
            "transactions.open": float(len(transactions)),
            "transactions.oldest_s": max((t.age_s for t in transactions.values()), default=0.0),
        }


class RowLocks(NamedTuple):
    """Waits for rows, and the open transactions by connection."""

    waits: list[LockWait]
    transactions: dict[int, Transaction]


def read_lock_waits(session: SqlSession) -> list[LockWait]:
    """Return one wait for each connection that waits for a row. Raises: StatementError."""
    return read_row_locks(session).waits


def read_row_locks(session: SqlSession) -> RowLocks:
    """Return waits and transactions, as of one moment. Raises: StatementError."""
    transactions = _transactions(session)
    by_connection = {t.connection: t for t in transactions.values()}
    return RowLocks(_waits(session, transactions, named=True), by_connection)


def _transactions(session: SqlSession) -> dict[str, Transaction]:
    if not session.has_process:
        raise StatementError("row-lock waits cannot be read: GRANT PROCESS ON *.* TO it", 1227)
    version = session.version
    since = AUTOCOMMIT_SINCE["mariadb" if version.mariadb else "mysql"]
    statement = TRANSACTIONS.format(AUTOCOMMIT if version.numbers >= since else "NULL")
    rows = session.select(statement, max_rows=MAX_TRANSACTIONS)
    return {
        str(row[0]): Transaction(
            waits=row[1] == _WAITS,
            connection=int(row[2] or 0),
            waited_s=max(0.0, float(row[3] or 0)),
            age_s=max(0.0, float(row[4] or 0)),
            autocommit=None if row[5] is None else bool(int(row[5])),
        )
        for row in rows
    }


def _waits(
    session: SqlSession, transactions: dict[str, Transaction], *, named: bool
) -> list[LockWait]:
    if not any(t.waits for t in transactions.values()):
        return []
    roots = [key for key, t in transactions.items() if not t.waits][:MAX_ROOTS]
    rows, locks = _ask(session, roots, [key for key, t in transactions.items() if t.waits])
    by_owner: dict[str, list[tuple[str, str]]] = {}
    for requesting, blocking, lock in rows:
        by_owner.setdefault(str(blocking), []).append((str(requesting), str(lock)))
    most = sorted(by_owner, key=lambda owner: -len(by_owner[owner]))[:MAX_NAMED]
    names = _names(session, locks, [by_owner[owner][0][1] for owner in most]) if named else {}
    found: list[LockWait] = []
    for owner, waiters in by_owner.items():
        name, mode = names.get(waiters[0][1], (None, None))
        for waiter, _ in waiters:
            if waiter in transactions and owner in transactions:
                found.append(
                    LockWait(
                        LockKind.AUTO_INC if mode and AUTO_INC in mode else LockKind.ROW,
                        transactions[waiter].connection,
                        transactions[owner].connection,
                        name,
                        mode,
                    )
                )
    return found


def _ask(
    session: SqlSession, roots: Sequence[str], waiting: Sequence[str]
) -> tuple[list[tuple[object, ...]], str]:
    """Return a row for each waiter, and the statement that names their locks."""
    if not session.version.mariadb:
        try:
            return _data_lock_waits(session, roots, waiting), DATA_LOCKS
        except StatementError as error:
            if error.number not in NO_SUCH_TABLE:
                raise
    return _innodb_lock_waits(session, roots, waiting), INNODB_LOCKS


def _data_lock_waits(
    session: SqlSession, roots: Sequence[str], waiting: Sequence[str]
) -> list[tuple[object, ...]]:
    """Query the waiters behind ``roots``, then those of ``waiting`` that are behind others, with as
    few lookups as possible."""
    wanted = list(map(_id, roots))
    found: dict[str, tuple[object, ...]] = {}

    def left() -> list[str]:
        return [key for key in waiting if key not in found]

    def select(column: str, ids: Sequence[object]) -> None:
        text = DATA_LOCK_WAITS.format(column, _places(ids))
        for row in session.select(text, ids, max_rows=MAX_TRANSACTIONS):
            found.setdefault(str(row[0]), row)

    for _ in range(ROUNDS):
        if not wanted or not left():
            break
        some = left()
        sample = list(map(_id, some[:: max(1, len(some) // SAMPLE)][:SAMPLE]))
        asked = BLOCKERS.format(_places(sample), _places(wanted))
        blockers = [row[0] for row in session.select(asked, [*sample, *wanted])]
        if len(blockers) > FEW:
            select(f"{BLOCKING} + 0", wanted)
            break
        if not blockers:
            break
        select(BLOCKING, blockers)
    if some := left()[:MAX_LOOKED_UP]:
        select(REQUESTING, some)
    return list(found.values())


def _innodb_lock_waits(
    session: SqlSession, roots: Sequence[str], waiting: Sequence[str]
) -> list[tuple[object, ...]]:
    """Query the waiters behind ``roots``, then those of ``waiting`` that are behind others."""
    found: list[tuple[object, ...]] = []
    left = list(waiting)
    for side, ids in (("blocking", roots), ("requesting", left)):
        if ids:
            text = INNODB_LOCK_WAITS.format(side, _places(ids))
            found += session.select(text, list(ids), max_rows=MAX_TRANSACTIONS)
            seen = {str(line[0]) for line in found}
            left[:] = [key for key in left if key not in seen][:MAX_CHAINED]
    return found


def _id(key: str) -> int | str:
    """Return an id as MySQL 8 compares it without a conversion of each row; older ones are text."""
    return int(key) if key.isdecimal() else key


def _places(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _names(
    session: SqlSession, statement: str, ids: list[str]
) -> dict[str, tuple[str | None, str | None]]:
    """Return lock id → table, index and mode."""
    if not ids:
        return {}
    rows = session.select(statement.format(_places(ids)), ids, max_rows=100)
    found: dict[str, tuple[str | None, str | None]] = {}
    for lock, schema, table, index, mode in rows:
        whole = ".".join(str(part).replace("`", "") for part in (schema, table) if part)
        of = f"index {str(index).replace('`', '')} of {whole}" if index else whole
        found[str(lock)] = (one_line(of, 200), one_line(str(mode), 40))
    return found
