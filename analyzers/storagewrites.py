# SPDX-License-Identifier: Apache-2.0
"""From what was measured to where the bytes went: classes, ratios, and what is in no class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from stallscope.analyzers.storagechanges import is_on
from stallscope.base.text import one_line
from stallscope.model.storage import FileSums, ProcessIo
from stallscope.model.storagecounters import StorageChanges
from stallscope.model.storagewrites import (
    CLASSES,
    SCHEMA,
    Amplification,
    ClassWrites,
    DeviceWrites,
    FileWrites,
    Measured,
    Point,
    Unaccounted,
    WritesReport,
)

__all__ = ["DATABASE", "report"]

N = TypeVar("N", int, float)

DATABASE = ("data", "doublewrite", "undo")
"""Classes of the files that hold the database itself."""
MAX_FILES = 40
MAX_DEVICES = 64
MAX_NOTES = 40
_MAX_TEXT = 4000
_SYSTEM = "ibdata"
_CLOSE = 0.03
"""What process_write_bytes and the classes may differ by without a message."""
_FAR = 1.3
"""Times as much as both: then charged bytes are no measure of what went to the device."""
_ENOUGH = 1 << 20
"""Bytes: a share of less says nothing."""
_IN_ROWS = "binary log in row format"


class _Sum:
    """What went to some files."""

    def __init__(self) -> None:
        self.charged = self.requested = self.requests = self.direct = self.mapped = self.syncs = 0
        self.files = 0
        self.known = self.mapped_known = True

    def add(self, file: FileSums) -> None:
        self.files += 1
        self.known &= file.charged_bytes is not None
        self.mapped_known &= file.mapped_bytes is not None
        self.charged += file.charged_bytes or 0
        self.mapped += file.mapped_bytes or 0
        self.requested += file.requested_bytes
        self.requests += file.requests
        self.direct += file.direct_bytes
        self.syncs += file.syncs


class _Doublewrite(msgspec.Struct, frozen=True):
    """Pages of a doublewrite buffer that lies in the system tablespace."""

    bytes: int
    requests: int


def report(
    measured: Measured, changes: StorageChanges | None, why_no_sql: str = ""
) -> WritesReport:
    """Return where the bytes went. ``changes``: what the server counted in the same time; without
    it, ``why_no_sql`` says why."""
    seconds = max((line.seconds for line in measured.lines), default=0.0)
    files = _files(measured)
    sums: dict[str, _Sum] = {name: _Sum() for name in CLASSES}
    for file in files:
        sums.setdefault(_text(file.file_class, 40), _Sum()).add(file)
    inside = _doublewrite_inside(files, changes)
    if inside is not None:
        _move(sums, inside)
    known = all(item.known for item in sums.values())
    charged = sum(item.charged for item in sums.values()) if known else None
    io, write_bytes = _process(measured)
    commits = changes.commits if changes is not None else None
    row_bytes, row_source = _row_bytes(changes, sums)
    devices = _devices(measured, files)
    classes = _classes(sums, seconds, charged, changes, inside is not None)
    return WritesReport(
        schema=SCHEMA,
        seconds=seconds,
        classes=classes,
        process_write_bytes=write_bytes,
        time_ns=measured.time_ns,
        server=_text(measured.name, 100),
        pid=measured.pid,
        processes=len(measured.lines),
        family=changes.family if changes else None,
        version=_text(changes.version, 100) if changes else None,
        bytes=charged,
        requested_bytes=sum(item.requested for item in sums.values()),
        requests=sum(item.requests for item in sums.values()),
        accounted=_ratio(charged, write_bytes, least=1),
        charged_why_not=_reason(measured),
        process=io,
        commits=commits.count if commits else None,
        commits_source=commits.source if commits else None,
        commits_exact=commits.exact if commits else None,
        rows=changes.rows if changes else None,
        rows_source=changes.rows_source if changes else None,
        row_bytes=row_bytes,
        row_bytes_source=row_source,
        log_bytes=changes.log_bytes if changes else None,
        amplification=_amplification(sums, charged, row_bytes, changes),
        counters=_named(changes.counters) if changes else {},
        settings={_text(k, 100): _text(v) for k, v in changes.settings.items()} if changes else {},
        devices=devices,
        other_processes_bytes=_others(measured),
        other_processes_hidden=measured.last.hidden,
        unaccounted=(
            *_unaccounted(measured, sums, charged, write_bytes, io),
            *_metadata(files),
        ),
        files=_largest(files),
        files_left_out=max(0, len(files) - MAX_FILES),
        series=_points(measured),
        lost=_lost(measured),
        notes=(
            *_overcharged(devices, sum(item.requested for item in sums.values())),
            *_notes(measured, changes, why_no_sql, inside, files),
        )[:MAX_NOTES],
    )


def _text(text: str, limit: int = _MAX_TEXT) -> str:
    """Names are the target's: make them safe to print."""
    return one_line(text, limit)


