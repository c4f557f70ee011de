# SPDX-License-Identifier: Apache-2.0
"""The deadlocks of a store, for people and as ``stallscope.deadlocks/1``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stallscope.base.text import one_line
from stallscope.base.times import local
from stallscope.reporters.lines import Line, wrap
from stallscope.server.deadlocks import Deadlock, DeadlockLock, DeadlockTransaction
from stallscope.store.records import encode

__all__ = ["SCHEMA", "dumps", "render"]

SCHEMA = "stallscope.deadlocks/1"

_MOST_TRANSACTIONS = 10
_MOST_STATEMENT = 300


def dumps(deadlocks: Sequence[Deadlock]) -> str:
    """Return one line of JSON; each deadlock with the fields of stallscope/server/deadlocks.py."""
    return encode({"schema": SCHEMA, "deadlocks": deadlocks}).decode()


def render(dest: Path, deadlocks: Sequence[Deadlock], width: int) -> Iterator[Line]:
    """Yield the deadlocks in order, with all their transactions."""
    count = "1 deadlock" if len(deadlocks) == 1 else f"{len(deadlocks)} deadlocks"
    yield from wrap(f"{count} in {dest}", width, style="bold", whole=True)
    for deadlock in deadlocks:
        yield Line("")
        when = deadlock.server_time or local(deadlock.time_ns)
        yield Line(one_line(f"{when}  {deadlock.id}", width), "bold")
        for number, transaction in enumerate(deadlock.transactions[:_MOST_TRANSACTIONS]):
            text = _transaction(transaction, victim=number == deadlock.victim)
            yield from wrap(text, width, indent="  ", hang="    ")
            if transaction.query:
                yield from wrap(one_line(transaction.query, _MOST_STATEMENT), width, indent="    ")
        if len(deadlock.transactions) > _MOST_TRANSACTIONS:
            yield Line(f"  {len(deadlock.transactions) - _MOST_TRANSACTIONS} more transactions")


def _transaction(transaction: DeadlockTransaction, *, victim: bool) -> str:
    text = f"transaction {transaction.transaction}"
    if transaction.connection is not None:
        text += f", connection {transaction.connection}"
    if transaction.user:
        text += f", user {transaction.user}"
    if victim:
        text += ", rolled back"
    if transaction.waits is not None:
        text += f"; waits for {_lock(transaction.waits)}"
    if transaction.holds:
        text += f"; holds {_lock(transaction.holds[0])}"
        text += f" and {len(transaction.holds) - 1} more" if len(transaction.holds) > 1 else ""
    return text


def _lock(lock: DeadlockLock) -> str:
    index = f" ({lock.index})" if lock.index else ""
    return f"{lock.kind} lock on {lock.table}{index}" + (f" {lock.mode}" if lock.mode else "")
