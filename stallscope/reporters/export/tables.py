# SPDX-License-Identifier: Apache-2.0
"""Tables of captures and incidents, for CSV and Parquet: docs/commands/export.md has the columns.

Text is safe to print, and cut where a spreadsheet would cut it.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from stallscope.base.text import clean
from stallscope.model.capture import Capture, Lock
from stallscope.reporters.counts import count_states, count_threads, target_process
from stallscope.reporters.export.source import Entry, History, Options, Row, rows

__all__ = ["MAX_TEXT", "TABLES", "Cell", "Table"]

MAX_TEXT = 32_000
"""The most characters of a cell; a spreadsheet accepts 32,767."""
_MAX_INT = (1 << 63) - 1
_ARROW = " < "
"""The separator of frames, from the innermost to the outermost."""

Cell = str | int | float | bool | None
Source = Callable[[Iterable[Entry], Iterable[History], Options], Iterator[tuple[Cell, ...]]]


class Table(msgspec.Struct, frozen=True):
    """``columns``: name → type of SQL. ``source``: yields the rows as tuples of cells."""

    name: str
    columns: dict[str, str]
    source: Source

    def rows(
        self, entries: Iterable[Entry], histories: Iterable[History], options: Options
    ) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows, each cell of its column's type."""
        for row in self.source(entries, histories, options):
            yield tuple(map(_cell, row))


def _cell(value: Cell) -> Cell:
    if isinstance(value, str):
        text = clean(value)
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and abs(value) > _MAX_INT:
        return None
    return value


def _time(time_ns: int | None) -> str | None:
    """Return a time in UTC, to the microsecond."""
    if time_ns is None or not 0 <= time_ns <= _MAX_INT:
        return None
    moment = datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ns % 10**9 // 1000:06}"


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e6


_OF_CAPTURE = {"incident": "VARCHAR", "capture": "VARCHAR", "time": "TIMESTAMP"}


def _of_capture(entry: Entry) -> tuple[Cell, ...]:
    return entry.incident, entry.name, _time(entry.analysis.capture.time_ns)


_CAPTURES = _OF_CAPTURE | {
    "time_ns": "BIGINT",
    "host": "VARCHAR",
    "server": "VARCHAR",
    "version": "VARCHAR",
    "pid": "BIGINT",
    "backend": "VARCHAR",
    "snapshot_ms": "DOUBLE",
    "stopped_ms": "DOUBLE",
    "threads": "BIGINT",
    "idle": "BIGINT",
    "running": "BIGINT",
    "waiting": "BIGINT",
    "signature": "VARCHAR",
    "verdict": "VARCHAR",
    "confidence": "DOUBLE",
    "notes": "VARCHAR",
}


