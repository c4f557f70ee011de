# SPDX-License-Identifier: Apache-2.0
"""Retention of a folder: old days are removed, with their files. It needs no engine."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
from pathlib import Path

import msgspec

from stallscope.base.text import one_line
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import folderfiles
from stallscope.fleet.tables import TABLES, day_of

__all__ = ["Pruned", "prune"]


class Pruned(msgspec.Struct):
    """What was removed: ``TABLE/day=…``. ``notes``: what stays, and why."""

    removed: list[str] = []
    bytes: int = 0
    notes: list[str] = []


def prune(folder: Path, days: int | None = None, *, now_ms: int) -> Pruned:
    """Remove the days that are older than ``days``; by default as old as each table says.

    Stacks stay as long as their table says at least: an incident may need one that was shipped
    long before. Raises: EngineError.
    """
    if not folder.is_dir():
        raise EngineError(f"there is no folder {folder}: mount it, or name another one")
    done = Pruned()
    today = datetime.date.fromisoformat(day_of(now_ms))
    for table in TABLES.values():
        keep = table.days if days is None else days
        if table.name == "stacks":
            keep = max(keep, table.days)
        last = (today - datetime.timedelta(days=min(keep, today.toordinal() - 1))).isoformat()
        try:
            for day in folderfiles.days(folder / table.name, until=last):
                if day.day < last:
                    _remove(folder, folder / table.name / f"day={day.day}", done)
        except OSError as error:
            where = error.filename or folder / table.name
            raise EngineError(f"cannot prune {where}: {error.strerror or error}") from None
    return done


def _remove(folder: Path, day: Path, done: Pruned) -> None:
    name = os.path.relpath(day, folder)
    if day.is_symlink() or not day.is_dir():
        done.notes.append(f"{name} stays: it is no folder")
        return
    for entry in sorted(day.iterdir()):
        if not _is_ours(entry.name) or not (entry.is_symlink() or entry.is_file()):
            done.notes.append(f"{name}/{one_line(entry.name, 120)} stays: no file of a fleet")
            continue
        with contextlib.suppress(FileNotFoundError):
            size = entry.lstat().st_size
            entry.unlink()
            done.bytes += size
    try:
        day.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
    else:
        done.removed.append(name)


def _is_ours(name: str) -> bool:
    return name.endswith((folderfiles.LINES, folderfiles.PACKED)) or (
        name.startswith(".") and name.endswith(".tmp")
    )
