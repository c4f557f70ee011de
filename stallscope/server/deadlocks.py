# SPDX-License-Identifier: Apache-2.0
"""Deadlocks: who waited for whom, with which statements, and the victim. They are parsed from
InnoDB's status and from error logs. A log may lack the headings (MySQL 8 and later leave them out
unless log_error_verbosity is 3): then a deadlock ends with the transaction that waits for what the
first one holds, and its victim is not known.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stallscope.server.innodb_lines import (
    CONNECTION,
    LOCK,
    OS_THREAD,
    PAGE,
    TRANSACTION,
    activity,
    who,
)
from stallscope.server.statements import Statement, normalize

__all__ = [
    "SCHEMA",
    "Deadlock",
    "DeadlockLock",
    "DeadlockTransaction",
    "Reader",
    "identify",
    "key",
    "of_section",
    "of_status",
]

SCHEMA = "stallscope.deadlock/1"

MAX_TRANSACTIONS = 64
MAX_LOCKS = 64
MAX_HEAP = 64
MAX_QUERY = 16_384

_PREFIX = re.compile(
    r"(?P<when>\d{4}-\d\d-\d\d[T ] ?\d{1,2}:\d\d:\d\d)(?:\.\d{1,9})?\S{0,6} \S{1,20} \[[A-Za-z]+\]"
    r" (?:\[MY-\d+\] \[InnoDB\]|InnoDB:) ?"
)
_OLD_STAMP = re.compile(r"(\d{6} +\d{1,2}:\d\d:\d\d)\s*(?:InnoDB: )?")
_BEGIN = re.compile(r"(?:InnoDB: )?transactions deadlock detected", re.I)
_HEAD = re.compile(r"\*\*\* \((\d{1,4})\) TRANSACTION:")
_VICTIM = re.compile(r"\*\*\* WE ROLL BACK TRANSACTION \((\d{1,4})\)")
_HEAP = re.compile(r"Record lock, heap no (\d{1,9})")
_FIELD = re.compile(r"\s*\d{1,5}: (?:len \d|SQL NULL)")  # a value of a record: data
_SECTION = "LATEST DETECTED DEADLOCK"
_STATUS_STAMP = re.compile(r"\d{2,4}-?\d\d-?\d\d[ T] ?\d{1,2}:\d\d:\d\d")
_RULE = re.compile(r"-{4,}\s*$")
_STAMP = re.compile(r"(?:20)?(\d\d)-?(\d\d)-?(\d\d)[ T] ?(\d{1,2}):(\d\d):(\d\d)")


class DeadlockLock(msgspec.Struct, frozen=True):
    """One lock as the server prints it; records' values are left out, for they are data."""

    kind: str
    """``row`` or ``table``."""
    table: str
    index: str | None = None
    mode: str | None = None
    """``X``, ``S``, ``IX`` and what follows: ``X locks rec but not gap``."""
    space: int | None = None
    page: int | None = None
    heap: tuple[int, ...] = ()
    """Numbers of the records within the page."""


class DeadlockTransaction(msgspec.Struct, frozen=True):
    """One transaction of a deadlock: its statement, held locks and wait."""

    transaction: str
    """Its id as the server prints it."""
    connection: int | None = None
    query_id: int | None = None
    user: str | None = None
    activity: str | None = None
    seconds: int | None = None
    """For how long it had been open."""
    query: str | None = None
    """Its last statement, normalized: the waiting one. Earlier ones took its locks."""
    digest: str | None = None
    holds: tuple[DeadlockLock, ...] = ()
    waits: DeadlockLock | None = None


class Deadlock(msgspec.Struct, frozen=True):
    """Transactions that waited for one another until the server rolled one back."""

    id: str
    """Sorts by time, and is the same for all sources of this deadlock."""
    time_ns: int
    """Wall clock when it was found, which is after it happened."""
    transactions: tuple[DeadlockTransaction, ...]
    source: str
    """``log``: the server's error log; ``status``: LATEST DETECTED DEADLOCK."""
    schema: str = SCHEMA
    server_time: str | None = None
    """Time in the server's format and time zone; None where its log has none."""
    victim: int | None = None
    """Index into ``transactions`` of the one that was rolled back; None where that is unknown."""


def key(transactions: tuple[DeadlockTransaction, ...]) -> str:
    """Return what identifies a deadlock among those of one server.

    A transaction's id and the number of its statement occur once in the life of a server.
    """
    sides = sorted(f"{t.transaction}/{t.connection}/{t.query_id}" for t in transactions)
    return hashlib.sha256(" ".join(sides).encode()).hexdigest()[:12]


