# SPDX-License-Identifier: Apache-2.0
"""A server's own tables of its connections, and how they become part of a capture.

A thread of the capture is matched with a connection by the thread id that the server reports, which
is the kernel's id in the server's own pid namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from stallscope.model import sampled
from stallscope.model.capture import (
    MEMORY,
    OF_TABLES,
    SESSIONS,
    Capture,
    Index,
    Label,
    Lock,
    LockKind,
    Note,
    Thread,
)
from stallscope.server.statements import Statement

__all__ = [
    "MAX_STATEMENT",
    "MEMORY",
    "UNKNOWN",
    "LockWait",
    "Moment",
    "Session",
    "Sessions",
    "annotate",
    "from_memory",
    "missing",
    "raw_statements",
    "redact",
]

UNKNOWN = "connections and statements are unknown"

MAX_STATEMENT = 1024
"""The most characters of a statement; performance_schema keeps no more by default."""

SOURCE = "server"
"""The source of a lock: the server's own tables."""

_LEAST_SHARE = 0.5
"""The least share of connections that must be threads of the capture; with fewer it is another
server."""
_REPLACED = frozenset(
    {LockKind.COND, LockKind.SEM, LockKind.INTERNAL, LockKind.UNKNOWN, LockKind.JOIN}
)
"""Kinds of locks that a thread in a row or metadata wait uses to sleep: they have no owner."""


class Session(msgspec.Struct, frozen=True):
    """One connection."""

    connection: Index
    os_tid: Index | None = None
    """In the server's pid namespace; None where the server does not report it."""
    user: str | None = None
    database: str | None = None
    command: str | None = None
    state: str | None = None
    seconds: float | None = None
    """Seconds in this command."""
    statement: str | None = None
    """The statement, at most MAX_STATEMENT characters; of an idle connection its last one."""
    digest: str | None = None
    """Digest of the normalized statement: if set, ``statement`` has no literals."""
    transaction: bool | None = None
    """Whether it has an open transaction of InnoDB; None: not known."""
    transaction_id: Index | None = None
    """Id of its transaction in InnoDB (``TRX_ID``)."""
    transaction_seconds: float | None = None
    """Seconds since its transaction began."""
    autocommit: bool | None = None
    """Whether its transaction ends with its statement; None: not known."""
    host: str | None = None
    """Where its client is, without the port."""
    process: Index | None = None
    tid: Index | None = None
    """Where it was read from memory: the process of the capture, and the thread in our own pid
    namespace."""
    own: bool = False
    """It is a connection of stallscope, as its statement says."""
    last: bool = False
    """The connection is idle: ``statement`` is the one before."""


class Moment(msgspec.Struct, frozen=True):
    """What was read from the server's memory with one capture of a burst. Threads that did not run
    since the capture before are left out in later ones."""

    number: Index
    """``Capture.moment``."""
    time_ns: Index
    sessions: tuple[Session, ...]
    rejected: Index = 0
    """Threads whose connection could not be read."""
    read_ns: Index = 0
    """The time that it took."""


class LockWait(msgspec.Struct, frozen=True):
    """One connection waits for another."""

    kind: LockKind
    waiter: Index
    owner: Index
    """Connections."""
    name: str | None = None
    """The locked object: ``shop.orders``, ``index PRIMARY of rows_.t1``."""
    mode: str | None = None
    """The requested lock mode, in the server's words."""


class Sessions(msgspec.Struct, frozen=True):
    """All connections, and who waits for whom, as read at one moment."""

    sessions: tuple[Session, ...]
    waits: tuple[LockWait, ...] = ()
    reason: str | None = None
    """Why no thread can be matched with a connection, one sentence; None where it can."""
    notes: tuple[str, ...] = ()
    """What else could not be read, a sentence each."""
    own: Index | None = None
    """The id of our own connection."""
    pid: Index | None = None
    """The server's process, where the kernel reported it for the socket; 0 is not known."""
    ansi_quotes: bool = False
    no_backslash_escapes: bool = False
    """SQL modes of the server."""
    digests: dict[Index, str] = {}
    """The server's own texts without data (DIGEST_TEXT), by connection: of statements in which the
    SQL mode of the session, which only the server knows, says what is data."""
    objects: dict[str, str] = {}
    """Names of locked objects by those that the server's memory has of them: of PostgreSQL
    ``public.orders`` by ``relation 16384 of database 5``."""
    values: dict[str, float] = {}
    """Numbers that were sampled with them (stallscope.model.sampled)."""
    about: dict[str, str] = {}
    """What the numbers are about."""
    memory: tuple[Moment, ...] = ()
    """What the server's memory says: of threads that SQL does not show, and in moments of a
    burst when a thread ran another statement."""

    @property
    def seen(self) -> bool:
        """Return whether memory shows a connection."""
        return any(moment.sessions for moment in self.memory)


def from_memory(memory: tuple[Moment, ...], why: str | None) -> Sessions:
    """Return what the server's memory alone says; ``why`` SQL says nothing, one sentence."""
    return Sessions(sessions=(), memory=memory, reason=why)


