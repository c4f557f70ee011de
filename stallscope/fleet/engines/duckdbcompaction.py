# SPDX-License-Identifier: Apache-2.0
"""Compaction of a folder: one Parquet file for each table and day, not a file for each batch.

A file is removed only after another one has its rows and is on disk. Until then rows are there
twice, which their keys and revisions show: so it may be killed at any moment, and run twice at
once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import duckdbsql, folderfiles
from stallscope.fleet.engines.duckdbreader import DuckDBReader
from stallscope.fleet.engines.folderfiles import PACKED, Day
from stallscope.fleet.tables import TABLES, Table
from stallscope.store import locking

__all__ = ["Compacted", "compact"]

_CHUNK = 1 << 20
_LOCK = ".compact.lock"
_MODE = 0o640
_LEFTOVER_S = 86_400.0


class Compacted(msgspec.Struct):
    """What a compaction did. ``notes``: files that stay as they are, and why."""

    days: int = 0
    """Of tables: each has one Parquet file now that it did not have before."""
    rows: int = 0
    files_before: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    notes: list[str] = []


def compact(folder: Path, *, since: str = "", until: str = "9", min_free: int = 0) -> Compacted:
    """Make one Parquet file of each table and day from ``since`` to ``until`` (``2026-11-29``).

    ``min_free``: bytes of the disk that are left to others. Agents may write meanwhile; what comes
    later stays until the next compaction. Raises: EngineError; what is done by then stays done.
    """
    done = Compacted()
    reader = DuckDBReader(folder, strict=True)
    try:
        with _alone(reader.folder):
            for table in TABLES.values():
                for day in folderfiles.days(reader.folder / table.name, since, until):
                    _remove_leftovers(reader.folder / table.name / f"day={day.day}")
                    if _is_compact(day):
                        continue
                    _one(reader, table, day.day, min_free, done)
    except locking.Locked:
        raise EngineError(f"another compaction of {folder} runs: wait for it") from None
    except StallscopeError as error:
        raise EngineError(str(error)) from None
    except OSError as error:
        where = error.filename or folder
        raise EngineError(f"cannot compact {where}: {error.strerror or error}") from None
    finally:
        reader.close()
    return done


def _is_compact(day: Day) -> bool:
    return not day.entries or (len(day.entries) == 1 and day.entries[0].is_parquet)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock. Where there are no locks two compactions do the work twice, no more."""
    path = folder / _LOCK
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    os.close(os.open(path, flags, _MODE))
    try:
        held = locking.take(path)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        yield
        return
    try:
        yield
    finally:
        held.release()


def _one(reader: DuckDBReader, table: Table, day: str, min_free: int, done: Compacted) -> None:
    out = reader.private / "compacted.parquet"

    def work() -> tuple[int, list[Path], list[str]]:
        staged = reader.load(table, day, day)
        if not staged.read or (len(staged.read) == 1 and staged.whole):
            return 0, [], list(staged.notes)
        key = ", ".join(table.key)
        rows = duckdbsql.selected(table, table.name)
        reader.connection.execute(duckdbsql.copied(rows, out, order=key))
        (count,) = reader.connection.execute(duckdbsql.counted(out)).fetchone() or (0,)
        return count, list(staged.read), list(staged.notes)

    try:
        count, read, notes = reader.attempt(work)
        done.notes += notes
        if not read:
            return
        into = reader.folder / table.name / f"day={day}"
        size = out.stat().st_size
        free = shutil.disk_usage(into).free - size
        if free < min_free:
            raise EngineError(
                f"cannot compact {into}: its disk would have {max(0, free) >> 20} MiB free;"
                " free space, or run `stallscope fleet prune`"
            )
        before = sum(path.stat().st_size for path in read if path.exists())
        # A name of its own: none that a compaction at the same time removes.
        path = into / f"rows-{secrets.token_hex(12)}{PACKED}"
        atomicfile.write(path, _chunks(out), mode=_MODE)
        for one in read:
            one.unlink(missing_ok=True)
        atomicfile.sync_folder(into)
    finally:
        reader.forget()
    done.days += 1
    done.rows += count
    done.files_before += len(read)
    done.bytes_before += before
    done.bytes_after += size


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _remove_leftovers(folder: Path) -> None:
    """Remove what writers left that were killed long ago."""
    for entry in folder.iterdir():
        if entry.name.startswith(".") and entry.name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.lstat().st_mtime > _LEFTOVER_S:
                    entry.unlink()