def _ratio(a: float | None, b: float | None, *, least: float = 0.0) -> float | None:
    """Return a/b; None where one is not known, or b is too small to say anything."""
    if a is None or b is None or b <= 0 or b < least:
        return None
    return a / b


def _files(measured: Measured) -> list[FileSums]:
    """Return each file once: several processes of a server write to the same."""
    found: dict[tuple[object, ...], FileSums] = {}
    for line in measured.lines:
        for file in line.files:
            key = (file.dev, file.ino, file.file_class, file.ino or file.path)
            other = found.get(key)
            found[key] = file if other is None else _merged(other, file)
    return sorted(found.values(), key=lambda f: -(f.charged_bytes or f.requested_bytes))


def _plus(a: N | None, b: N | None) -> N | None:
    return None if a is None or b is None else a + b


def _merged(a: FileSums, b: FileSums) -> FileSums:
    return msgspec.structs.replace(
        a,
        path=a.path if a.path is not None else b.path,
        deleted=a.deleted or b.deleted,
        direct=a.direct or b.direct,
        dsync=a.dsync or b.dsync,
        requests=a.requests + b.requests,
        requested_bytes=a.requested_bytes + b.requested_bytes,
        charged_bytes=_plus(a.charged_bytes, b.charged_bytes),
        mapped_bytes=_plus(a.mapped_bytes, b.mapped_bytes),
        direct_bytes=a.direct_bytes + b.direct_bytes,
        syncs=a.syncs + b.syncs,
    )


def _doublewrite_inside(
    files: Iterable[FileSums], changes: StorageChanges | None
) -> _Doublewrite | None:
    """Return what the doublewrite buffer took of the system tablespace, in which it lies before
    MySQL 8.0.20 and on MariaDB; None where it has files of its own, is off, or is not known."""
    if changes is None or any(f.file_class == "doublewrite" and f.requests for f in files):
        return None
    pages = changes.counters.get("Innodb_dblwr_pages_written")
    page = changes.settings.get("innodb_page_size", "")
    if not pages or not page.isdecimal():
        return None
    system = [f for f in files if os.path.basename(f.path or "").startswith(_SYSTEM)]
    charged = sum(f.charged_bytes or 0 for f in system)
    requests = sum(f.requests for f in system)
    writes = int(changes.counters.get("Innodb_dblwr_writes", 0))
    count = min(int(pages) * int(page), charged)
    return _Doublewrite(count, min(writes, requests)) if count else None


def _move(sums: Mapping[str, _Sum], inside: _Doublewrite) -> None:
    data, doublewrite = sums["data"], sums["doublewrite"]
    for name, count in (
        ("charged", inside.bytes),
        ("requested", min(inside.bytes, data.requested)),
        ("requests", inside.requests),
    ):
        setattr(data, name, getattr(data, name) - count)
        setattr(doublewrite, name, getattr(doublewrite, name) + count)