def redact(sessions: Sessions, normalize: Callable[..., Statement]) -> Sessions:
    """Return the sessions with ``?`` for the literals of statements.

    ``normalize`` is stallscope.server.statements.normalize.
    """

    def redacted(session: Session, digests: dict[Index, str]) -> Session:
        if not session.statement or session.digest is not None:
            return session
        found = normalize(
            digests.get(session.connection, session.statement),
            ansi_quotes=sessions.ansi_quotes,
            no_backslash_escapes=sessions.no_backslash_escapes,
        )
        return msgspec.structs.replace(session, statement=found.text, digest=found.digest)

    memory = tuple(
        msgspec.structs.replace(moment, sessions=tuple(redacted(s, {}) for s in moment.sessions))
        for moment in sessions.memory
    )
    found = tuple(redacted(session, sessions.digests) for session in sessions.sessions)
    return msgspec.structs.replace(sessions, sessions=found, memory=memory, digests={})


def annotate(capture: Capture, sessions: Sessions) -> Capture:
    """Return the capture with connection, user and statement of each thread, and server's locks.

    A statement that is not redacted is left out. What does not fit becomes a note ``sessions``:
    the capture as it was is returned with it.
    """
    other = _wrong_server(capture, sessions)
    if other is None:
        capture = sampled.add(capture, sessions.values, sessions.about)
    reason = sessions.reason or other
    if reason is not None and sessions.seen:
        said = reason.removeprefix(f"{UNKNOWN}: ")
        reason = f"connections and statements are from the server's memory: {said}"
        sessions = msgspec.structs.replace(sessions, sessions=(), waits=(), notes=())
    elif reason is not None:
        return _noted(capture, (reason,))
    annotated = _annotated_moments(capture, sessions)
    return _noted(annotated, sessions.notes if reason is None else (reason,))


def _annotated_moments(capture: Capture, sessions: Sessions) -> Capture:
    """Annotate all captures of a burst: threads that did not run stay one object in them."""
    locks = _ServerLocks(capture, sessions.objects)
    known: dict[int, Thread] = {}
    moments = [_annotated(moment, sessions, locks, known) for moment in capture.moments]
    moments = [locks.added(moment) for moment in moments]
    return msgspec.structs.replace(moments[0], later=tuple(moments[1:]))


class _ServerLocks:
    """The locks of the server's tables. They have the same numbers in all captures of a burst:
    behind the locks of all."""

    def __init__(self, capture: Capture, objects: dict[str, str]) -> None:
        self._table = max((moment.locks for moment in capture.moments), key=len)
        self._objects = objects
        self._new: list[Lock] = []
        self._numbers: dict[tuple[LockKind, str | None, int], int] = {}

    def number(self, wait: LockWait, owner: Thread) -> int:
        """Return the number of the lock of a wait."""
        key = wait.kind, wait.name, owner.tid
        if key not in self._numbers:
            self._numbers[key] = len(self._table) + len(self._new)
            self._new.append(_server_lock(owner, wait))
        return self._numbers[key]

    def added(self, moment: Capture) -> Capture:
        """Return the capture with them, each with the number of its threads that wait."""
        counts = Counter(thread.lock for thread in moment.threads)
        new = (
            msgspec.structs.replace(lock, waiters=counts[len(self._table) + index])
            for index, lock in enumerate(self._new)
        )
        # Of those in memory that had no owner, the waiters may have a lock of the server now.
        own = (
            msgspec.structs.replace(
                lock,
                waiters=counts[index],
                symbol=self._objects.get(lock.symbol or "", lock.symbol),
            )
            if lock.source == MEMORY
            else lock
            for index, lock in enumerate(moment.locks)
        )
        locks = (*own, *self._table[len(moment.locks) :], *new)
        return msgspec.structs.replace(moment, locks=locks)


def _annotated(
    moment: Capture, sessions: Sessions, locks: _ServerLocks, known: dict[int, Thread]
) -> Capture:
    """Annotate the threads of one capture; ``known``: those of earlier ones, by their identity."""
    found = _matched(moment, sessions)
    in_memory = _in_memory(moment, sessions)
    waits = _fitting(moment, found, sessions)
    threads = []
    for index, thread in enumerate(moment.threads):
        described = known.get(id(thread))
        if described is None:
            described = thread
            if index in found or index in in_memory:
                described = _described(thread, found.get(index), in_memory.get(index), sessions.own)
            if index in waits:
                wait, owner = waits[index]
                number = locks.number(wait, moment.threads[owner])
                described = msgspec.structs.replace(described, lock=number)
            known[id(thread)] = described
        threads.append(described)
    return msgspec.structs.replace(moment, threads=tuple(threads))


def missing(capture: Capture, why: str) -> Capture:
    """Return the capture with a note that says why its threads have no connections."""
    return _noted(capture, (why,))


def raw_statements(sessions: Sessions) -> dict[int, str]:
    """Return statements with their literals by connection, for their own file."""
    seen = [session for moment in sessions.memory for session in moment.sessions]
    return {s.connection: s.statement for s in (*seen, *sessions.sessions) if s.statement}


