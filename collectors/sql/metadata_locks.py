# SPDX-License-Identifier: Apache-2.0
"""Metadata-lock waits and their owners.

MySQL has ``performance_schema.metadata_locks`` from 5.7 on. MariaDB's plugin METADATA_LOCK_INFO
lists held locks only: there the states of the connections say who waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stallscope.base.text import one_line
from stallscope.collectors.sql.collecting import SqlCollector
from stallscope.collectors.sql.failures import NO_SUCH_TABLE, StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.user_locks import SHOWN, USER_LOCK
from stallscope.model.capture import LockKind
from stallscope.model.sessions import LockWait, Session

__all__ = ["MetadataLocks", "read_metadata_waits", "waits_of"]

PENDING = """\
SELECT OBJECT_TYPE, OBJECT_SCHEMA, OBJECT_NAME, LOCK_TYPE, LOCK_STATUS, OWNER_THREAD_ID
FROM performance_schema.metadata_locks WHERE LOCK_STATUS = 'PENDING'"""
GRANTED = """\
SELECT OBJECT_TYPE, OBJECT_SCHEMA, OBJECT_NAME, LOCK_TYPE, LOCK_STATUS, OWNER_THREAD_ID
FROM performance_schema.metadata_locks
WHERE LOCK_STATUS = 'GRANTED' AND OBJECT_TYPE IN ({types}) AND ({objects})"""
OBJECT = "(OBJECT_SCHEMA <=> %s AND OBJECT_NAME <=> %s)"
COUNTS = """\
SELECT LOCK_STATUS, COUNT(*), COUNT(DISTINCT OBJECT_TYPE, OBJECT_SCHEMA, OBJECT_NAME)
FROM performance_schema.metadata_locks GROUP BY LOCK_STATUS"""
PLUGIN = """\
SELECT THREAD_ID, LOCK_MODE, LOCK_TYPE, TABLE_SCHEMA, TABLE_NAME
FROM information_schema.METADATA_LOCK_INFO"""

MAX_LOCKS = 20_000
MAX_OBJECTS = 20
_NOT_SHOWN = NO_SUCH_TABLE | {1142}
"""Nor may this account read the table."""
_NO_PLUGIN = (
    "MariaDB reports owners of metadata locks only with a plugin:"
    " INSTALL SONAME 'metadata_lock_info'"
)

# Which requests a lock blocks (sql/mdl.cc of MySQL 8): of locks on objects, and on scopes.
_HELD_KEEPS_OUT = {
    "SHARED": "X",
    "SHARED_HIGH_PRIO": "X",
    "SHARED_READ": "SNRW X",
    "SHARED_WRITE": "SRO SNW SNRW X",
    "SHARED_WRITE_LOW_PRIO": "SRO SNW SNRW X",
    "SHARED_UPGRADABLE": "SU SNW SNRW X",
    "SHARED_READ_ONLY": "SW SWLP SNRW X",
    "SHARED_NO_WRITE": "SW SWLP SU SNW SNRW X",
    "SHARED_NO_READ_WRITE": "SR SW SWLP SU SRO SNW SNRW X",
    "EXCLUSIVE": "S SH SR SW SWLP SU SRO SNW SNRW X IX",
    "INTENTION_EXCLUSIVE": "S X",
}
_PENDING_KEEPS_OUT = {
    "EXCLUSIVE": "S SR SW SWLP SU SRO SNW SNRW IX",
    "SHARED_NO_READ_WRITE": "SR SW SWLP SRO",
    "SHARED_NO_WRITE": "SW SWLP",
    "SHARED_WRITE": "SRO",
    "SHARED_READ_ONLY": "SWLP",
    "SHARED": "IX",
}
_SHORT = {
    "SHARED": "S",
    "SHARED_HIGH_PRIO": "SH",
    "SHARED_READ": "SR",
    "SHARED_WRITE": "SW",
    "SHARED_WRITE_LOW_PRIO": "SWLP",
    "SHARED_UPGRADABLE": "SU",
    "SHARED_READ_ONLY": "SRO",
    "SHARED_NO_WRITE": "SNW",
    "SHARED_NO_READ_WRITE": "SNRW",
    "EXCLUSIVE": "X",
    "INTENTION_EXCLUSIVE": "IX",
}
_SCOPES = frozenset({"GLOBAL", "COMMIT", "SCHEMA", "TABLESPACE", "BACKUP LOCK", "BACKUP TABLES"})
"""There SHARED and INTENTION_EXCLUSIVE block each other."""
_NAMED = _SCOPES | {
    *("TABLE", "FUNCTION", "PROCEDURE", "PACKAGE BODY", "TRIGGER", "EVENT", "COLUMN STATISTICS"),
    *("FOREIGN KEY", "CHECK CONSTRAINT", "ACL CACHE"),
}
"""Kinds whose names are of objects of the server; those of others are chosen by a client."""


class Held(msgspec.Struct, frozen=True):
    """A metadata lock, held or requested."""

    kind: str
    """``TABLE``, ``GLOBAL``, …"""
    name: str
    mode: str
    granted: bool
    connection: int


class MetadataLocks(SqlCollector):
    """``metadata_locks.granted``, ``.pending``, ``.pending_objects``."""

    name = "metadata_locks"

    def read(self, session: SqlSession) -> dict[str, float]:
        if session.version.mariadb:
            return {"metadata_locks.granted": float(len(_by_plugin(session)))}
        try:
            rows = session.select(COUNTS, max_rows=10)
        except StatementError as error:
            raise StatementError(_why_not(session, error), error.number) from error
        counts = {str(row[0]): (float(row[1]), float(row[2])) for row in rows}
        pending = counts.get("PENDING", (0.0, 0.0))
        return {
            "metadata_locks.granted": counts.get("GRANTED", (0.0, 0.0))[0],
            "metadata_locks.pending": pending[0],
            "metadata_locks.pending_objects": pending[1],
        }


def read_metadata_waits(
    session: SqlSession, sessions: Sequence[Session], threads: Mapping[int, int]
) -> list[LockWait]:
    """Return one wait for each connection that waits for a metadata lock.

    ``threads``: number of performance_schema → connection. Raises: StatementError.
    """
    waiting = {
        s.connection
        for s in sessions
        if ((s.state or "").startswith("Waiting for") and "lock" in (s.state or ""))
        or s.state == USER_LOCK
    }
    if not waiting:
        return []
    if session.version.mariadb:
        tables = {s.connection for s in sessions if "table metadata lock" in (s.state or "")}
        return _guided(_by_plugin(session), tables) if tables else []
    try:
        pending = _held(session.select(PENDING, max_rows=MAX_LOCKS), threads)
        if not pending:
            return []
        granted = _held(_granted(session, pending), threads)
    except StatementError as error:
        raise StatementError(_why_not(session, error), error.number) from error
    return waits_of([*granted, *pending])


def _why_not(session: SqlSession, error: StatementError) -> str:
    if error.number in _NOT_SHOWN:
        return f"{session.version.text} does not report metadata locks, or not to this account"
    return str(error)


def _granted(session: SqlSession, pending: Sequence[Held]) -> list[tuple[object, ...]]:
    """Return the holders of the requested locks."""
    objects = [
        key for key, _ in Counter((h.kind, h.name) for h in pending).most_common(MAX_OBJECTS)
    ]
    arguments: list[object] = []
    arguments += sorted({kind for kind, _ in objects})
    types = ", ".join(["%s"] * len(arguments))
    for _, name in objects:
        schema, _, table = name.partition("\0")
        arguments += [schema or None, table or None]
    text = GRANTED.format(types=types, objects=" OR ".join([OBJECT] * len(objects)))
    return list(session.select(text, arguments, max_rows=MAX_LOCKS))


def _held(rows: Sequence[tuple[object, ...]], threads: Mapping[int, int]) -> list[Held]:
    found = []
    for kind, schema, name, mode, status, thread in rows:
        connection = threads.get(int(str(thread)))
        if connection is not None:
            whole = f"{schema or ''}\0{name or ''}"
            found.append(Held(str(kind), whole, str(mode), status == "GRANTED", connection))
    return found


def waits_of(locks: Sequence[Held]) -> list[LockWait]:
    """Return whom each connection with a pending lock waits for.

    Held locks come before those that others only wait for; the longest queue is first.
    """
    by_object: dict[tuple[str, str], list[Held]] = {}
    for lock in locks:
        by_object.setdefault((lock.kind, lock.name), []).append(lock)
    found: dict[int, LockWait] = {}
    for (kind, name), there in by_object.items():
        shown = _shown(kind, name)
        for wanted in there:
            if wanted.granted or wanted.connection in found:
                continue
            owner = _owner(kind, wanted, there)
            if owner is not None:
                found[wanted.connection] = LockWait(
                    LockKind.METADATA, wanted.connection, owner, shown, one_line(wanted.mode, 40)
                )
    return list(found.values())


def _shown(kind: str, name: str) -> str:
    if kind.startswith("USER"):
        return SHOWN
    if kind not in _NAMED:
        return f"{one_line(kind.lower(), 40)} ?"
    return one_line(name.replace("\0", ".").strip(".") or kind.lower(), 200)


def _owner(kind: str, wanted: Held, there: Sequence[Held]) -> int | None:
    short = _SHORT.get(wanted.mode)
    for granted, table in ((True, _HELD_KEEPS_OUT), (False, _PENDING_KEEPS_OUT)):
        for lock in there:
            if lock.granted is not granted or lock.connection == wanted.connection:
                continue
            keeps_out = table.get(lock.mode, "").split()
            if kind in _SCOPES and lock.mode == "SHARED":
                keeps_out = ["IX", "X"]
            if short in keeps_out:
                return lock.connection
    return None


def _by_plugin(session: SqlSession) -> list[Held]:
    try:
        rows = session.select(PLUGIN, max_rows=MAX_LOCKS)
    except StatementError as error:
        if error.number in _NOT_SHOWN:
            raise StatementError(_NO_PLUGIN, error.number) from error
        raise
    return [
        Held(
            kind="TABLE" if "table" in str(kind).lower() else str(kind),
            name=f"{schema or ''}\0{name or ''}",
            mode=str(mode).removeprefix("MDL_"),
            granted=True,
            connection=int(connection),
        )
        for connection, mode, kind, schema, name in rows
    ]


def _guided(held: Sequence[Held], waiting: set[int]) -> list[LockWait]:
    """Find owners where only held locks are listed.

    A connection that waits and holds an upgradable lock is a DDL: it waits for the other holders of
    the table. The others wait for it, but not for which table is not reported: they are left out
    where there is more than one such DDL.
    """
    found: list[LockWait] = []
    for lock in held:
        if lock.connection not in waiting or lock.kind != "TABLE":
            continue
        if not lock.mode.startswith(("SHARED_UPGRADABLE", "SHARED_NO_")):
            continue
        wanted = msgspec.structs.replace(lock, mode="EXCLUSIVE", granted=False)
        there = [h for h in held if (h.kind, h.name) == (lock.kind, lock.name)]
        idle_first = sorted(there, key=lambda h: h.connection in waiting)
        owner = _owner(lock.kind, wanted, idle_first)
        if owner is not None:
            shown = one_line(lock.name.replace("\0", "."), 200)
            found.append(LockWait(LockKind.METADATA, lock.connection, owner, shown, "EXCLUSIVE"))
    if len(found) != 1:
        return found
    ddl = found[0]
    others = waiting - {ddl.waiter, ddl.owner}
    return found + [
        LockWait(LockKind.METADATA, waiter, ddl.waiter, ddl.name) for waiter in sorted(others)
    ]
