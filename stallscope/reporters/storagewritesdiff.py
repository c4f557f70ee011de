# SPDX-License-Identifier: Apache-2.0
"""Two reports of ``storage writes`` side by side; ``stallscope.storage-writes-diff/1``."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.analyzers.storagewritesdiff import Change, Side, WritesDiff
from stallscope.base.text import end_of_name, one_line, without_surrogates
from stallscope.reporters import units
from stallscope.reporters.lines import Line, wrap
from stallscope.reporters.storagewrites import per_second, size

__all__ = ["SCHEMA", "dumps", "render"]

SCHEMA = "stallscope.storage-writes-diff/1"


def dumps(found: WritesDiff) -> str:
    """Return stallscope.storage-writes-diff/1, one line."""
    document = {"schema": SCHEMA, **msgspec.to_builtins(found)}
    document["settings"] = [
        {"name": name, "before": before, "after": after} for name, before, after in found.settings
    ]
    return msgspec.json.encode(without_surrogates(document)).decode()


def render(found: WritesDiff, *, width: int, names: tuple[str, str]) -> list[Line]:
    """Return the lines: what the change is in one sentence, warnings, then each class."""
    lines = [*wrap(_headline(found), width, style="bold")]
    for name, path, side in zip("AB", names, (found.before, found.after), strict=True):
        lines += wrap(f"{name}: {_side(side)} ({one_line(path, 200)})", width, hang="   ")
    for warning in found.warnings:
        lines += wrap(f"warning: {warning}", width, hang="  ", style="yellow")
    lines += [Line(""), *_table(found)]
    if found.settings:
        lines += [Line(""), Line("Settings that differ", "bold")]
        for name, before, after in found.settings:
            text = f"{name}: {_setting(before)} -> {_setting(after)}"
            lines += wrap(text, width, indent="  ", hang="    ")
    return lines


def _setting(value: str | None) -> str:
    return "not there" if value is None else value or "''"


def _headline(found: WritesDiff) -> str:
    total = found.changes[0]
    for factor, what in (
        (total.factor_per_commit, "a commit"),
        (total.factor_per_row, "a row"),
        (total.factor_per_second, "a second"),
    ):
        if factor is not None:
            return f"B writes {_times(factor)} times as much {what} as A."
    return "How much more or less B writes is not known."


def _side(side: Side) -> str:
    parts = [
        " ".join(filter(None, (side.server, side.version))) or "a server",
        units.duration(side.seconds * 1000),
        f"{size(side.bytes)} charged",
    ]
    if side.commits_per_second is not None:
        parts.append(f"{side.commits_per_second:.4g} commits/s")
    if side.rows_per_second is not None:
        parts.append(f"{side.rows_per_second:.4g} rows/s")
    return ", ".join(parts)


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}" if factor < 100 else f"{factor:.3g}"


def _table(found: WritesDiff) -> Iterator[Line]:
    work = any(
        c.per_commit_before is not None or c.per_row_before is not None for c in found.changes
    )
    if not work:
        yield Line(f"{'Class':<15}{'A, /s':>11}{'B, /s':>11}{'B/A':>7}", "bold")
    else:
        head = f"{'Class':<15}{'A/commit':>10}{'B/commit':>10}{'B/A':>7}"
        yield Line(f"{head}{'A/row':>10}{'B/row':>10}{'B/A':>7}", "bold")
    for change in found.changes:
        yield Line(_row(change, work))


def _row(change: Change, work: bool) -> str:
    name = f"{end_of_name(change.file_class, 15):<15}"
    if not work:
        before, after = (per_second(c) for c in (change.per_second_before, change.per_second_after))
        return f"{name}{before:>11}{after:>11}{_times(change.factor_per_second):>7}"
    return (
        f"{name}{size(change.per_commit_before):>10}{size(change.per_commit_after):>10}"
        f"{_times(change.factor_per_commit):>7}"
        f"{size(change.per_row_before):>10}{size(change.per_row_after):>10}"
        f"{_times(change.factor_per_row):>7}"
    )
