# SPDX-License-Identifier: Apache-2.0
"""Undo records: a file for each poke, on disk before anything is written to the server.

Its first line says what was to be changed; ``stallscope-poke`` appends an event for each thing
that happened (pmp/poke/poke_record.h). Files and folder belong to their user alone; they are still
read as input that can be damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.model.pokes import Event, Record, Stored

__all__ = [
    "RecordError",
    "append",
    "create",
    "default_folder",
    "folder_lock",
    "listed",
    "new_id",
    "path_of",
    "read",
]

SUFFIX = ".poke"
SYSTEM_FOLDER = Path("/var/lib/stallscope/pokes")
MAX_RECORD = 1 << 20
MAX_RECORDS = 10_000
MAX_EVENTS = 10_000
_ID = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}", re.ASCII)


class RecordError(StallscopeError):
    """A record cannot be read, written or used."""


_record = msgspec.json.Decoder(Record)
_event = msgspec.json.Decoder(Event)


def default_folder() -> Path:
    """Return the folder of this user's records."""
    if os.geteuid() == 0:
        return SYSTEM_FOLDER
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "stallscope" / "pokes"


def new_id(now_ns: int) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ns / 1e9))
    return f"{stamp}-{secrets.token_hex(3)}"


def path_of(folder: Path, record_id: str) -> Path:
    """Return the file of a record. Raises: RecordError where it is no id."""
    if not _ID.fullmatch(record_id):
        raise RecordError(
            f"{record_id[:60]!r} is not the id of a poke; `stallscope poke --undo` lists them"
        )
    return folder / f"{record_id}{SUFFIX}"


def create(folder: Path, record: Record) -> Path:
    """Write a record: it and its name are on disk afterwards. Raises: RecordError."""
    path = path_of(folder, record.id)
    line = msgspec.json.encode(record) + b"\n"
    try:
        atomicfile.write(path, [line])
    except StallscopeError as error:
        raise RecordError(f"nothing is written without an undo record: {error}") from error
    return path


def append(path: Path, event: str, detail: str | None = None) -> None:
    """Append an event of this process. Raises: RecordError."""
    row = {"event": event, "at_ns": time.time_ns(), "by": "command", "pid": os.getpid()}
    line = json.dumps({**row, "detail": detail}, separators=(",", ":")).encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> Stored:
    """Read a record. Raises: RecordError where it is none, or is not this user's alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise RecordError(
            f"no poke {path.stem} in {path.parent}; `stallscope poke --undo` lists them"
        ) from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        mine = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not stat.S_ISREG(status.st_mode) or not mine or status.st_nlink != 1:
            raise RecordError(f"{path}: not a file of this user alone (0600): it is not used")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_RECORD + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_RECORD:
        raise RecordError(f"{path}: larger than {MAX_RECORD} bytes, which no record is")
    return _parsed(path, data)


def _parsed(path: Path, data: bytes) -> Stored:
    first, _, rest = data.partition(b"\n")
    try:
        record = _record.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path}: not an undo record: {error}") from error
    word = (record.symbol, record.address, record.size, record.old, record.new)
    if record.id != path.name.removesuffix(SUFFIX):
        raise RecordError(f"{path}: it is the record of poke {record.id}")
    if record.files and any(part is not None for part in word):
        raise RecordError(f"{path}: not an undo record: a word and files")
    if not record.files and any(part is None for part in word):
        raise RecordError(f"{path}: not an undo record: neither a whole word nor files")
    events = []
    damaged = 0
    for line in rest.splitlines()[:MAX_EVENTS]:
        try:
            events.append(_event.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += bool(line)
    return Stored(path, record, tuple(events), damaged)


def listed(folder: Path) -> tuple[list[Stored], list[str]]:
    """Return all records, oldest first, and why some cannot be read."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise RecordError(f"{folder}: cannot be read: {error.strerror}") from error
    found = []
    problems = []
    ids = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
    for record_id in [one for one in ids if _ID.fullmatch(one)][-MAX_RECORDS:]:
        try:
            found.append(read(folder / f"{record_id}{SUFFIX}"))
        except RecordError as error:
            problems.append(str(error))
    # Ids of the same second are in no order.
    return sorted(found, key=lambda stored: stored.record.created_ns), problems


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Make the folder, and let one process at a time decide there. Raises: RecordError."""
    try:
        if not folder.is_dir():
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            atomicfile.sync_folder(folder.parent)
        status = folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise RecordError(
                f"{folder}: others can write to it: undo records need a folder of your own"
            )
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RecordError(
            f"nothing is written without an undo record: {folder}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
