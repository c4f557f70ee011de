# SPDX-License-Identifier: Apache-2.0
"""Destinations of a fleet that keep what they get, and fail as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from stallscope.base.sending import SendError
from stallscope.fleet.batch import Batch, make
from stallscope.fleet.tables import StackRow, WaitRow

__all__ = ["FakeDestination", "names_of", "stack", "stacks", "wait_row"]


class FakeDestination:
    """Takes batches. ``fault`` is called with each, and can raise."""

    def __init__(self, shown: str = "file:///fake") -> None:
        self._shown = shown
        self.skew_ms: float | None = 12.5
        self.notes: tuple[str, ...] = ()
        self.batches: list[Batch] = []
        self.asked = 0
        self.fault: Callable[[Batch], None] | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    @property
    def shown(self) -> str:
        return self._shown

    def send(self, batch: Batch) -> None:
        self.asked += 1
        self.gate.wait(60)
        if self.fault is not None:
            self.fault(batch)
        self.batches.append(batch)

    def close(self) -> None:
        self.closed = True

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(line)
            for batch in list(self.batches)
            for line in batch.lines.get(table, ())
        ]

    def refuse(self, *bad: str) -> None:
        """Refuse batches with a stack of one of these hashes."""

        def fault(batch: Batch) -> None:
            if set(names_of(batch)) & set(bad):
                raise SendError("bad row", refused=True)

        self.fault = fault

    def fail(self, why: str, after: float = 0.0) -> None:
        def fault(batch: Batch) -> None:
            raise SendError(why, after=after)

        self.fault = fault


def names_of(batch: Batch) -> list[str]:
    """Return the hashes of the stacks of a batch, in their order."""
    return [msgspec.json.decode(line)["hash"] for line in batch.lines.get("stacks", ())]


def stack(name: str) -> StackRow:
    return StackRow(day="2026-11-29", rev=1, hash=name, server="mysql", frames=("f", "main"))


def stacks(*names: str) -> Batch:
    return make(map(stack, names))


def wait_row(minute_ms: int) -> WaitRow:
    return WaitRow(
        day="2026-11-29",
        rev=1,
        host="db1",
        program="mysqld",
        pid=1,
        minute_ms=minute_ms,
        kind="mutex",
        name="LOCK_open",
        count=1,
        over=0,
        total_ms=1.0,
        max_ms=1.0,
    )
