# SPDX-License-Identifier: Apache-2.0
"""Batches on disk until an engine has them: a folder for each destination, a file for each batch.

A file is whole or absent. Where the folder is full, the oldest batches are dropped; where the disk
is full, the new one is. What is dropped is counted, with its rows, and the counts are kept for the
next start. Nothing here raises: an agent must not suffer from its spool.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.times import Count
from stallscope.fleet import batch as batches
from stallscope.fleet.address import Address
from stallscope.fleet.batch import Batch
from stallscope.store import files

__all__ = ["MAX_FILES", "Counts", "Spool", "Waiting", "folder_name", "put_all", "tidy"]

_log = logging.getLogger(__name__)

MAX_FILES = 50_000
"""The most batches that wait, however small they are."""
COUNTS = "counts.json"
_MAX_COUNTS = 1 << 16
_LAST = 10**11
"""No spool comes to this number; names after it would not be in order."""
_MOST_TAKEN = 100
_MAX_DAMAGED = 10
"""How many damaged files are kept for somebody to look at."""
_NAME = re.compile(r"([0-9]{12})-([0-9]{1,9})\.zst")
_ASIDE = re.compile(r"\.[0-9a-f]{16}\.tmp")


class Counts(msgspec.Struct):
    """What was not shipped, since the folder was made."""

    batches: Count = 0
    """Dropped ones: the spool or the disk was full."""
    rows: Count = 0
    """Dropped ones: of those batches, and those that the engine refused."""
    damaged: Count = 0
    """Files that could not be read, and are set aside: their rows are lost."""
    why: str = ""
    """Of the latest loss."""


class Waiting(msgspec.Struct, frozen=True):
    """A batch in the spool. Names are in the order in which they were put there."""

    name: str
    rows: int
    size: int


_counts = msgspec.json.Decoder(Counts)


def folder_name(address: Address) -> str:
    """Return the name of a destination's folder: of its address without the password."""
    text = f"{address.shown}\n{address.user}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Spool:
    """The folder of one destination. Threads may use it together."""

    def __init__(self, folder: Path, limit: int) -> None:
        """``limit``: bytes of all files."""
        self.folder = folder
        self.limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._next = 1
        self._counts = Counts()
        self._unsaved = False
        self._said = ""
        self._open()

    @property
    def counts(self) -> Counts:
        """Return what was lost."""
        with self._lock:
            return msgspec.structs.replace(self._counts)

    @property
    def size(self) -> int:
        """Return the bytes of the batches that wait."""
        with self._lock:
            return self._bytes

    def __len__(self) -> int:
        """Return how many batches wait."""
        with self._lock:
            return len(self._waiting)

    def oldest(self, most: int) -> list[Waiting]:
        """Return the oldest batches, so many at most."""
        with self._lock:
            return [one for one, _ in zip(self._waiting, range(most), strict=False)]

    def read(self, waiting: Waiting) -> Batch | None:
        """Return a batch; None: it was dropped meanwhile, or is damaged, and was set aside."""
        try:
            with files.folder(self.folder) as inside:
                data = files.read(waiting.name, inside, batches.MAX_PACKED)
            return batches.loads(data)
        except FileNotFoundError:
            self.remove([waiting])
        except OSError as error:
            self._say(f"cannot read {self.folder}: {files.one_line_of(error)}")
        except StallscopeError as error:
            self._set_aside(waiting, str(error))
        return None

    def remove(self, done: Sequence[Waiting]) -> None:
        """Remove batches that the engine has."""
        with self._lock:
            for one in done:
                self._forget(one)
        for one in done:
            with contextlib.suppress(OSError):
                os.unlink(self.folder / one.name)
        self.save()

    def lose(self, rows: int, why: str, batches: int = 0) -> None:
        """Count rows that will never be shipped."""
        with self._lock:
            self._lose(rows, why, batches)
        self.save()

    def save(self) -> None:
        """Write the counts, where they have changed; a disk that is full is tried again later."""
        with self._lock:
            if not self._unsaved:
                return
            data = msgspec.json.encode(self._counts)
            try:
                atomicfile.write(self.folder / COUNTS, [data, b"\n"], force=True, sync=False)
                self._unsaved = False
            except (StallscopeError, OSError):
                pass

    def link(self, aside: Path, rows: int, size: int) -> bool:
        """Add a file that is complete, by another name of it; say whether it is there."""
        dropped: list[Waiting] = []
        with self._lock:
            if size > self.limit:
                self._lose(rows, f"a batch of {size} bytes is larger than the spool", 1)
                return False
            while self._waiting and (
                self._bytes + size > self.limit or len(self._waiting) >= MAX_FILES
            ):
                oldest = self._waiting[0]
                self._forget(oldest)
                self._lose(oldest.rows, "the spool is full: the oldest is dropped", 1)
                dropped.append(oldest)
            for one in dropped:
                with contextlib.suppress(OSError):
                    os.unlink(self.folder / one.name)
            try:
                name = self._link(aside, rows)
            except OSError as error:
                self._lose(rows, f"cannot write {self.folder}: {files.one_line_of(error)}", 1)
                return False
            self._waiting.append(Waiting(name, rows, size))
            self._bytes += size
            if not dropped:
                self._said = ""
        return True

    # The lock is held below.

    def _link(self, aside: Path, rows: int) -> str:
        """Give the file the next name that is free. Raises: OSError."""
        for _ in range(_MOST_TAKEN):
            name = f"{self._next:012d}-{rows}.zst"
            self._next += 1
            with contextlib.suppress(FileExistsError):
                _link(aside, self.folder / name)
                atomicfile.sync_folder(self.folder)
                return name
        raise OSError(errno.EEXIST, "its names are taken")

    def _forget(self, one: Waiting) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(one)
            self._bytes -= one.size

    def _lose(self, rows: int, why: str, batches: int) -> None:
        self._counts.rows += rows
        self._counts.batches += batches
        self._counts.why = why
        self._unsaved = True
        self._say(f"rows are not shipped: {why}")

    def _say(self, why: str) -> None:
        if why != self._said:
            _log.error("%s", why)
        self._said = why

    def _set_aside(self, waiting: Waiting, why: str) -> None:
        with self._lock:
            self._forget(waiting)
            self._counts.damaged += 1
            self._lose(waiting.rows, f"a batch of the spool is damaged: {why}", 0)
            kept = self._counts.damaged <= _MAX_DAMAGED
        path = self.folder / waiting.name
        with contextlib.suppress(OSError):
            if kept:
                os.rename(path, f"{path}.damaged")
            else:
                os.unlink(path)
        self.save()

    def _open(self) -> None:
        """Read what the folder has. A folder that cannot be made is tried again with each batch."""
        try:
            files.make_folder(self.folder)
            with files.folder(self.folder) as inside:
                names = files.names(inside)
                for name in names:
                    match = _NAME.fullmatch(name)
                    status = files.regular(name, inside)
                    if match is None or status is None or int(match[1]) > _LAST:
                        continue
                    self._next = max(self._next, int(match[1]) + 1)
                    self._waiting.append(Waiting(name, int(match[2]), status.st_size))
                    self._bytes += status.st_size
                if COUNTS in names:
                    with contextlib.suppress(msgspec.MsgspecError, StallscopeError, UnicodeError):
                        self._counts = _counts.decode(files.read(COUNTS, inside, _MAX_COUNTS))
        except (OSError, StallscopeError) as error:
            self._say(f"cannot read the spool {self.folder}: {error}")


