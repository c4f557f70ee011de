# SPDX-License-Identifier: Apache-2.0
"""Write one incident so that it is intact after a kill or a power loss at any moment."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Note
from stallscope.model.incident import CaptureEntry, Incident
from stallscope.model.samples import Sample
from stallscope.store import layout, locking
from stallscope.store.appended import Appended, pack
from stallscope.store.files import make_folder, one_line_of
from stallscope.store.records import MAX_CAPTURES, encode, encode_lines

__all__ = ["MAX_INCIDENT_BYTES", "IncidentFolder", "announce"]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_SAME_ID = 1000
_MAX_TEXTS = 10_000
MAX_INCIDENT_BYTES = 256 << 20
"""Of one incident: retention always keeps the newest, however large it is."""


def announce(
    incidents: Path,
    incident: Incident,
    sized: Callable[[int], None],
    most_bytes: int = MAX_INCIDENT_BYTES,
) -> IncidentFolder:
    """Make the folder of an incident; when this returns, the incident is never lost.

    It is created under a temporary name and then renamed, so that no reader sees a part of it.
    Where the name is taken, by another agent for one, it gets a number. ``sized`` is called with
    the bytes of each capture. Beyond ``most_bytes`` the incident takes nothing more.
    """
    aside = incidents / f"{layout.ASIDE}{secrets.token_hex(8)}"
    make_folder(aside)
    held: locking.Held | None = None
    try:
        held = _lock(aside)
        make_folder(aside / layout.CAPTURES)
        make_folder(aside / layout.TEXTS)
        named = _give_name(aside, incidents, incident)
        atomicfile.sync_folder(incidents)
    except (OSError, StallscopeError) as error:
        if held is not None:
            held.release()
        shutil.rmtree(aside, ignore_errors=True)  # still its own name: nobody else's file is in it
        if isinstance(error, OSError):
            raise StallscopeError(f"cannot write {incidents}: {one_line_of(error)}") from error
        raise
    return IncidentFolder(incidents / named.id, named, held, sized, most_bytes)


def _lock(folder: Path) -> locking.Held | None:
    """Lock the folder, which says to others that its incident goes on."""
    try:
        return locking.take(folder)
    except OSError:
        return None  # a file system without locks: readers go by time


def _give_name(aside: Path, incidents: Path, incident: Incident) -> Incident:
    if not layout.is_id(incident.id):
        raise StallscopeError(f"{one_line(incident.id, 80)!r} is not the id of an incident")
    for number in range(1, _MAX_SAME_ID):
        named = incident
        if number > 1:
            named = msgspec.structs.replace(incident, id=f"{incident.id}-{number}")
        if (incidents / named.id).exists():
            continue
        atomicfile.write(aside / layout.INCIDENT, [encode(named)], force=True)
        try:
            # rename(2) replaces an empty folder only, and one of ours never is.
            os.rename(aside, incidents / named.id)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                continue
            raise
        return named
    raise StallscopeError(f"{incidents}: {incident.id} is there {_MAX_SAME_ID} times")


class IncidentFolder:
    """The folder of an incident that goes on, and its one writer. Threads may share it.

    Every method returns when what it wrote is on disk, so it can take as long as the disk does.
    They raise StallscopeError, in one line, and leave nothing torn.
    """

    def __init__(
        self,
        path: Path,
        incident: Incident,
        held: locking.Held | None,
        sized: Callable[[int], None],
        most_bytes: int = MAX_INCIDENT_BYTES,
    ) -> None:
        self.path = path
        self._incident = incident
        self._held = held
        self._sized = sized
        self._left = most_bytes
        """Bytes that the incident may still take."""
        self._next = 1
        self._open = True
        self._lock = threading.RLock()
        self._samples = Appended(path / layout.SAMPLES)
        self._waits = Appended(path / layout.WAITS)
        self._raw_sql = Appended(path / layout.RAW_SQL)

    def __enter__(self) -> IncidentFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def incident(self) -> Incident:
        """As it was last given; its id can differ from the one that was asked for."""
        return self._incident

    def next_capture(self) -> Path:
        """Reserve the path of a capture, for a probe that writes it itself."""
        with self._lock:
            self._check_open()
            if self._next > MAX_CAPTURES:
                raise StallscopeError(f"{self.path}: {MAX_CAPTURES} captures are enough")
            name = layout.capture_name(self._next)
            self._next += 1
            return self.path / name

    def add_capture(self, source: Path | bytes, entry: CaptureEntry) -> CaptureEntry:
        """Add a capture, and return the entry with the name of its file.

        ``source`` is the text of a capture, or a file: one that ``next_capture`` named stays where
        it is, any other is moved here.
        """
        with self._lock:
            if isinstance(source, Path) and source.parent == self.path / layout.CAPTURES:
                path = source
                self._take_room(source)
                self._adopt(path)
            else:
                self._take_room(source)
                path = self.next_capture()
                self._take_in(source, path)
            self._note_size(path)
            entry = msgspec.structs.replace(entry, file=f"{layout.CAPTURES}/{path.name}")
            self.update(
                msgspec.structs.replace(self._incident, captures=(*self._incident.captures, entry))
            )
            return entry

    def _take_room(self, of: Path | bytes) -> None:
        """Count the bytes of something that is to be stored. Raises: StallscopeError where the
        incident would be too large; then a file is removed."""
        try:
            size = of.lstat().st_size if isinstance(of, Path) else len(of)
        except OSError as error:
            raise StallscopeError(f"cannot take {of!r} in: {one_line_of(error)}") from error
        if size > self._left:
            if isinstance(of, Path):
                with contextlib.suppress(OSError):
                    of.unlink()
            raise StallscopeError(
                f"{self.path}: not stored: {size >> 20} MiB more are too much for one incident"
            )
        self._left -= size

    def _take_in(self, source: Path | bytes, path: Path) -> None:
        if isinstance(source, bytes):
            atomicfile.write(path, [_packed(source)])
            return
        try:
            try:
                os.link(source, path, follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    raise
                # Another file system, or one without hard links.
                atomicfile.write(path, [source.read_bytes()])
            self._adopt(path)
            source.unlink()
        except OSError as error:
            raise StallscopeError(f"cannot take {source} in: {one_line_of(error)}") from error

    def _adopt(self, path: Path) -> None:
        """Sync a capture that another process wrote, and its name."""
        if not layout.is_capture_name(path.name):
            raise StallscopeError(f"{path}: is not the name of a capture")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise StallscopeError(f"{path}: not a regular file")
                with contextlib.suppress(PermissionError):  # a probe with more privileges wrote it
                    os.fchmod(descriptor, 0o600)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            atomicfile.sync_folder(path.parent)
        except OSError as error:
            raise StallscopeError(f"cannot take {path} in: {one_line_of(error)}") from error
        self._next = max(self._next, int(path.name.partition(".")[0]) + 1)

    def append_samples(self, samples: Iterable[Sample]) -> None:
        """Append samples; give many at once, since each call syncs the file."""
        self._append(self._samples, encode_lines(samples), compressed=True)

    def append_sample_lines(self, lines: Iterable[bytes]) -> None:
        """Append samples that are lines of JSON already."""
        self._append(self._samples, _lines(lines), compressed=True)

    def append_waits(self, lines: Iterable[bytes]) -> None:
        """Append lines of stallscope.waits/1 as the probe printed them."""
        self._append(self._waits, _lines(lines), compressed=True)

    def append_raw_sql(self, lines: Iterable[bytes]) -> None:
        """Append JSON lines of statements with their literals: for ``--raw-sql`` alone."""
        self._append(self._raw_sql, _lines(lines), compressed=False)

    def _append(self, file: Appended, data: bytes, *, compressed: bool) -> None:
        if data:
            with self._lock:
                self._check_open()
                data = pack(data) if compressed else data
                self._take_room(data)
                file.append(data)

    def add_text(self, name: str, text: str) -> Path:
        """Keep a text of the server; return its path, numbered where the name is taken."""
        with self._lock:
            self._check_open()
            for number in range(1, _MAX_TEXTS):
                file = f"{name}.txt" if number == 1 else f"{name}-{number}.txt"
                if not layout.is_text_name(file):
                    raise StallscopeError(f"{one_line(name, 80)!r} is not the name of a text")
                path = self.path / layout.TEXTS / file
                if not os.path.lexists(path):
                    data = text.encode("utf-8", "backslashreplace")
                    self._take_room(data)
                    atomicfile.write(path, [data])
                    return path
            raise StallscopeError(f"{self.path}: {_MAX_TEXTS} texts are enough")

    def suppress(self, why: str) -> None:
        """Count a capture that was not taken."""
        with self._lock:
            note = Note("suppressed", one_line(why))
            notes = self._incident.notes
            if note not in notes:
                notes = (*notes, note)
            self.update(
                msgspec.structs.replace(
                    self._incident, suppressed=self._incident.suppressed + 1, notes=notes
                )
            )

    def update(self, incident: Incident) -> None:
        """Write incident.json again; entries of captures that it leaves out are kept."""
        with self._lock:
            self._check_open()
            if incident.id != self._incident.id:
                raise StallscopeError(f"{self.path}: is not the folder of {incident.id}")
            given = {entry.file for entry in incident.captures}
            kept = [entry for entry in self._incident.captures if entry.file not in given]
            if kept:
                captures = sorted((*kept, *incident.captures), key=lambda entry: entry.file)
                incident = msgspec.structs.replace(incident, captures=tuple(captures))
            if incident.origin is None:
                incident = msgspec.structs.replace(incident, origin=self._incident.origin)
            # First: what a full disk refuses now is written with the next update.
            self._incident = incident
            atomicfile.write(self.path / layout.INCIDENT, [encode(incident)], force=True)

    def finish(self, incident: Incident | None = None) -> None:
        """Write the incident for the last time; it is over, and others may remove it."""
        with self._lock:
            self.update(self._incident if incident is None else incident)
            self.close()

    def close(self) -> None:
        """Release it without writing; where it was not finished, it counts as interrupted."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            for file in (self._samples, self._waits, self._raw_sql):
                file.close()
            if self._held is not None:
                self._held.release()

    def _check_open(self) -> None:
        if not self._open:
            raise StallscopeError(f"{self.path}: the incident is closed")

    def _note_size(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._sized(path.lstat().st_size)


def _packed(data: bytes) -> bytes:
    return data if data.startswith(_ZSTD_MAGIC) else pack(data)


def _lines(lines: Iterable[bytes]) -> bytes:
    return b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
