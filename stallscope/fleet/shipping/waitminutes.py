# SPDX-License-Identifier: Apache-2.0
"""Add up the waits of lines by minute: what the loop does with each line is short and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from stallscope.fleet.tables import WaitRow, day_of
from stallscope.model.waitlines import WaitLine, Waits

__all__ = ["MINUTE_MS", "MOST_NAMES", "WaitMinutes"]

MINUTE_MS = 60_000
MOST_NAMES = 20
"""Names of a minute, those with the longest total; the others are counted together."""
MOST_KNOWN = 1_000
"""Names of a minute that are added up."""
MOST_ROWS = 5_000
"""Rows of finished minutes that are kept until they are shipped."""
PRIVATE = frozenset({"row-lock", "metadata-lock"})
"""Kinds whose names are tables."""

_Key = tuple[str, str]


class _Sum(msgspec.Struct):
    count: int = 0
    over: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, waits: Waits) -> None:
        self.count += waits.count
        self.over += waits.over
        self.total_ms += waits.total_ms
        self.max_ms = max(self.max_ms, waits.max_ms)

    def without(self, other: _Sum) -> _Sum:
        return _Sum(
            max(0, self.count - other.count),
            max(0, self.over - other.over),
            max(0.0, self.total_ms - other.total_ms),
            self.max_ms,
        )


class WaitMinutes:
    """The waits of one process. ``add`` is of the loop's thread, ``take`` of another one."""

    def __init__(self, *, redact: bool = False) -> None:
        """``redact``: without the names of rows and tables."""
        self.redact = redact
        self._lock = threading.Lock()
        self._minute = -1
        self._named: dict[_Key, _Sum] = {}
        self._kinds: dict[str, _Sum] = {}
        self._done: list[tuple[int, str, str, _Sum]] = []
        self.dropped = 0
        """Rows that were not kept: nobody took them."""

    def add(self, line: WaitLine) -> None:
        """Add the waits of an interval."""
        if line.final or not (line.keys or line.classes or line.kinds):
            return
        minute = int(min(max(0.0, line.ts), 1e10) // 60) * MINUTE_MS
        with self._lock:
            if minute != self._minute:
                self._finish()
                self._minute = minute
            for kind, waits in line.kinds.items():
                if waits.count:
                    self._kinds.setdefault(kind, _Sum()).add(waits)
            for key, one in _named(line, redact=self.redact):
                found = self._named.get(key)
                if found is None:
                    if len(self._named) >= MOST_KNOWN:
                        continue
                    found = self._named[key] = _Sum()
                found.add(one)

    def take(
        self, host: str, program: str, pid: int, made_ms: int, *, unfinished: bool = False
    ) -> list[WaitRow]:
        """Return the rows of the minutes that are over, and forget them. ``unfinished``: also of
        the minute that goes on."""
        with self._lock:
            if unfinished or self._minute + 2 * MINUTE_MS <= made_ms:
                self._finish()
                self._minute = -1
            done, self._done = self._done, []
        return [
            WaitRow(
                day=day_of(minute),
                rev=made_ms,
                host=host,
                program=program,
                pid=pid,
                minute_ms=minute,
                kind=kind,
                name=name,
                count=one.count,
                over=one.over,
                total_ms=round(one.total_ms, 3),
                max_ms=round(one.max_ms, 3),
            )
            for minute, kind, name, one in done
        ]

    def _finish(self) -> None:
        """Choose what is kept of the minute (the lock is held)."""
        if not self._kinds and not self._named:
            return
        by_total = sorted(self._named.items(), key=lambda item: -item[1].total_ms)
        rest = self._kinds
        for (kind, name), one in by_total[:MOST_NAMES]:
            self._keep(kind, name, one)
            if kind in rest:
                rest[kind] = rest[kind].without(one)
        for kind, one in rest.items():
            if one.count:
                self._keep(kind, "", one)
        self._named, self._kinds = {}, {}

    def _keep(self, kind: str, name: str, one: _Sum) -> None:
        if len(self._done) < MOST_ROWS:
            self._done.append((self._minute, kind[:64], name[:200], one))
        else:
            self.dropped += 1


def _named(line: WaitLine, *, redact: bool) -> Iterator[tuple[_Key, Waits]]:
    """Yield the waits of a line that have a name: locks, and classes of files."""
    for key in line.keys:
        if not key.count or key.name.startswith("0x") or (redact and key.kind in PRIVATE):
            continue
        if key.file_class is None:
            yield (key.kind, key.name), key
        elif line.classes is None:
            yield (key.kind, key.file_class), key
    for one in line.classes or ():
        if one.count:
            yield (one.kind, one.file_class), one