def _classes(
    sums: Mapping[str, _Sum],
    seconds: float,
    charged: int | None,
    changes: StorageChanges | None,
    estimated: bool,
) -> tuple[ClassWrites, ...]:
    commits = changes.commits.count if changes and changes.commits else None
    rows = changes.rows if changes else None
    found = []
    for name, item in sums.items():
        count = item.charged if item.known else None
        by_counter = estimated and name in ("doublewrite", "data")
        found.append(
            ClassWrites(
                file_class=name,
                bytes=count,
                requests=item.requests,
                requested_bytes=item.requested,
                files=item.files,
                share=_ratio(count, charged),
                bytes_per_second=_ratio(count, seconds),
                mean_request_bytes=_ratio(item.requested, item.requests),
                bytes_per_commit=_ratio(count, commits),
                bytes_per_row=_ratio(count, rows),
                direct_bytes=item.direct,
                mapped_bytes=item.mapped if item.mapped_known else None,
                syncs=item.syncs,
                estimated="Innodb_dblwr_pages_written" if by_counter else None,
            )
        )
    order = {name: number for number, name in enumerate(CLASSES)}
    return tuple(
        sorted(
            found, key=lambda c: (-(c.bytes or 0), -c.requested_bytes, order.get(c.file_class, 9))
        )
    )


def _process(measured: Measured) -> tuple[ProcessIo | None, int | None]:
    """Return how much /proc/PID/io grew: of the processes that were watched, and write_bytes of all
    processes of the server.

    A process that ended is in the totals of its parent, from its start on: what it had before is
    taken away again.
    """
    total = Counter[str]()
    before = 0
    for line in measured.lines:
        if line.ended and line.pid != measured.pid:
            start = measured.first.io.get(line.pid)
            if start is None:
                return None, None
            before += start.write_bytes
            continue
        if line.io is None:
            return None, None
        total.update(msgspec.structs.asdict(line.io))
    names = ("wchar", "syscw", "write_bytes", "cancelled_write_bytes")
    io = ProcessIo(**{name: total[name] for name in names})
    return io, max(0, io.write_bytes - before) + sum(measured.began.values())


def _row_bytes(
    changes: StorageChanges | None, sums: Mapping[str, _Sum]
) -> tuple[float | None, str | None]:
    if changes is None:
        return None, None
    if changes.row_bytes is not None:
        return changes.row_bytes, changes.row_bytes_source
    setting = changes.settings.get
    rows = setting("binlog_format", "").upper() == "ROW" and is_on(setting("log_bin"))
    if rows and not is_on(setting("binlog_transaction_compression")):
        return float(sums["binlog"].requested), _IN_ROWS
    return None, None


def _amplification(
    sums: Mapping[str, _Sum],
    charged: int | None,
    row_bytes: float | None,
    changes: StorageChanges | None,
) -> Amplification:
    database = sum(sums[name].charged for name in DATABASE) if charged is not None else None
    requested = sum(sums[name].requested for name in DATABASE)
    # By requested bytes: of large folios the kernel charges more than changed.
    factor = _ratio(requested, requested - sums["doublewrite"].requested, least=_ENOUGH)
    # In the system tablespace and without SQL, the doublewrite buffer is not known.
    if not sums["doublewrite"].requested and (
        changes is None or is_on(changes.settings.get("innodb_doublewrite")) is not False
    ):
        factor = None
    buffered = charged is not None and sum(item.requested for item in sums.values()) >= _ENOUGH
    return Amplification(
        database_bytes=database,
        database_requested_bytes=requested,
        database_per_row_byte=_ratio(database, row_bytes),
        all_per_row_byte=_ratio(charged, row_bytes),
        all_per_log_byte=_ratio(charged, changes.log_bytes if changes else None),
        charged_per_requested=_ratio(charged, sum(item.requested for item in sums.values()))
        if buffered
        else None,
        doublewrite_factor=factor,
    )


