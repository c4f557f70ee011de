# SPDX-License-Identifier: Apache-2.0
"""Batches as files in a folder: on this host's disk, on a shared one, or one that a tool copies to
an object store. It needs no engine. docs/fleet-folder.md."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections import defaultdict
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.sending import SendError
from stallscope.fleet.batch import MAX_PACKED, MAX_PLAIN, Batch
from stallscope.fleet.engines.folderfiles import LINES, Lines, is_date
from stallscope.fleet.tables import TABLES
from stallscope.store.appended import pack

__all__ = ["MIN_FREE", "FolderDestination"]

MIN_FREE = 100 << 20
"""Bytes of the disk that are left to others."""
_FILE_MODE = 0o640
_WAIT_S = 60.0


class _Day(msgspec.Struct):
    day: str = ""


_day = msgspec.json.Decoder(_Day)


class FolderDestination:
    """destination.Destination: one file for each table and day of a batch, whole or absent."""

    def __init__(self, folder: Path, *, min_free: int = MIN_FREE) -> None:
        self._folder = folder
        self._min_free = min_free

    @property
    def shown(self) -> str:
        """Return its address."""
        return f"file://{self._folder}"

    @property
    def skew_ms(self) -> float | None:
        """A folder has no clock."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return nothing: files have all columns."""
        return ()

    def send(self, batch: Batch) -> None:
        """Write what is not there yet. Raises: SendError."""
        for path, plain in self._files(batch):
            try:
                self._write(path, pack(plain))
            except OSError as error:
                raise self._failed(path, error) from None
            except StallscopeError as error:
                if path.is_file() and not path.is_symlink():
                    continue  # somebody sent the same batch meanwhile
                cause = error.__cause__
                if isinstance(cause, OSError):
                    raise self._failed(path, cause) from None
                raise SendError(str(error), after=_WAIT_S) from None

    def close(self) -> None:
        """Nothing is open."""

    def _files(self, batch: Batch) -> list[tuple[Path, bytes]]:
        found = []
        for table, lines in batch.lines.items():
            days: dict[str, list[bytes]] = defaultdict(list)
            for line in lines:
                try:
                    day = _day.decode(line).day
                except ValueError as error:
                    raise SendError(f"a row of {table}: {error}", refused=True) from None
                if not is_date(day):
                    raise SendError(f"a row of {table} has no day", refused=True)
                days[day].append(line + b"\n")
            for day, rows in days.items():
                self._check(table, day, b"".join(rows))
                path = self._folder / table / f"day={day}" / f"{batch.id}{LINES}"
                found.append((path, b"".join(rows)))
        return found

    @staticmethod
    def _check(table: str, day: str, plain: bytes) -> None:
        """Refuse what readers would leave out, and with it all other rows of the file."""
        try:
            if len(plain) > MAX_PLAIN:
                raise StallscopeError(f"more than {MAX_PLAIN >> 20} MiB")
            _lines(table).checked(plain, day)
        except StallscopeError as error:
            raise SendError(f"rows of {table}: {error}", refused=True) from None

    def _write(self, path: Path, data: bytes) -> None:
        if not self._folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder")
        if path.exists():
            return
        if len(data) > MAX_PACKED:
            raise SendError(f"the batch has more than {MAX_PACKED >> 20} MiB", refused=True)
        for folder in (path.parent.parent, path.parent):
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            atomicfile.sync_folder(folder.parent)
        free = shutil.disk_usage(self._folder).free - len(data)
        if free < self._min_free:
            raise SendError(
                f"the disk of {self._folder} would have {max(0, free) >> 20} MiB free, less than"
                f" {self._min_free >> 20} MiB; free space, or run `stallscope fleet prune`",
                after=_WAIT_S,
            )
        atomicfile.write(path, [data], mode=_FILE_MODE & ~_umask())

    def _failed(self, path: Path, error: OSError) -> SendError:
        code = error.errno or 0
        what = _HELP.get(code, "look at the folder")
        why = os.strerror(code) if code else str(error)
        where = self._folder if code == errno.ENOENT else path.parent
        return SendError(f"cannot write to {where}: {why}; {what}", after=_WAIT_S)


@functools.cache
def _lines(table: str) -> Lines:
    return Lines(TABLES[table])


_HELP = {
    errno.ENOSPC: "free space on its disk, or run `stallscope fleet prune`",
    errno.EDQUOT: "raise the quota, or run `stallscope fleet prune`",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.ENOENT: "create the folder, or mount its disk",
    errno.ENOTDIR: "name a folder",
    errno.ESTALE: "mount it again",
}


def _umask() -> int:
    try:
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError, IndexError):
        pass
    return 0o077
