# SPDX-License-Identifier: Apache-2.0
"""Deadlocks: who waited for whom, with which statements, and whom it cost."""

from __future__ import annotations

import hashlib
import re

import msgspec

__all__ = ["SCHEMA", "Deadlock", "DeadlockLock", "DeadlockTransaction", "identify", "key"]

SCHEMA = "stallscope.deadlock/1"


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
    """One side of a deadlock: what it ran, held and waited for."""

    transaction: str
    """Its id as the server prints it."""
    connection: int | None = None
    query_id: int | None = None
    user: str | None = None
    activity: str | None = None
    seconds: int | None = None
    """For how long it had been open."""
    query: str | None = None
    """Its last statement, normalized: the one that waited. Earlier ones took the locks it holds."""
    digest: str | None = None
    holds: tuple[DeadlockLock, ...] = ()
    waits: DeadlockLock | None = None


class Deadlock(msgspec.Struct, frozen=True):
    """Transactions that waited for one another until the server rolled one back."""

    id: str
    """Sorts by time, and is the same wherever this deadlock was read."""
    time_ns: int
    """Wall clock when it was learnt of, which is after it happened."""
    transactions: tuple[DeadlockTransaction, ...]
    source: str
    """``log``: the server's error log; ``status``: LATEST DETECTED DEADLOCK."""
    schema: str = SCHEMA
    server_time: str | None = None
    """In the server's own words and time zone; None where its log does not say."""
    victim: int | None = None
    """Index into ``transactions`` of the one that was rolled back; None where it is not told."""


_STAMP = re.compile(r"(?:20)?(\d\d)-?(\d\d)-?(\d\d)[ T] ?(\d{1,2}):(\d\d):(\d\d)")


def key(transactions: tuple[DeadlockTransaction, ...]) -> str:
    """Return what tells a deadlock from every other one of the same server.

    A transaction's id and the number of its statement occur once in the life of a server.
    """
    who = sorted(f"{t.transaction}/{t.connection}/{t.query_id}" for t in transactions)
    return hashlib.sha256(" ".join(who).encode()).hexdigest()[:12]


def identify(transactions: tuple[DeadlockTransaction, ...], when: str) -> str:
    """Return an id: ``when`` is the server's time, or one of ours in the same form."""
    match = _STAMP.match(when)
    if match is None:
        return f"unknown-{key(transactions)}"
    year, month, day, hour, minute, second = match.groups()
    return f"20{year}{month}{day}T{int(hour):02}{minute}{second}-{key(transactions)}"