def _named(counters: Mapping[str, float]) -> dict[str, float]:
    return {_text(name, 100): value for name, value in counters.items()}


def _devices(measured: Measured, files: Iterable[FileSums]) -> tuple[DeviceWrites, ...]:
    written: dict[str, int | None] = {}
    for file in files:
        so_far = written.get(file.dev, 0)
        written[file.dev] = _plus(so_far, file.charged_bytes)
    numbers = {row.name: number for number, row in measured.last.disks.items()}
    found = []
    for dev, count in written.items():
        number = numbers.get(measured.sources.get(dev, ""), dev)
        row, start = measured.last.disks.get(number), measured.first.disks.get(number)
        flushes = None
        if row is not None and start is not None and None not in (row.flushes, start.flushes):
            flushes = max(0, (row.flushes or 0) - (start.flushes or 0))
        found.append(
            DeviceWrites(
                dev=_text(dev, 40),
                name=None if row is None else _text(row.name, 100),
                bytes=None if row is None or start is None else row.write_bytes - start.write_bytes,
                server_bytes=count,
                flushes=flushes,
            )
        )
    return tuple(sorted(found, key=lambda d: -(d.server_bytes or 0))[:MAX_DEVICES])


def _others(measured: Measured) -> int | None:
    before, after = measured.first.others, measured.last.others
    if not after and measured.last.hidden:
        return None
    return sum(
        max(0, count - before.get(key, 0))
        for key, count in after.items()
        if key[0] not in measured.began
    )


def _unaccounted(
    measured: Measured,
    sums: Mapping[str, _Sum],
    charged: int | None,
    write_bytes: int | None,
    io: ProcessIo | None,
) -> tuple[Unaccounted, ...]:
    found = []
    began = sum(measured.began.values())
    if began:
        why = f"of processes of the server that began after the start ({len(measured.began)})"
        found.append(Unaccounted("new processes", began, f"{why}: their files were not watched"))
    if charged is None:
        why = _reason(measured) or "the probe does not say"
        found.append(Unaccounted("all of it by class", None, f"charged bytes are not known: {why}"))
    elif write_bytes is not None:
        rest = write_bytes - charged - began
        if rest > 0:
            why = "charged to the server for no file that was seen"
            lost = sum(_lost(measured).values())
            why += f"; {lost} events were lost" if lost else ""
            found.append(Unaccounted("beyond the files", rest, why))
        elif rest < -_CLOSE * write_bytes:
            why = "in the classes, but not in write_bytes: counted while the process began or ended"
            found.append(Unaccounted("more than /proc/PID/io", -rest, why))
    mapped = sum(item.mapped for item in sums.values())
    if mapped:
        why = "in the classes, but without a request: pages that became dirty through mappings"
        found.append(Unaccounted("mmap", mapped, why))
    elif not all(item.mapped_known for item in sums.values()):
        why = "pages that became dirty through mappings are not known apart from others here"
        found.append(Unaccounted("mmap", None, why))
    if io is not None and io.cancelled_write_bytes:
        why = "in the classes, but not written: the files were truncated or removed before"
        found.append(Unaccounted("cancelled", io.cancelled_write_bytes, why))
    return tuple(found)


def _metadata(files: Iterable[FileSums]) -> Iterable[Unaccounted]:
    count = sum(file.charged_bytes or 0 for file in files if file.metadata)
    if count:
        why = "in the classes, but of no file of the server: blocks of the file system itself"
        yield Unaccounted("metadata", count, why)


def _reason(measured: Measured) -> str | None:
    reasons = [line.charged_why_not for line in measured.lines if line.charged_why_not]
    return _text(reasons[0], 300) if reasons else None


def _lost(measured: Measured) -> dict[str, int]:
    total = Counter[str]()
    for line in measured.lines:
        total.update(line.lost)
    return {_text(name, 100): count for name, count in total.items() if count}


