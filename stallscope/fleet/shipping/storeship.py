# SPDX-License-Identifier: Apache-2.0
"""Send incidents of a store to engines: what agents have not shipped, or a new engine has not got.

What an engine has already changes nothing there, so it can be run again at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog
from stallscope.base.backoff import Backoff
from stallscope.base.errors import StallscopeError
from stallscope.base.sending import SendError
from stallscope.base.text import one_line
from stallscope.fleet.batch import Batch, make
from stallscope.fleet.destination import Destination
from stallscope.fleet.shipping.delivering import deliver, merged
from stallscope.fleet.stored import rows_of_stored
from stallscope.store import layout, listing
from stallscope.store.index import Summary
from stallscope.store.reading import read_incident

__all__ = ["Failure", "Shipped", "ship"]

BATCH_ROWS = 500
BATCH_BYTES = 2 << 20
ATTEMPTS = 3
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 10.0
"""Somebody waits for the end of the command."""

Progress = Callable[[int, int], None]
"""Called with the number of incidents that were read, and the number of all."""


class Failure(msgspec.Struct, frozen=True):
    """An incident that is not there, or not whole, and why."""

    incident: str
    why: str


class Shipped(msgspec.Struct):
    """What became of the incidents, in one engine."""

    engine: str
    """Its address without user and password."""
    sent: int = 0
    """Incidents, also those that it had already."""
    rows: int = 0
    failed: list[Failure] = []
    """The engine does not take them, or is not reached any more."""
    left_out: list[Failure] = []
    """They cannot be read."""
    notes: tuple[str, ...] = ()
    """What the engine does not store of them."""

    @property
    def clean(self) -> bool:
        """Whether all are there."""
        return not self.failed and not self.left_out


class _Route:
    """One engine."""

    def __init__(self, destination: Destination, pause: Callable[[float], None]) -> None:
        self.destination = destination
        self.result = Shipped(destination.shown)
        self._pause = pause
        self._lost = ""
        """Why the engine is not asked any more."""

    def send(self, group: Sequence[tuple[str, Batch]]) -> None:
        """Send the rows of some incidents."""
        if not group:
            return
        if not self._lost:
            try:
                self._whole(group)
                return
            except SendError as error:
                self._lost = str(error)
        self.result.failed += [Failure(name, self._lost) for name, _ in group]

    def _whole(self, group: Sequence[tuple[str, Batch]]) -> None:
        done = self._tried(merged([batch for _, batch in group]))
        if not done[1]:
            self.result.sent += len(group)
            self.result.rows += done[0]
            return
        for name, batch in group:  # of which incident is the row that is refused?
            sent, refused, why = self._tried(batch)
            self.result.rows += sent
            if refused:
                self.result.failed.append(Failure(name, why))
            else:
                self.result.sent += 1

    def _tried(self, batch: Batch) -> tuple[int, int, str]:
        """Send a batch, several times where that helps. Raises: SendError."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        for left in range(ATTEMPTS - 1, -1, -1):
            try:
                done = deliver(self.destination, batch)
            except SendError as error:
                if not left:
                    raise
                self._pause(min(max(backoff.next(), error.after), LONGEST_PAUSE))
            else:
                return done.sent, done.refused, done.why
        raise AssertionError


def ship(
    store: Path,
    destinations: Sequence[Destination],
    *,
    incidents: Sequence[str] | None = None,
    since_ns: int | None = None,
    signatures: Sequence[Path] = (),
    host: str = "",
    redact: bool = False,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Shipped]:
    """Send incidents of the store, and return what became of them, for each engine.

    ``incidents``: their ids; None: all. ``since_ns``: only those that began then or later. ``host``
    and ``redact``: as in ``[ship]``. Raises: StallscopeError where there is no store.
    """
    routes = [_Route(destination, pause) for destination in destinations]
    names = _chosen(store, incidents, since_ns, routes)
    known = catalog.load(list(signatures))
    group: list[tuple[str, Batch]] = []
    for number, name in enumerate(names, 1):
        try:
            stored = read_incident(store / layout.INCIDENTS / name)
            rows = rows_of_stored(stored, known, host=host, redact=redact)
            group.append((name, make(rows)))
        except (StallscopeError, MemoryError) as error:
            _leave_out(routes, name, str(error) or "out of memory")
        if _is_large(group):
            _send(routes, group)
            group = []
        if progress is not None:
            progress(number, len(names))
    _send(routes, group)
    for route in routes:
        route.result.notes = tuple(route.destination.notes)
    return [route.result for route in routes]


def _chosen(
    store: Path,
    incidents: Sequence[str] | None,
    since_ns: int | None,
    routes: Sequence[_Route],
) -> list[str]:
    found = listing(store)
    wanted = None if incidents is None else set(incidents)
    for note in found.notes:
        _leave_out(routes, note.message.partition(":")[0].partition("/")[0], note.message)
    return [
        one.id
        for one in found.incidents
        if (wanted is None or one.id in wanted) and _is_since(one, since_ns)
    ]


def _is_since(one: Summary, since_ns: int | None) -> bool:
    return since_ns is None or one.start_ns >= since_ns


def _leave_out(routes: Sequence[_Route], name: str, why: str) -> None:
    for route in routes:
        route.result.left_out.append(Failure(one_line(name, 100), one_line(why, 300)))


def _is_large(group: Sequence[tuple[str, Batch]]) -> bool:
    rows = sum(batch.rows for _, batch in group)
    return rows >= BATCH_ROWS or sum(map(len, _bytes(group))) >= BATCH_BYTES


def _bytes(group: Sequence[tuple[str, Batch]]) -> Iterator[bytes]:
    for _, batch in group:
        for lines in batch.lines.values():
            yield from lines


def _send(routes: Sequence[_Route], group: Sequence[tuple[str, Batch]]) -> None:
    for route in routes:
        route.send(group)