def tidy(above: Path) -> None:
    """Make the folder of all spools, and remove what a killed agent has left unfinished."""
    with contextlib.suppress(OSError, StallscopeError):
        files.make_folder(above)
        with files.folder(above) as inside:
            for name in files.names(inside):
                if _ASIDE.fullmatch(name):
                    os.unlink(name, dir_fd=inside)


def put_all(above: Path, spools: Sequence[Spool], batch: Batch) -> bool:
    """Put a batch into spools, whose folders are in ``above``: written once, and synced.

    Return whether all have it. What could not be written is counted in each.
    """
    rows = batch.rows
    if not spools or not rows:
        return True
    aside = above / f".{secrets.token_hex(8)}.tmp"
    try:
        data = batches.dumps(batch)
        if len(data) > batches.MAX_PACKED:
            raise OSError(errno.EFBIG, "larger than a batch can be")
        files.make_folder(above)
        _write(aside, data)
        found = [spool.link(aside, rows, len(data)) for spool in spools]
        return all(found)
    except (OSError, StallscopeError) as error:
        why = files.one_line_of(error) if isinstance(error, OSError) else str(error)
        for spool in spools:
            spool.lose(rows, f"cannot write {above}: {why}", 1)
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        for spool in spools:
            spool.save()


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())


def _link(aside: Path, path: Path) -> None:
    """Give a file another name; where the file system cannot, copy it."""
    try:
        files.make_folder(path.parent)
        os.link(aside, path)
    except StallscopeError as error:
        raise OSError(errno.EIO, str(error)) from error
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        atomicfile.write(path, [aside.read_bytes()])