def _noted(capture: Capture, notes: tuple[str, ...]) -> Capture:
    more = tuple(Note(SESSIONS, note) for note in notes)
    return msgspec.structs.replace(capture, notes=capture.notes + more) if more else capture


def _wrong_server(capture: Capture, sessions: Sessions) -> str | None:
    """Return why these are not the connections of the captured server, None where they are."""
    pids = {process.pid for process in capture.processes}
    if sessions.pid:
        # One backend of PostgreSQL may be captured alone: its parent listens. Process 1 listens for
        # any server that it starts at the first connection.
        if sessions.pid in pids | {one.ppid for one in capture.processes if one.ppid > 1}:
            return None
        return (
            f"SQL answers from process {sessions.pid}, which was not captured: give the options"
            " of the captured server with --defaults-file"
        )
    tids = {thread.ns_tid or thread.tid for thread in capture.threads}
    reported = [s.os_tid for s in sessions.sessions if s.os_tid is not None]
    same = sum(tid in tids for tid in reported)
    if reported and same < _LEAST_SHARE * len(reported):
        return (
            f"SQL answers from another server: {same} of its {len(reported)} connections are"
            " threads of the captured one; give its options with --defaults-file"
        )
    return None


def _matched(capture: Capture, sessions: Sessions) -> dict[int, Session]:
    """Return thread index → session."""
    by_tid = {s.os_tid: s for s in sessions.sessions if s.os_tid is not None}
    process = next((i for i, p in enumerate(capture.processes) if p.pid == sessions.pid), None)
    return {
        index: by_tid[tid]
        for index, thread in enumerate(capture.threads)
        if (tid := thread.ns_tid or thread.tid) in by_tid
        and (process is None or thread.process == process)
    }


def _in_memory(moment: Capture, sessions: Sessions) -> dict[int, Session]:
    """Return thread index → session for those that the server's memory showed at this moment."""
    found = {
        (session.process, session.tid): session
        for one in sessions.memory
        if one.number == moment.moment
        for session in one.sessions
    }
    if not found:
        return {}
    return {
        index: found[thread.process, thread.tid]
        for index, thread in enumerate(moment.threads)
        if (thread.process, thread.tid) in found
    }


def _described(
    thread: Thread, said: Session | None, seen: Session | None, own: int | None
) -> Thread:
    """Describe a thread by what SQL ``said``. What was ``seen`` in memory counts where SQL does not
    know the thread, and where it ran another statement at this moment."""
    if said is None or (seen is not None and seen.connection != said.connection):
        assert seen is not None
        return _with_session(thread, seen, own, MEMORY)
    if seen is not None and seen.digest and not seen.last and seen.digest != said.digest:
        known = ("user", "database", "host", "transaction", "transaction_seconds", "autocommit")
        seen = msgspec.structs.replace(seen, **{name: getattr(said, name) for name in known})
        return _with_session(thread, seen, own, MEMORY)
    if seen is not None and seen.last and said.digest is None:
        said = msgspec.structs.replace(said, statement=seen.statement, digest=seen.digest)
    return _with_session(thread, said, own, None)


def _with_session(thread: Thread, session: Session, own: int | None, source: str | None) -> Thread:
    is_redacted = session.digest is not None
    return msgspec.structs.replace(
        thread,
        connection=session.connection,
        user=session.user,
        database=session.database,
        host=session.host,
        command=session.command,
        activity=session.state,
        query=session.statement if is_redacted else None,
        digest=session.digest,
        transaction=session.transaction,
        transaction_id=session.transaction_id,
        own=thread.own or session.own or session.connection == own,
        age_ns=_ns(session.seconds),
        transaction_ns=_ns(session.transaction_seconds),
        autocommit=session.autocommit,
        source=source,
    )


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(max(0.0, seconds) * 1e9)


def _fitting(
    capture: Capture, found: dict[int, Session], sessions: Sessions
) -> dict[int, tuple[LockWait, int]]:
    """Return the index of each thread that waits, with its wait and the index of the owner."""
    index_of = {session.connection: index for index, session in found.items()}
    fitting: dict[int, tuple[LockWait, int]] = {}
    for wait in sessions.waits:
        waiter, owner = index_of.get(wait.waiter), index_of.get(wait.owner)
        if waiter is None or owner is None or waiter == owner:
            continue
        if _can_wait(capture.threads[waiter], capture.locks):
            fitting[waiter] = wait, owner
    return fitting


def _server_lock(owner: Thread, wait: LockWait) -> Lock:
    return Lock(
        process=owner.process,
        address=0,
        kind=wait.kind,
        owner_tid=owner.tid,
        symbol=wait.name,
        source=SOURCE,
        mode=wait.mode,
    )


def _can_wait(thread: Thread, locks: tuple[Lock, ...]) -> bool:
    """Return whether the stack is of the same wait: it was captured before the server's answer."""
    if thread.on_cpu or thread.label is Label.RUNNING:
        return False
    if thread.lock is None or not 0 <= thread.lock < len(locks):
        return True
    lock = locks[thread.lock]
    if lock.source == MEMORY:  # of the same moment as the stack
        return lock.kind in OF_TABLES and not lock.owner_tid
    return lock.kind in _REPLACED or lock.source == SOURCE
