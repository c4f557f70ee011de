# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom in a PostgreSQL, and for which object.

``pg_blocking_pids()`` stops all changes of locks for each session that is asked about (it takes all
partitions of the lock table), so it is asked about those that wait for a lock alone, and about a
limited number of them. ``pg_locks`` has what they wait for, by number; the names of tables are in
the database that they belong to, which is asked on a connection of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stallscope.base.text import one_line
from stallscope.collectors.sql.failures import ConnectError, SqlError
from stallscope.collectors.sql.postgres_session import PostgresSession
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait

__all__ = ["MAX_WAITERS", "LockWaits", "Waiter", "waits_of"]

MAX_WAITERS = 200
"""The most sessions whose blockers are asked for: those that have waited longest."""
MAX_LOCKS = 2000
MAX_NAMED = 20
"""The most tables of a database whose names are asked for."""
MAX_DATABASES = 2
"""The most databases that are asked for names: those with most waiters."""
MAX_BLOCKERS = 1000

BLOCKERS = """\
SELECT w.pid, pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(w.pid), ',')
FROM (VALUES {}) AS w(pid)"""
LOCKS = """\
SELECT l.pid, l.granted, l.locktype, l.mode, l.database, l.relation, l.page, l.tuple,
l.transactionid, l.virtualxid, l.classid, l.objid, l.objsubid, d.datname
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_database d ON d.oid = l.database
WHERE l.pid IN ({}) AND (NOT l.granted OR l.locktype = 'tuple')"""
NAMES = """\
SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({})"""

_TABLE = frozenset({"relation", "extend", "page"})
_ROW = frozenset({"tuple", "transactionid", "spectoken"})

Row = Sequence[str | None]


class Waiter(msgspec.Struct, frozen=True):
    """A session that waits for a lock."""

    connection: int
    seconds: float


class LockWaits(msgspec.Struct, frozen=True):
    """``objects``: the name of a locked object by that which the server's memory has of it."""

    waits: tuple[LockWait, ...] = ()
    objects: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class _Wanted(msgspec.Struct, frozen=True):
    """What a session waits for, as pg_locks has it."""

    kind: LockKind
    mode: str
    text: str
    """As the server's memory has it: ``relation 16384 of database 5``."""
    database: str | None = None
    relation: str | None = None
    place: str = ""
    """Within the table: ``row (0,1) of ``."""


def waits_of(session: PostgresSession, waiters: Iterable[Waiter]) -> LockWaits:
    """Return one wait for each of them whose blocker is known. Raises: SqlError."""
    asked = sorted(waiters, key=lambda waiter: -waiter.seconds)
    notes = []
    if len(asked) > MAX_WAITERS:
        notes.append(
            f"{len(asked)} sessions wait for locks: the blockers of {MAX_WAITERS} were asked for"
        )
    pids = [waiter.connection for waiter in asked[:MAX_WAITERS]]
    if not pids:
        return LockWaits()
    values = ", ".join(f"({pid})" for pid in pids)
    blockers = {
        int(row[0]): [int(word) for word in (row[1] or "").split(",")[:MAX_BLOCKERS] if word]
        for row in session.select(BLOCKERS.format(values), max_rows=MAX_WAITERS)
        if row[0]
    }
    rows = session.select(LOCKS.format(", ".join(map(str, pids))), max_rows=MAX_LOCKS)
    wanted = _wanted(rows)
    try:
        names = _names(session, wanted.values())
    except ConnectError:
        raise
    except SqlError as error:
        names = {}
        notes.append(f"the names of locked tables are not known: {error}")
    waits = []
    prepared = 0
    for pid in pids:
        owner = _owner(blockers.get(pid, ()), blockers)
        if owner == 0:
            prepared += 1
        elif owner is not None and pid in wanted:
            lock = wanted[pid]
            waits.append(LockWait(lock.kind, pid, owner, _name(lock, names), lock.mode))
    if prepared:
        notes.append(
            f"{prepared} sessions wait for a prepared transaction, which has no session: find it"
            " in pg_prepared_xacts, and end it with ROLLBACK PREPARED or COMMIT PREPARED"
        )
    objects = {lock.text: name for lock in wanted.values() if (name := _name(lock, names))}
    return LockWaits(tuple(waits), objects, tuple(notes))


def _owner(blockers: Sequence[int], waiting: Mapping[int, Sequence[int]]) -> int | None:
    """Return the one to name: it does not wait itself, if there is such a one."""
    return min(blockers, key=lambda pid: (pid in waiting, pid), default=None)


def _wanted(rows: Iterable[Row]) -> dict[int, _Wanted]:
    """Return what each session waits for. The first one that waits for a row waits for the
    transaction that has it; meanwhile it holds the lock of the row, which says in which table."""
    found: dict[int, _Wanted] = {}
    tuples: dict[int, _Wanted] = {}
    for row in rows:
        pid = int(row[0] or 0)
        lock = _lock(row)
        if row[1] == "t":
            tuples[pid] = lock
        else:
            found[pid] = lock
    for pid, lock in found.items():
        held = tuples.get(pid)
        if held is not None and lock.relation is None:
            found[pid] = msgspec.structs.replace(
                lock, database=held.database, relation=held.relation, place=held.place
            )
    return found


def _lock(row: Row) -> _Wanted:
    """Return it with the text that pmp/introspect/postgres_locks.c makes of the same lock."""
    _, _, kind, mode, database, relation, page, item, xid, virtual, classid, objid, sub, datname = (
        row
    )
    kind = kind or ""
    table = f"relation {relation} of database {database}"
    place = ""
    match kind:
        case "relation":
            text = table
        case "extend":
            text, place = f"extension of {table}", "extension of "
        case "page":
            text, place = f"page {page} of {table}", f"page {page} of "
        case "tuple":
            text, place = f"tuple ({page},{item}) of {table}", f"row ({page},{item}) of "
        case "transactionid":
            text = f"transaction {xid}"
        case "virtualxid":
            text = f"virtual transaction {virtual}"
        case "advisory":
            text = f"advisory lock [{database},{classid},{objid},{sub}]"
        case "object":
            text = f"object {objid} of class {classid} of database {database}"
        case _:
            text = one_line(kind, 40)
    lock_kind = LockKind.METADATA
    if kind in _TABLE:
        lock_kind = LockKind.TABLE
    elif kind in _ROW:
        lock_kind = LockKind.ROW
    return _Wanted(lock_kind, one_line(mode or "", 40), text, datname, relation, place)


def _names(session: PostgresSession, locks: Iterable[_Wanted]) -> dict[tuple[str, str], str]:
    """Return the names of tables by database and number."""
    counts = Counter(
        (lock.database, lock.relation)
        for lock in locks
        if lock.database is not None and lock.relation is not None and lock.relation.isdigit()
    )
    databases: Counter[str] = Counter()
    for (database, _), count in counts.items():
        databases[database or ""] += count
    found = {}
    for database, _ in databases.most_common(MAX_DATABASES):
        relations = [key[1] for key, _ in counts.most_common() if key[0] == database][:MAX_NAMED]
        statement = NAMES.format(", ".join(str(relation) for relation in relations))
        elsewhere = None if database == session.database else database
        for oid, schema, table in session.select(statement, max_rows=MAX_NAMED, database=elsewhere):
            found[database, oid or ""] = one_line(f"{schema}.{table}", 200)
    return found


def _name(lock: _Wanted, names: Mapping[tuple[str, str], str]) -> str:
    name = names.get((lock.database or "", lock.relation or ""))
    return lock.text if name is None else f"{lock.place}{name}"
