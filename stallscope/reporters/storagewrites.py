# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a server went, for people and as ``stallscope.storage-writes/1``."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.base.text import clean, end_of_name, one_line, without_surrogates
from stallscope.model.storagewrites import ClassWrites, DeviceWrites, FileWrites, WritesReport
from stallscope.reporters import units
from stallscope.reporters.lines import Line, wrap

__all__ = ["COUNTERS", "dumps", "per_second", "render", "share", "size"]

FILES = 8
"""Files that are shown, unless all are wanted."""
COUNTERS = (
    ("Innodb_data_written", "all writes of InnoDB"),
    ("Innodb_os_log_written", "of these to the redo log"),
    ("Innodb_dblwr_pages_written", "pages to the doublewrite buffer"),
    ("Innodb_pages_written", "pages to data files"),
    ("Binlog_bytes_written", "to the binary log"),
    ("pg_stat_wal.wal_bytes", "of WAL records"),
    ("pg_stat_wal.wal_fpi", "images of whole pages in the WAL"),
    ("pg_stat_bgwriter.buffers_checkpoint", "pages written by checkpoints"),
    ("pg_stat_bgwriter.buffers_clean", "pages written by the background writer"),
    ("pg_stat_bgwriter.buffers_backend", "pages written by backends"),
    ("pg_stat_database.temp_bytes", "to temporary files"),
)
"""Counters of the server that belong beside the classes: name, what it counts."""
_IN_BYTES = ("_written", "_bytes")
_PAGES = ("Innodb_dblwr_pages_written", "Innodb_pages_written")
_UNKNOWN = "-"
_FAR = 1.2
"""Times the requested bytes, from which on they are given too."""


def dumps(report: WritesReport) -> str:
    """Return stallscope.storage-writes/1, one line."""
    return msgspec.json.encode(without_surrogates(msgspec.to_builtins(report))).decode()


def size(count: float | None) -> str:
    """Return a number of bytes, ``-`` where it is not known."""
    return _UNKNOWN if count is None else units.size(round(count))


def per_second(count: float | None) -> str:
    """Return bytes a second."""
    return _UNKNOWN if count is None else f"{units.size(round(count))}/s"


def share(value: float | None) -> str:
    """Return a share as percent."""
    if value is None:
        return _UNKNOWN
    percent = value * 100
    return f"{percent:.0f} %" if percent >= 9.95 or not percent else f"{percent:.1f} %"


def render(report: WritesReport, *, width: int, full: bool = False) -> list[Line]:
    """Return the lines, what matters most first."""
    lines = [*wrap(_headline(report), width, style="bold")]
    if work := _work(report):
        lines += wrap(work, width, indent="  ")
    lines += [Line(""), *_table(report)]
    if ratios := list(_ratios(report)):
        lines += [Line(""), Line("Write amplification", "bold")]
        for text in ratios:
            lines += wrap(text, width, indent="  ", hang="    ")
    lines += [Line(""), Line("Compared with", "bold")]
    for text in _totals(report):
        lines += wrap(text, width, indent="  ", hang="    ")
    if report.unaccounted:
        lines += [Line(""), Line("Not accounted for, or not what it seems", "bold")]
        for item in report.unaccounted:
            text = f"{item.what}: {size(item.bytes)}, {item.why}"
            lines += wrap(text, width, indent="  ", hang="    ")
    lines += _files(report, width, full=full)
    if report.notes:
        lines.append(Line(""))
    for note in report.notes:
        lines += wrap(f"note: {note}", width, hang="  ")
    return lines


def _headline(report: WritesReport) -> str:
    who = " ".join(filter(None, (report.server, report.version)))
    head = f"{who} (pid {report.pid}), {units.duration(report.seconds * 1000)}: "
    if report.bytes is None:
        total = f"{size(report.requested_bytes)} requested; what was charged is not known"
    elif not report.bytes and not report.requests:
        return f"{head}wrote nothing."
    else:
        rate = report.bytes / report.seconds if report.seconds else None
        total = f"{size(report.bytes)} charged, {per_second(rate)}"
    top = report.classes[0] if report.classes else None
    if top is None or top.share is None:
        return f"{head}{total}."
    return f"{head}{total}; {share(top.share)} of it to {top.file_class}."


def _work(report: WritesReport) -> str:
    parts = []
    if report.commits is not None:
        about = "" if report.commits_exact else "about "
        parts.append(f"{about}{units.number(round(report.commits))} commits")
    if report.rows is not None:
        parts.append(f"{units.number(round(report.rows))} rows changed")
    costs = []
    if report.bytes is not None and report.commits:
        costs.append(f"{size(report.bytes / report.commits)} a commit")
    if report.bytes is not None and report.rows:
        costs.append(f"{size(report.bytes / report.rows)} a row")
    return "; ".join(filter(None, (", ".join(parts), ", ".join(costs))))


def _table(report: WritesReport) -> Iterator[Line]:
    work = report.commits is not None or report.rows is not None
    head = (
        f"{'Class':<11}{'Charged':>10}{'/s':>9}{'Share':>6}{'Requested':>10}{'Count':>7}{'Mean':>9}"
    )
    yield Line(head + (f"{'/commit':>9}{'/row':>9}" if work else ""), "bold")
    shown = [c for c in report.classes if c.bytes or c.requests]
    for item in shown:
        yield Line(_row(item, work))
    if empty := [c.file_class for c in report.classes if c not in shown]:
        yield Line(f"nothing to: {', '.join(empty)}", "dim")