def identify(transactions: tuple[DeadlockTransaction, ...], when: str) -> str:
    """Return an id: ``when`` is the server's time, or ours in the same format."""
    match = _STAMP.match(when)
    if match is None:
        return f"unknown-{key(transactions)}"
    year, month, day, hour, minute, second = match.groups()
    return f"20{year}{month}{day}T{int(hour):02}{minute}{second}-{key(transactions)}"


class _Lock(msgspec.Struct):
    kind: str
    table: str
    index: str | None
    mode: str
    waits: bool
    space: int | None = None
    page: int | None = None
    heap: list[int] = msgspec.field(default_factory=list)

    def made(self) -> DeadlockLock:
        return DeadlockLock(
            self.kind, self.table, self.index, self.mode, self.space, self.page, tuple(self.heap)
        )

    def meets(self, other: _Lock) -> bool:
        """Return whether both are locks of one record, or of one table."""
        return (self.kind, self.table, self.index, self.space, self.page) == (
            other.kind,
            other.table,
            other.index,
            other.space,
            other.page,
        ) and (self.kind == "table" or bool(set(self.heap) & set(other.heap)))


class _Transaction(msgspec.Struct):
    id: str
    seconds: int | None
    activity: str | None
    connection: int | None = None
    query_id: int | None = None
    user: str | None = None
    query: list[str] = msgspec.field(default_factory=list)
    in_query: bool = False


class Reader:
    """Parses lines to deadlocks.

    ``when``: of the first one, where it is known. ``headless``: headings can be missing.
    """

    def __init__(
        self,
        source: str,
        *,
        headless: bool = False,
        when: str | None = None,
        sql: Callable[[str], Statement] = normalize,
    ) -> None:
        self._source = source
        self._headless = headless
        self._sql = sql
        self._reset(when)

    def _reset(self, when: str | None = None) -> None:
        self._transactions: list[_Transaction] = []
        self._locks: dict[str, list[_Lock]] = {}
        self._lock: _Lock | None = None
        self._begun = False
        self._headed = False
        self._when = when
        self._victim: int | None = None

    def read(self, lines: Iterable[str], now_ns: int, now: str) -> list[Deadlock]:
        """Return the deadlocks that ended in these lines; ``now`` is ``2026-11-21 15:28:11``."""
        found = []
        for line in lines:
            done = self._line(line.rstrip("\r\n"), now_ns, now)
            if done is not None:
                found.append(done)
        return found

    def end(self, now_ns: int, now: str) -> Deadlock | None:
        """Return the current deadlock, if it is complete enough, and reset the parser."""
        found = self._made(now_ns, now) if len(self._transactions) > 1 else None
        self._reset()
        return found

    def _line(self, line: str, now_ns: int, now: str) -> Deadlock | None:
        when = None
        if match := _PREFIX.match(line):
            when, line = match["when"], line[match.end() :].lstrip()
            self._close_query()
        if _BEGIN.match(line):
            done = self.end(now_ns, now)
            self._begun = self._headed = True
            self._when = when
            return done
        if match := _HEAD.match(line):
            done = self.end(now_ns, now) if match.group(1) == "1" and self._transactions else None
            self._begun = self._headed = True
            self._when = self._when or when
            self._close_query()
            return done
        if match := _VICTIM.match(line):
            self._victim = int(match.group(1)) - 1
            return self.end(now_ns, now)
        return self._body(line, now_ns, now)

    def _body(self, line: str, now_ns: int, now: str) -> Deadlock | None:
        if line.startswith("***"):
            self._close_query()
        elif (match := TRANSACTION.match(line)) and match.group(2) == "ACTIVE":
            if self._begun or self._headless:
                self._add(match)
        elif not self._transactions:
            if match := _OLD_STAMP.match(line):
                self._when = match.group(1) if self._begun else None
        elif match := LOCK.match(line):
            self._add_lock(match)
        elif match := _HEAP.match(line):
            if self._lock is not None and len(self._lock.heap) < MAX_HEAP:
                self._lock.heap.append(int(match.group(1)))
        elif _FIELD.match(line):
            self._close_query()
        elif not line.strip():
            return self._blank(now_ns, now)
        else:
            self._text(line)
        return None

    def _add(self, match: re.Match[str]) -> None:
        self._close_query()
        self._begun = True
        self._lock = None
        thread = OS_THREAD.search(match.group(4))
        seconds = int(match.group(3)) if match.group(3) else None
        if len(self._transactions) < MAX_TRANSACTIONS:
            self._transactions.append(
                _Transaction(match.group(1)[:64], seconds, activity(match.group(4), thread))
            )

    def _add_lock(self, match: re.Match[str]) -> None:
        self._close_query()
        where, more = match["where"], match["more"]
        page = PAGE.match(where)
        self._lock = _Lock(
            kind="table" if match["what"] == "TABLE LOCK" else "row",
            table=page.group(4) if page else where.removeprefix("table "),
            index=page.group(3).strip("`") if page else None,
            mode=f"{match['mode']}{more.replace(' waiting', '')}".strip()[:80],
            waits=more.rstrip().endswith(" waiting"),
            space=int(page.group(1)) if page else None,
            page=int(page.group(2)) if page else None,
        )
        # MariaDB prints the lock of another transaction below the waiting one: its id says whose it
        # is.
        locks = self._locks.setdefault(match["trx"][:64], [])
        known = next((lock for lock in locks if _same(lock, self._lock)), None)
        if known is not None:
            self._lock = known
        elif len(locks) < MAX_LOCKS and len(self._locks) <= MAX_TRANSACTIONS:
            locks.append(self._lock)

    def _text(self, line: str) -> None:
        transaction = self._transactions[-1]
        if transaction.in_query:
            if sum(map(len, transaction.query)) < MAX_QUERY:
                transaction.query.append(line)
        elif transaction.connection is None and (match := CONNECTION.match(line)):
            transaction.connection = int(match.group(1))
            transaction.query_id = int(match.group(3))
            user, state = who(match.group(4))
            transaction.user = user[:80] or None
            transaction.activity = state or transaction.activity
            transaction.in_query = True

    def _blank(self, now_ns: int, now: str) -> Deadlock | None:
        lock, self._lock = self._lock, None
        if self._headed or lock is None or not lock.waits or len(self._transactions) < 2:
            return None
        first = self._locks.get(self._transactions[0].id, [])
        closed = any(held.meets(lock) for held in first if not held.waits)
        return self.end(now_ns, now) if closed else None

    def _close_query(self) -> None:
        if self._transactions:
            self._transactions[-1].in_query = False

    def _made(self, now_ns: int, now: str) -> Deadlock:
        transactions = tuple(map(self._transaction, self._transactions))
        victim = self._victim
        return Deadlock(
            id=identify(transactions, self._when or now),
            time_ns=now_ns,
            transactions=transactions,
            source=self._source,
            server_time=self._when,
            victim=victim if victim is not None and 0 <= victim < len(transactions) else None,
        )

    def _transaction(self, read: _Transaction) -> DeadlockTransaction:
        locks = self._locks.get(read.id, [])
        text = "\n".join(read.query).strip()
        statement = self._sql(text) if text else None
        return DeadlockTransaction(
            transaction=read.id,
            connection=read.connection,
            query_id=read.query_id,
            user=read.user,
            activity=read.activity,
            seconds=read.seconds,
            query=None if statement is None else statement.text,
            digest=None if statement is None else statement.digest,
            holds=tuple(lock.made() for lock in locks if not lock.waits),
            waits=next((lock.made() for lock in locks if lock.waits), None),
        )


