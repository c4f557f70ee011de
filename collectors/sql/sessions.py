# SPDX-License-Identifier: Apache-2.0
"""Fetch what a server says of its connections: stallscope.model.sessions has what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stallscope.collectors.sql import refusals, standing
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.failures import SqlError, StatementError
from stallscope.collectors.sql.lock_waits import Transaction, read_row_locks
from stallscope.collectors.sql.metadata_locks import read_metadata_waits
from stallscope.collectors.sql.perf_threads import (
    MAX_SESSIONS,
    digests,
    last_statements,
    own_connections,
    read_sessions,
)
from stallscope.collectors.sql.processlist import logs_in
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.collectors.sql.rocksdb_locks import read_rocksdb_waits
from stallscope.collectors.sql.user_locks import read_user_lock_waits
from stallscope.model.sessions import UNKNOWN, LockWait, Session, Sessions
from stallscope.server.statements import is_certain

__all__ = ["MODE", "fetch"]

MODE = "SELECT @@global.sql_mode"


def fetch(connection: Connection, deadline: float) -> Sessions:
    """Ask for all connections and lock waits; ``deadline`` in seconds is for all of it.

    Raises nothing: what went wrong is the ``reason``. Where the connections were there in time
    and the lock waits were not, a note says so.
    """
    so_far: list[Sessions] = []
    try:
        return connection.ask(lambda session: _fetch(session, so_far), deadline, name="sessions")
    except SqlError as error:
        if so_far:
            known = so_far[-1]
            note = f"some lock waits are unknown: {error}"
            return msgspec.structs.replace(known, notes=(*known.notes, note))
        return Sessions(
            sessions=(), reason=f"{UNKNOWN}: {error}", values=refusals.values(error, old=True)
        )


def _fetch(session: SqlSession, so_far: list[Sessions]) -> Sessions:
    """Ask step by step; ``so_far`` gets what is known after each."""
    sessions, threads, reason = read_sessions(session)
    facts = session.facts
    known = Sessions(sessions=(), reason=reason, own=facts.connection, pid=facts.listener_pid)
    if reason is not None:
        return known
    ours = own_connections(session)
    sessions = [
        msgspec.structs.replace(s, own=True) if s.connection in ours else s for s in sessions
    ]
    mode = str(session.select(MODE)[0][0])
    known = msgspec.structs.replace(
        known,
        sessions=tuple(sessions),
        ansi_quotes="ANSI_QUOTES" in mode,
        no_backslash_escapes="NO_BACKSLASH_ESCAPES" in mode,
    )
    waits: list[LockWait] = []
    transactions: dict[int, Transaction] | None = None
    notes: list[str] = []
    if len(sessions) >= MAX_SESSIONS:
        notes.append(f"more than {MAX_SESSIONS} connections: the others have no statement")

    def row_locks() -> list[LockWait]:
        nonlocal transactions
        found = read_row_locks(session)
        transactions = found.transactions
        return found.waits

    readers: tuple[Callable[[], list[LockWait]], ...] = (
        lambda: read_metadata_waits(session, sessions, threads),
        lambda: read_user_lock_waits(session, sessions, {wait.waiter for wait in waits}),
        row_locks,
        lambda: read_rocksdb_waits(session, sessions),
    )
    for read in readers:
        so_far.append(msgspec.structs.replace(known, waits=tuple(waits), notes=tuple(notes)))
        try:
            waits += read()
        except StatementError as error:
            notes.append(str(error))
    if transactions is not None:
        sessions = [_in_transaction(s, transactions.get(s.connection)) for s in sessions]
    known = msgspec.structs.replace(
        known, sessions=tuple(sessions), waits=tuple(waits), notes=tuple(notes)
    )
    so_far.append(known)
    logins = sum(logs_in(s.user, s.command) for s in sessions)
    values = {**standing.read(session), "processlist.unauthenticated": float(logins)}
    known = msgspec.structs.replace(known, values=values)
    so_far.append(known)
    whole = _with_last(session, sessions, waits)
    doubtful = {
        s.connection: s.statement for s in whole if s.statement and not is_certain(s.statement)
    }
    return msgspec.structs.replace(known, sessions=tuple(whole), digests=digests(session, doubtful))


def _in_transaction(session: Session, open_: Transaction | None) -> Session:
    if open_ is None:
        return msgspec.structs.replace(session, transaction=False)
    return msgspec.structs.replace(
        session, transaction=True, transaction_seconds=open_.age_s, autocommit=open_.autocommit
    )


def _with_last(
    session: SqlSession, sessions: list[Session], waits: list[LockWait]
) -> list[Session]:
    """Add the last statement of idle connections that can hold a lock: those that a wait names, and
    those in a transaction. It is what took the lock, or near it."""
    owners = {wait.owner for wait in waits}
    silent = {
        s.connection
        for s in sessions
        if (s.connection in owners or s.transaction) and not s.statement
    }
    found = last_statements(session, silent)
    return [
        msgspec.structs.replace(s, statement=found[s.connection]) if s.connection in found else s
        for s in sessions
    ]