def _captures(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for entry in entries:
        analysis = entry.analysis
        capture = analysis.capture
        states = count_states(analysis)
        main = target_process(analysis)
        first = analysis.findings[0] if analysis.findings else None
        yield (
            *_of_capture(entry),
            capture.time_ns,
            str(capture.host.get("name", "")) or None,
            analysis.server,
            analysis.version,
            capture.processes[main].pid if main is not None else None,
            capture.backend,
            _ms(capture.snapshot_ns),
            _ms(capture.stopped_ns),
            count_threads(analysis),
            states["idle"],
            states["running"],
            states["waiting"],
            first.signature if first else None,
            first.title if first else None,
            first.confidence if first else None,
            "; ".join(note.message for note in capture.notes) or None,
        )


_THREADS = _OF_CAPTURE | {
    "pid": "BIGINT",
    "tid": "BIGINT",
    "name": "VARCHAR",
    "state": "VARCHAR",
    "kernel_state": "VARCHAR",
    "on_cpu": "BOOLEAN",
    "label": "VARCHAR",
    "count": "BIGINT",
    "lock": "VARCHAR",
    "lock_kind": "VARCHAR",
    "lock_address": "VARCHAR",
    "owner_tid": "BIGINT",
    "waited_ms": "DOUBLE",
    "syscall": "VARCHAR",
    "connection": "BIGINT",
    "user": "VARCHAR",
    "database": "VARCHAR",
    "command": "VARCHAR",
    "activity": "VARCHAR",
    "query": "VARCHAR",
    "digest": "VARCHAR",
    "stack": "VARCHAR",
}


def _threads(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for entry in entries:
        head = _of_capture(entry)
        for row in rows(entry, options):
            yield (*head, *_thread(row, entry.analysis.capture))


def _thread(row: Row, capture: Capture) -> Iterator[Cell]:
    thread = row.thread
    lock = capture.locks[thread.lock] if thread.lock is not None else None
    known = 0 <= thread.process < len(capture.processes)
    call = thread.syscall
    yield capture.processes[thread.process].pid if known else None
    yield thread.tid or None
    yield thread.name
    yield row.state
    yield thread.state
    yield thread.on_cpu
    yield str(thread.label) if thread.label is not None else None
    yield thread.count
    yield lock.symbol if lock else None
    yield str(lock.kind) if lock else None
    yield _address(lock) if lock else None
    yield lock.owner_tid if lock else None
    yield _ms(thread.waited_ns)
    yield (call.name or str(call.nr)) if call else None
    yield thread.connection
    yield thread.user
    yield thread.database
    yield thread.command
    yield thread.activity
    yield thread.query
    yield thread.digest
    yield _ARROW.join(row.names)


_GROUPS = _OF_CAPTURE | {
    "count": "BIGINT",
    "state": "VARCHAR",
    "depth": "BIGINT",
    "stack": "VARCHAR",
}


def _groups(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for entry in entries:
        counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for row in rows(entry, options):
            counts[(row.state, row.names)] += row.thread.count
        for (state, names), count in counts.items():
            yield (*_of_capture(entry), count, state, len(names), _ARROW.join(names))


_LOCKS = _OF_CAPTURE | {
    "address": "VARCHAR",
    "kind": "VARCHAR",
    "symbol": "VARCHAR",
    "waiters": "BIGINT",
    "owner_tid": "BIGINT",
    "readers": "BIGINT",
    "stable": "BOOLEAN",
    "source": "VARCHAR",
    "mode": "VARCHAR",
    "created": "VARCHAR",
    "locked_at": "VARCHAR",
}


def _locks(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for entry in entries:
        for lock in entry.analysis.capture.locks:
            yield (*_of_capture(entry), *_lock(lock))


def _address(lock: Lock) -> str | None:
    """Return its address; what only the server reports, such as a row, has none."""
    return f"{lock.address:#x}" if lock.address else None


def _lock(lock: Lock) -> tuple[Cell, ...]:
    return (
        _address(lock),
        str(lock.kind),
        lock.symbol,
        lock.waiters,
        lock.owner_tid,
        lock.readers,
        lock.stable,
        lock.source,
        lock.mode,
        lock.created,
        lock.locked_at,
    )


_FINDINGS = _OF_CAPTURE | {
    "rank": "BIGINT",
    "signature": "VARCHAR",
    "title": "VARCHAR",
    "confidence": "DOUBLE",
    "threads": "BIGINT",
    "blocker_tid": "BIGINT",
    "blocker_name": "VARCHAR",
    "blocker_state": "VARCHAR",
    "blocker_certain": "BOOLEAN",
    "blocker_sql": "VARCHAR",
    "blocker_stack": "VARCHAR",
    "evidence": "VARCHAR",
    "against": "VARCHAR",
    "remedies": "VARCHAR",
}


def _findings(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for entry in entries:
        for rank, finding in enumerate(entry.analysis.findings, 1):
            blocker = finding.blocker
            yield (
                *_of_capture(entry),
                rank,
                finding.signature,
                finding.title,
                finding.confidence,
                finding.threads,
                blocker.tid if blocker else None,
                blocker.name if blocker else None,
                blocker.state if blocker else None,
                blocker.certain if blocker else None,
                blocker.sql if blocker else None,
                _ARROW.join(blocker.frames) if blocker else None,
                "; ".join(finding.evidence),
                "; ".join(finding.against),
                "; ".join(finding.remedies),
            )


_SAMPLES = {
    "incident": "VARCHAR",
    "time": "TIMESTAMP",
    "time_ns": "BIGINT",
    "clock_ns": "BIGINT",
    "source": "VARCHAR",
    "name": "VARCHAR",
    "value": "DOUBLE",
    "error": "VARCHAR",
}


def _samples(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for history in histories:
        for sample in history.samples:
            head = (
                history.incident.id,
                _time(sample.time_ns),
                sample.time_ns,
                sample.clock_ns,
                sample.source,
            )
            for name, value in sample.values.items():
                yield (*head, name, value, None)
            if sample.error is not None:
                yield (*head, None, None, sample.error)


_TRIGGERS = {
    "incident": "VARCHAR",
    "time": "TIMESTAMP",
    "time_ns": "BIGINT",
    "trigger": "VARCHAR",
    "why": "VARCHAR",
    "value": "DOUBLE",
    "threshold": "DOUBLE",
}


def _triggers(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[tuple[Cell, ...]]:
    for history in histories:
        for fired in history.incident.triggers:
            yield (
                history.incident.id,
                _time(fired.time_ns),
                fired.time_ns,
                fired.trigger,
                fired.why,
                fired.value,
                fired.threshold,
            )


TABLES = {
    table.name: table
    for table in (
        Table("threads", _THREADS, _threads),
        Table("groups", _GROUPS, _groups),
        Table("locks", _LOCKS, _locks),
        Table("findings", _FINDINGS, _findings),
        Table("captures", _CAPTURES, _captures),
        Table("samples", _SAMPLES, _samples),
        Table("triggers", _TRIGGERS, _triggers),
    )
}
