# SPDX-License-Identifier: Apache-2.0
"""What a PostgreSQL says of its sessions: stallscope.model.sessions has what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.base.text import one_line
from stallscope.collectors.sql import postgres_settings, refusals
from stallscope.collectors.sql.failures import SqlError, StatementError
from stallscope.collectors.sql.identity import PROGRAM
from stallscope.collectors.sql.postgres_locks import Waiter, waits_of
from stallscope.collectors.sql.postgres_session import PostgresConnection, PostgresSession
from stallscope.model.sessions import MAX_STATEMENT, UNKNOWN, Session, Sessions

__all__ = ["ACTIVITY", "fetch", "read_sessions", "session_of", "sessions_of"]

MAX_SESSIONS = 20_000
# Columns of all versions from 10 on. Ages are of one moment: now() is that of the transaction.
ACTIVITY = """\
SELECT pid, usename, datname, CASE WHEN client_port = -1 THEN '[local]'
ELSE pg_catalog.host(client_addr) END, application_name, backend_type, state, wait_event_type,
wait_event, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - xact_start),
pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()
- CASE WHEN state = 'active' THEN query_start ELSE state_change END),
query
FROM pg_catalog.pg_stat_activity"""
_HIDDEN = "<insufficient privilege>"
"""What the server shows in place of a statement that the role may not see."""
_LOCK = "Lock"
"""The class of waits for locks of tables, rows and transactions."""
_QUIET = frozenset({"ClientRead", "WalSenderMain"})
"""Waits for work."""
_ACTIVE = "active"
_CLIENT = "client backend"
_NAME = 128
MAX_SECONDS = 1e10

Row = Sequence[str | None]


def fetch(connection: PostgresConnection, deadline: float) -> Sessions:
    """Ask for all sessions and lock waits; ``deadline`` in seconds is for all of it.

    Raises nothing: what went wrong is the ``reason``. Where the sessions were there in time and the
    lock waits were not, a note says so.
    """
    so_far: list[Sessions] = []
    try:
        return connection.ask(lambda session: _fetch(session, so_far), deadline, name="sessions")
    except SqlError as error:
        if so_far:
            note = f"some lock waits are unknown: {error}"
            return msgspec.structs.replace(so_far[-1], notes=(*so_far[-1].notes, note))
        return Sessions(
            sessions=(), reason=f"{UNKNOWN}: {error}", values=refusals.values(error, old=True)
        )
    except (ValueError, TypeError, IndexError, OverflowError) as error:  # no PostgreSQL answers so
        said = one_line(str(error), 100)
        return Sessions(sessions=(), reason=f"{UNKNOWN}: the answer cannot be read: {said}")


def read_sessions(session: PostgresSession) -> list[Session]:
    """Return all sessions, as they are in pg_stat_activity. Raises: SqlError."""
    return sessions_of(session.select(ACTIVITY, max_rows=MAX_SESSIONS))


def sessions_of(rows: Sequence[Row]) -> list[Session]:
    """Return the sessions of the rows that the role may see."""
    return [session_of(row) for row in rows if row[0] and row[11] != _HIDDEN]


def _fetch(session: PostgresSession, so_far: list[Sessions]) -> Sessions:
    """Ask step by step; ``so_far`` gets what is known after the first."""
    rows = session.select(ACTIVITY, max_rows=MAX_SESSIONS)
    facts = session.facts
    known = Sessions(
        sessions=tuple(sessions_of(rows)),
        own=facts.connection,
        pid=facts.listener_pid,
        # What is in double quotes is a name, and a backslash is a character.
        ansi_quotes=True,
        no_backslash_escapes=True,
    )
    hidden = sum(row[11] == _HIDDEN for row in rows)
    right = f"GRANT pg_monitor TO {_quoted(session.role)}"
    if hidden and not any(not one.own for one in known.sessions if one.user is not None):
        reason = f"{UNKNOWN}: the server shows role {session.role} only its own session: {right}"
        return msgspec.structs.replace(known, sessions=(), reason=reason)
    notes = []
    if hidden:
        notes.append(
            f"{hidden} of {len(rows)} sessions are hidden from role {session.role}: {right}"
        )
    if len(rows) >= MAX_SESSIONS:
        notes.append(f"more than {MAX_SESSIONS} sessions: the others have no statement")
    known = msgspec.structs.replace(known, notes=tuple(notes))
    so_far.append(known)
    clients = sum(row[5] == _CLIENT and row[4] != PROGRAM for row in rows)
    values = {**postgres_settings.read(session, own=1), "backends.total": float(clients)}
    known = msgspec.structs.replace(known, values=values)
    so_far.append(known)
    waiters = [
        Waiter(int(row[0]), _number(row[10]) or 0.0) for row in rows if row[0] and row[7] == _LOCK
    ]
    if not waiters:
        return known
    try:
        found = waits_of(session, waiters)
    except StatementError as error:
        return msgspec.structs.replace(known, notes=(*notes, str(error)))
    return msgspec.structs.replace(
        known, waits=found.waits, objects=found.objects, notes=(*notes, *found.notes)
    )


def session_of(row: Row) -> Session:
    """Return what a row of ACTIVITY says."""
    pid, user, database, host, program, kind, state, wait, event, transaction, seconds, query = row
    own = program == PROGRAM
    doing = _word(state)
    if state == _ACTIVE and wait is not None and event not in _QUIET:
        doing = f"{doing}, waits for {_word(wait)} {_word(event)}"
    return Session(
        connection=int(pid or 0),
        os_tid=int(pid or 0),
        user=_word(user),
        database=_word(database),
        host=_word(host),
        command=_word(kind),
        state=doing,
        seconds=_number(seconds),
        statement=query[:MAX_STATEMENT] if query else None,
        transaction=transaction is not None if state is not None else None,
        transaction_seconds=_number(transaction),
        own=own,
        last=bool(query) and state != _ACTIVE,
    )


def _quoted(role: str) -> str:
    """Return a role as SQL takes it."""
    if role.isascii() and role.isidentifier() and role.islower():
        return role
    return '"' + role.replace('"', '""') + '"'


def _word(text: str | None) -> str | None:
    return one_line(text, _NAME) if text else None


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        return None
    return min(max(0.0, found), MAX_SECONDS) if found == found else None