def _row(item: ClassWrites, work: bool) -> str:
    mark = "~" if item.estimated else ""
    cells = [
        f"{end_of_name(clean(item.file_class), 11):<11}",
        f"{mark + size(item.bytes):>10}",
        f"{size(item.bytes_per_second):>9}",
        f"{share(item.share):>6}",
        f"{size(item.requested_bytes):>10}",
        f"{_short(item.requests):>7}",
        f"{size(item.mean_request_bytes):>9}",
    ]
    if work:
        cells += [f"{size(item.bytes_per_commit):>9}", f"{size(item.bytes_per_row):>9}"]
    return "".join(cells)


def _short(count: int) -> str:
    """Return a count in at most six characters."""
    return str(count) if count < 1_000_000 else f"{count / 1e6:.3g}M"


def _ratios(report: WritesReport) -> Iterator[str]:
    found = report.amplification
    if found.database_bytes is not None:
        text = f"{size(found.database_bytes)} to database files (data, doublewrite, undo)"
        if found.database_bytes > _FAR * found.database_requested_bytes > 0:
            text += f", of which {size(found.database_requested_bytes)} requested"
        if found.database_per_row_byte is not None:
            text += (
                f": {_times(found.database_per_row_byte)} bytes for each byte of changed rows"
                f" ({report.row_bytes_source})"
            )
        else:
            text += "; the bytes of the changed rows are not known"
        yield text
    if found.all_per_row_byte is not None:
        yield f"{_times(found.all_per_row_byte)} bytes to all files for each byte of changed rows"
    if found.all_per_log_byte is not None:
        yield f"{_times(found.all_per_log_byte)} bytes to all files for each byte of log records"
    if found.doublewrite_factor is not None:
        yield f"doublewrite: {_times(found.doublewrite_factor)} times what data and undo take"
    if found.charged_per_requested is not None:
        why = "a page is charged whole, once until it is written"
        yield f"{_times(found.charged_per_requested)} bytes charged for each requested ({why})"


def _times(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _totals(report: WritesReport) -> Iterator[str]:
    if report.process_write_bytes is None:
        yield "/proc/PID/io: cannot be read"
    else:
        text = f"/proc/PID/io: write_bytes {size(report.process_write_bytes)}"
        if report.accounted is not None:
            text += f", of which the classes have {share(report.accounted)}"
        if report.process is not None:
            text += f"; wchar {size(report.process.wchar)} (calls of write, of sockets too)"
        yield text
    for device in report.devices:
        yield _device(device, report)
    page = report.settings.get("innodb_page_size", "")
    for name, what in COUNTERS:
        value = report.counters.get(name)
        if value is None:
            continue
        is_size = name.endswith(_IN_BYTES) and name not in _PAGES
        number = size(value) if is_size else units.number(round(value))
        if name in _PAGES and page.isdecimal():
            number += f" ({size(value * int(page))})"
        yield f"{name.rpartition('.')[2]}: {number}, {what}"


def _device(device: DeviceWrites, report: WritesReport) -> str:
    name = device.name or f"device {device.dev}"
    text = f"{name}: "
    if device.bytes is None:
        kind = "no block device: memory, or the file system's own blocks; "
        kind = kind if device.dev.startswith("0:") else "not in /proc/diskstats; "
        return f"{text}{kind}{size(device.server_bytes)} charged to this server"
    text += f"{size(device.bytes)} written in all, {size(device.server_bytes)} charged to this"
    text += " server"
    if device.server_bytes is not None:
        rest = device.bytes - device.server_bytes
        others = size(report.other_processes_bytes)
        if report.other_processes_hidden and report.other_processes_bytes is not None:
            others = f"at least {others}"
        if rest > 0:
            text += (
                f"; the other {size(rest)}: the journal of the file system, other processes"
                f" ({others} charged to them), and what was dirty before"
            )
        elif rest < 0:
            text += f"; {size(-rest)} were still in the page cache, or removed before"
    return text


def _files(report: WritesReport, width: int, *, full: bool) -> Iterator[Line]:
    shown = report.files if full else report.files[:FILES]
    if not shown:
        return
    yield Line("")
    yield Line("Largest files", "bold")
    for file in shown:
        yield Line(_file(file, width))
    left = len(report.files) - len(shown) + report.files_left_out
    if left:
        yield Line(f"  {left} more; --full shows {len(report.files)}", "dim")


def _file(file: FileWrites, width: int) -> str:
    marks = [word for word in ("deleted", "direct", "dsync") if getattr(file, word)]
    tail = f" ({', '.join(marks)})" if marks else ""
    head = f"  {size(file.bytes):>9} {one_line(file.file_class, 11):<11} "
    unnamed = "blocks of the file system" if file.metadata else "a file without a name"
    path = unnamed if file.path is None else clean(file.path)
    return head + end_of_name(path, max(10, width - len(head) - len(tail))) + tail