def _largest(files: Iterable[FileSums]) -> tuple[FileWrites, ...]:
    return tuple(
        FileWrites(
            path=None if file.path is None else _text(file.path),
            file_class=_text(file.file_class, 40),
            bytes=file.charged_bytes,
            requests=file.requests,
            requested_bytes=file.requested_bytes,
            dev=_text(file.dev, 40),
            deleted=file.deleted,
            direct=file.direct,
            dsync=file.dsync,
            metadata=file.metadata,
        )
        for file in list(files)[:MAX_FILES]
    )


def _points(measured: Measured) -> tuple[Point, ...]:
    found: list[Point] = []
    before: Mapping[str, int] = {}
    for seconds, total in measured.series:
        grown = _grown(total, before)
        if found or total or seconds:
            if found and seconds - found[-1].seconds < 0.2:  # the final line, after an interval's
                last = found.pop()
                grown = {n: grown.get(n, 0) + last.bytes.get(n, 0) for n in {**grown, **last.bytes}}
            found.append(Point(seconds, grown))
        before = total
    return tuple(found)


def _grown(total: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return the growth of each class. A file whose name is known only now moves from one class to
    another, and its bytes are not new there."""
    names = [*total, *(name for name in before if name not in total)]
    grown = {name: total.get(name, 0) - before.get(name, 0) for name in names}
    moved = -sum(count for count in grown.values() if count < 0)
    for name in sorted(grown, key=lambda name: -grown[name]):
        taken = min(moved, max(0, grown[name]))
        grown[name] = max(0, grown[name]) - taken
        moved -= taken
    return {_text(name, 40): count for name, count in grown.items()}


def _overcharged(devices: Iterable[DeviceWrites], requested: int) -> Iterable[str]:
    """Say where charged bytes are far from what was requested and from what a device got."""
    known = [d for d in devices if d.bytes is not None and d.server_bytes is not None]
    charged = sum(device.server_bytes or 0 for device in known)
    got = sum(device.bytes or 0 for device in known)
    most = max(requested, got)
    if charged >= _ENOUGH and charged > _FAR * most:
        yield (
            "charged is far more than was requested and than the devices got: the file system"
            " keeps large pieces (folios), of which the kernel charges all and writes what changed;"
            " compare requested bytes here"
        )


def _notes(
    measured: Measured,
    changes: StorageChanges | None,
    why_no_sql: str,
    inside: _Doublewrite | None,
    files: Iterable[FileSums],
) -> Iterable[str]:
    if changes is None:
        yield _text(f"commits and rows are not known: {why_no_sql or 'no SQL'}", 500)
    elif not (changes.commits and changes.commits.exact) and not changes.restarted:
        source = changes.commits.source if changes.commits else "no counter of them"
        yield f"commits are not exact: from {source}"
    if inside is not None:
        yield (
            "the doublewrite buffer lies in the system tablespace: its bytes are"
            " Innodb_dblwr_pages_written times the page size, taken from data"
        )
    elif changes is None and any(
        os.path.basename(f.path or "").startswith(_SYSTEM) and f.charged_bytes for f in files
    ):
        yield (
            "a doublewrite buffer in the system tablespace (ibdata1) counts as data: only SQL"
            " says how much that is"
        )
    ended = sum(line.ended for line in measured.lines)
    if ended:
        yield f"{ended} of {len(measured.lines)} processes ended before the measurement did"
    for name, count in _lost(measured).items():
        yield f"lost: {count} {name}"
    missing = {p.why_not for line in measured.lines for p in line.programs if not p.ok}
    for why in sorted(filter(None, missing)):
        yield _text(f"not watched: {why}", 300)
    yield from (_text(note, 500) for note in measured.notes)
    if changes is not None:
        yield from (_text(note, 500) for note in changes.notes)
