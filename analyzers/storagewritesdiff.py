# SPDX-License-Identifier: Apache-2.0
"""What changed from one report of ``storage writes`` to another: per commit, per row, a second."""

from __future__ import annotations

import msgspec

from stallscope.base.text import one_line
from stallscope.model.storagewrites import CLASSES, ClassWrites, WritesReport

__all__ = ["Change", "Side", "WritesDiff", "diff"]

MAX_SETTINGS = 40
_MAX_CLASSES = 64
_UNLIKE = 1.25
"""Times as many commits a second: then what does not come with commits (checkpoints, purge,
the log's own writes) is shared by more of them, or by fewer."""
_DATABASE = "database files"
_TOTAL = "total"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A class in both reports; None: unknown. A factor is after by before."""

    file_class: str = msgspec.field(name="class")
    before_bytes: int | None
    after_bytes: int | None
    per_second_before: float | None
    per_second_after: float | None
    per_commit_before: float | None
    per_commit_after: float | None
    per_row_before: float | None
    per_row_after: float | None
    factor_per_second: float | None
    factor_per_commit: float | None
    factor_per_row: float | None


class Side(msgspec.Struct, frozen=True):
    """One of the two."""

    server: str
    version: str | None
    pid: int
    seconds: float
    bytes: int | None
    commits_per_second: float | None
    rows_per_second: float | None


class WritesDiff(msgspec.Struct, frozen=True):
    """What changed: the total, the files of the database together, then each class."""

    before: Side
    after: Side
    changes: tuple[Change, ...]
    settings: tuple[tuple[str, str | None, str | None], ...]
    """Name, before, after; None: not set there."""
    warnings: tuple[str, ...]


def diff(before: WritesReport, after: WritesReport) -> WritesDiff:
    """Return what changed between two reports."""
    a, b = _classes(before), _classes(after)
    order = [name for name in CLASSES if name in a or name in b]
    order += sorted((a.keys() | b.keys()) - set(CLASSES))[:_MAX_CLASSES]
    changes = [
        _change(_TOTAL, before.bytes, after.bytes, before, after),
        _change(
            _DATABASE,
            before.amplification.database_bytes,
            after.amplification.database_bytes,
            before,
            after,
        ),
    ]
    for name in order:
        one, other = a.get(name), b.get(name)
        counts = one.bytes if one else 0, other.bytes if other else 0
        if counts != (0, 0):
            changes.append(_change(one_line(name, 40), *counts, before, after))
    return WritesDiff(
        _side(before),
        _side(after),
        tuple(changes),
        _settings(before, after),
        tuple(_warnings(before, after)),
    )


def _classes(report: WritesReport) -> dict[str, ClassWrites]:
    return {item.file_class: item for item in report.classes}


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _change(
    name: str,
    count_before: int | None,
    count_after: int | None,
    before: WritesReport,
    after: WritesReport,
) -> Change:
    seconds = _ratio(count_before, before.seconds), _ratio(count_after, after.seconds)
    commits = _ratio(count_before, before.commits), _ratio(count_after, after.commits)
    rows = _ratio(count_before, before.rows), _ratio(count_after, after.rows)
    return Change(
        file_class=name,
        before_bytes=count_before,
        after_bytes=count_after,
        per_second_before=seconds[0],
        per_second_after=seconds[1],
        per_commit_before=commits[0],
        per_commit_after=commits[1],
        per_row_before=rows[0],
        per_row_after=rows[1],
        factor_per_second=_ratio(seconds[1], seconds[0]),
        factor_per_commit=_ratio(commits[1], commits[0]),
        factor_per_row=_ratio(rows[1], rows[0]),
    )


def _side(report: WritesReport) -> Side:
    return Side(
        server=one_line(report.server, 100),
        version=None if report.version is None else one_line(report.version, 100),
        pid=report.pid,
        seconds=report.seconds,
        bytes=report.bytes,
        commits_per_second=_ratio(report.commits, report.seconds),
        rows_per_second=_ratio(report.rows, report.seconds),
    )


def _settings(
    before: WritesReport, after: WritesReport
) -> tuple[tuple[str, str | None, str | None], ...]:
    if not before.settings or not after.settings:
        return ()
    found = []
    for name in sorted(before.settings.keys() | after.settings.keys()):
        values = [report.settings.get(name) for report in (before, after)]
        if values[0] != values[1]:
            shown = [None if value is None else one_line(value, 200) for value in values]
            found.append((one_line(name, 100), shown[0], shown[1]))
    return tuple(found[:MAX_SETTINGS])


def _warnings(before: WritesReport, after: WritesReport) -> list[str]:
    found = []
    one, other = (" ".join(filter(None, (r.server, r.version))) for r in (before, after))
    if one != other:
        found.append(f"A is of {one_line(one, 100)}, B of {one_line(other, 100)}")
    rates = [_ratio(report.commits, report.seconds) for report in (before, after)]
    a, b = rates
    if a is None or b is None:
        found.append("commits are not known in both: only the bytes a second can be compared")
    elif not a or not b or max(a, b) / min(a, b) > _UNLIKE:
        found.append(
            f"{a:.4g} commits a second in A, {b:.4g} in B: what is not written for a commit"
            " (checkpoints, purge) is shared by another number of them"
        )
    if False in (before.commits_exact, after.commits_exact):
        found.append("commits are not exact")
    if before.seconds and after.seconds and not 0.5 <= before.seconds / after.seconds <= 2:
        found.append(f"A covers {before.seconds:.0f} s, B {after.seconds:.0f} s")
    for name, report in (("A", before), ("B", after)):
        if report.bytes is None:
            found.append(f"{name}: charged bytes are not known")
        if report.lost:
            found.append(f"{name}: events were lost")
    return found