def _same(a: _Lock, b: _Lock) -> bool:
    return (a.kind, a.table, a.index, a.mode, a.waits, a.space, a.page) == (
        b.kind,
        b.table,
        b.index,
        b.mode,
        b.waits,
        b.space,
        b.page,
    )


def of_section(
    lines: Sequence[str], now_ns: int, now: str, sql: Callable[[str], Statement] = normalize
) -> Deadlock | None:
    """Return the deadlock of a status' section; its first line says when it was."""
    match = _STATUS_STAMP.match(lines[0]) if lines else None
    reader = Reader("status", when=match.group() if match else None, sql=sql)
    lines = lines[1:] if match else lines
    for index, line in enumerate(lines):
        # The next section begins with a rule. A statement can have such a line in it as well.
        if _RULE.match(line) and index + 2 < len(lines) and _RULE.match(lines[index + 2]):
            break
        if found := reader.read([line], now_ns, now):
            return found[0]
    return reader.end(now_ns, now)


def of_status(
    text: str, now_ns: int, now: str, sql: Callable[[str], Statement] = normalize
) -> Deadlock | None:
    """Return the latest deadlock of SHOW ENGINE INNODB STATUS, if there was one."""
    start = text.find(f"\n{_SECTION}\n")
    if start < 0:
        return None
    lines = text[start + len(_SECTION) + 2 :].split("\n")
    return of_section(lines[1:], now_ns, now, sql) if _RULE.match(lines[0]) else None
