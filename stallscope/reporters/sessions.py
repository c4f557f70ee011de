# SPDX-License-Identifier: Apache-2.0
"""Connections and statements of threads, as far as the server reported them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stallscope.base.text import one_line
from stallscope.model.capture import Thread
from stallscope.model.sessions import MEMORY
from stallscope.reporters.units import duration

__all__ = ["account", "frequent_statements", "has_ended", "session", "statement", "who"]


def session(thread: Thread) -> str:
    """Return connection, user, database and activity; or nothing."""
    parts = []
    if thread.connection is not None:
        parts.append(f"connection {thread.connection}")
    if thread.user:
        parts.append(f"user {thread.user}")
    if thread.host:
        parts.append(f"from {thread.host}")
    if thread.database:
        parts.append(f"database {thread.database}")
    if thread.transaction_id:
        parts.append(f"transaction {thread.transaction_id}")
    doing = [] if thread.command in (None, "Query") else [str(thread.command)]
    if thread.activity:
        doing.append(thread.activity)
    if thread.age_ns is not None and thread.connection is not None:
        doing = [f"{', '.join(doing) or 'running'} for {duration(thread.age_ns / 1e6)}"]
    parts += doing
    text = ", ".join(parts)
    return f"{text} (from the server's memory)" if thread.source == MEMORY else text


def account(thread: Thread) -> str:
    """Return the user and the client's host, ``root@10.0.0.7``, as far as they are known."""
    if not thread.host:
        return thread.user or ""
    return f"{thread.user or '?'}@{thread.host}"


def who(thread: Thread) -> str:
    """Return the connection as a DBA names it: ``connection 5, root@10.0.0.7, shop, idle in
    transaction 246 s``; or nothing. Its statement is not part of it."""
    parts = []
    if thread.connection is not None:
        parts.append(f"connection {thread.connection}")
    if account(thread):
        parts.append(account(thread))
    if thread.database:
        parts.append(thread.database)
    doing = _doing(thread)
    if doing and parts:
        parts.append(doing)
    return ", ".join(parts)


def _doing(thread: Thread) -> str:
    if thread.rests:
        if thread.transaction:
            return f"idle in transaction{_lasting(thread.transaction_ns or thread.age_ns)}"
        return f"idle{_lasting(thread.age_ns)}"
    what = thread.activity or ("" if thread.command in (None, "Query") else thread.command)
    if thread.age_ns is None and not what:
        return ""
    return f"{what or 'runs a statement,'}{_lasting(thread.age_ns)}".rstrip(",")


def _lasting(ns: int | None) -> str:
    return f" {duration(ns / 1e6)}" if ns else ""


def statement(thread: Thread, limit: int) -> str:
    """Return its statement in one line; or nothing."""
    return one_line(thread.query, limit) if thread.query else ""


def has_ended(thread: Thread | None) -> bool:
    """Return whether its statement has ended, and none runs now."""
    return thread is not None and thread.rests


def frequent_statements(threads: Iterable[Thread]) -> list[tuple[int, str]]:
    """Return (threads, statement), the most frequent first; those that differ in literals only
    count as one."""
    counts: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for thread in threads:
        if thread.query:
            key = thread.digest or thread.query
            counts[key] += thread.count
            texts.setdefault(key, thread.query)
    return [(count, texts[key]) for key, count in counts.most_common()]
