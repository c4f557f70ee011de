# SPDX-License-Identifier: Apache-2.0
"""Read one incident of an untrusted store, with limits, also if it is damaged. Unreadable parts are
left out, with ``notes``, to which later reads add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model import capturefile, sessionsfile, waitlines
from stallscope.model.capture import Capture, Note
from stallscope.model.incident import CaptureEntry, Incident
from stallscope.model.samples import Sample
from stallscope.model.sessions import missing
from stallscope.model.waitlines import ThreadSample
from stallscope.store import files, layout, owners
from stallscope.store.appended import frames, whole_lines
from stallscope.store.records import (
    DAMAGE,
    MAX_CAPTURES,
    MAX_INCIDENT,
    decode_incident,
    decode_samples,
)

__all__ = ["StoredCapture", "StoredIncident", "read_incident"]

MAX_PACKED = 128 << 20
"""Bytes of a compressed file of samples or waits."""
MAX_PLAIN = 512 << 20
MAX_SAMPLES = 500_000
MAX_WAIT_LINES = 50_000
MAX_THREAD_SAMPLES = 4_000
MAX_TEXTS = 1_000
MAX_TEXT = 16 << 20
MAX_NOTES = 100

_T = TypeVar("_T")


class _ThreadLine(msgspec.Struct, frozen=True):
    """What of a line of waits is about threads: the rest is not decoded, which takes longer."""

    history: tuple[ThreadSample, ...] = ()


_thread_line = msgspec.json.Decoder(_ThreadLine)


class StoredCapture(msgspec.Struct, frozen=True):
    """A capture of an incident: ``capture`` is None where it cannot be read, and ``error`` why."""

    entry: CaptureEntry
    path: Path | None = None
    capture: Capture | None = None
    error: str | None = None


def read_incident(path: Path) -> StoredIncident:
    """Read the incident in a folder, which may be named by its incident.json too.

    Raises: StallscopeError where there is none.
    """
    if path.name == layout.INCIDENT:
        path = path.parent
    path = path.absolute()
    try:
        with files.folder(path) as inside:
            data = files.read(layout.INCIDENT, inside, MAX_INCIDENT)
            incident = decode_incident(data, None)  # a copy can have any name
            with files.folder(path.parent) as above:
                known = msgspec.structs.replace(incident, id=path.name)
                alive = incident.end_ns is None and owners.is_ongoing(
                    path.parent.parent, above, known
                )
    except FileNotFoundError:
        raise StallscopeError(f"{path}: not an incident: it has no incident.json") from None
    except OSError as error:
        raise StallscopeError(f"cannot read {path}: {files.one_line_of(error)}") from error
    except StallscopeError as error:
        raise StallscopeError(f"{path}/{error}") from error
    return StoredIncident(path, incident, going_on=alive)


class StoredIncident:
    """One incident on disk."""

    def __init__(self, path: Path, incident: Incident, *, going_on: bool) -> None:
        self.path = path
        self.incident = incident
        self.going_on = going_on
        self.notes: list[Note] = []

    def entries(self) -> list[CaptureEntry]:
        """Return the captures, in order; one that was taken in a moment before a kill too."""
        listed = {entry.file: entry for entry in self.incident.captures}
        for entry in self._within(layout.CAPTURES, _captures_in) or []:
            if entry.file not in listed and len(listed) < MAX_CAPTURES:
                self._note(
                    "capture-unlisted",
                    f"{entry.file}: not listed in incident.json; its writer ended before it was"
                    " listed",
                )
                listed[entry.file] = entry
        return sorted(listed.values(), key=lambda entry: entry.file)

    def captures(self) -> Iterator[StoredCapture]:
        """Read the captures one by one; each can take hundreds of MB."""
        for entry in self.entries():
            yield self.capture(entry)

    def capture(self, entry: CaptureEntry) -> StoredCapture:
        """Read one capture."""
        folder, _, name = entry.file.partition("/")
        if folder != layout.CAPTURES or not layout.is_capture_name(name):
            error = f"{one_line(entry.file, 100)}: is not the name of a capture"
            self._note("capture-unreadable", error)
            return StoredCapture(entry, error=error)
        path = self.path / layout.CAPTURES / name
        try:
            with files.folder(self.path) as top, files.folder(folder, top) as inside:
                data = files.read(name, inside, capturefile.MAX_BYTES)
                capture = capturefile.loads(data, str(path))
                return StoredCapture(entry, path, self._with_sessions(capture, path, inside))
        except OSError as failure:
            error = f"{path}: {files.one_line_of(failure)}"
        except StallscopeError as failure:
            error = str(failure)
        self._note("capture-unreadable", error)
        return StoredCapture(entry, path, error=error)

    def _with_sessions(self, capture: Capture, path: Path, inside: int) -> Capture:
        beside = sessionsfile.path_of(path)
        try:
            data = files.read(beside.name, inside, sessionsfile.MAX_BYTES)
        except FileNotFoundError:
            return capture
        except StallscopeError as error:
            return missing(capture, str(error))
        return sessionsfile.add(capture, data, str(beside))

    def samples(self) -> list[Sample]:
        """Return the samples, as they were appended."""
        samples, wrong = decode_samples(self._unpacked(layout.SAMPLES), MAX_SAMPLES)
        if wrong:
            self._note("samples-left-out", f"{layout.SAMPLES}: {wrong} lines were skipped")
        return samples

    def waits(self) -> list[waitlines.WaitLine | waitlines.Notice]:
        """Return the lines of the wait programs, as they were appended."""
        found: list[waitlines.WaitLine | waitlines.Notice] = []
        for number, line in enumerate(self._unpacked(layout.WAITS).split(b"\n"), 1):
            if not line:
                continue
            if len(found) >= MAX_WAIT_LINES:
                self._note("waits-left-out", f"{layout.WAITS}: more than {MAX_WAIT_LINES} lines")
                break
            try:
                found.append(waitlines.loads(line, layout.WAITS, number))
            except StallscopeError as error:
                self._note("waits-left-out", str(error))
        return found

    def threads(self, begin_ns: int, end_ns: int) -> list[ThreadSample]:
        """Return what threads did from one moment to another, of the lines of waits."""
        found: dict[int, ThreadSample] = {}
        for line in self._unpacked(layout.WAITS).split(b"\n")[:MAX_WAIT_LINES]:
            try:
                samples = _thread_line.decode(line).history if line else ()
            except DAMAGE:
                continue  # waits() says so
            found |= {one.time_ns: one for one in samples if begin_ns <= one.time_ns < end_ns}
            if len(found) > MAX_THREAD_SAMPLES:
                self._note("threads-left-out", f"{layout.WAITS}: too many samples of threads")
                break
        return [found[time_ns] for time_ns in sorted(found)]

    def texts(self) -> dict[str, str]:
        """Return the texts of the server by name, without ``.txt``."""
        found: dict[str, str] = {}
        names = self._within(layout.TEXTS, files.names) or []
        for name in sorted(filter(layout.is_text_name, names), key=_stem):
            if len(found) >= MAX_TEXTS:
                self._note("texts-left-out", f"more than {MAX_TEXTS} texts")
                break
            data = self._read(layout.TEXTS, name, MAX_TEXT)
            found[_stem(name)] = data.decode("utf-8", "backslashreplace")
        return found

    def raw_sql(self) -> list[bytes]:
        """Return the JSON lines of statements with their literals; none without ``--raw-sql``."""
        data, torn = whole_lines(self._read(".", layout.RAW_SQL, MAX_PACKED))
        self._note_torn(layout.RAW_SQL, torn)
        return data.splitlines()

    def _unpacked(self, name: str) -> bytes:
        plain, torn = frames(self._read(".", name, MAX_PACKED), MAX_PLAIN)
        self._note_torn(name, torn)
        return plain

    def _read(self, folder: str, name: str, limit: int) -> bytes:
        return self._within(folder, lambda inside: files.read(name, inside, limit)) or b""

    def _within(self, folder: str, work: Callable[[int], _T]) -> _T | None:
        """Do the work in a folder of the incident; None where it is not there."""
        try:
            with files.folder(self.path) as top, files.folder(folder, top) as inside:
                return work(inside)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._note("unreadable", f"{self.path}/{folder}: {files.one_line_of(error)}")
        except StallscopeError as error:
            self._note("unreadable", f"{folder}/{error}" if folder != "." else str(error))
        return None

    def _note_torn(self, name: str, torn: str | None) -> None:
        if torn is not None:
            self._note("torn", f"{name}: {torn}")

    def _note(self, code: str, message: str) -> None:
        note = Note(code, one_line(message))
        if note not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(note)


def _captures_in(inside: int) -> list[CaptureEntry]:
    """Return an entry for each file of a capture in an open folder."""
    found = []
    for name in filter(layout.is_capture_name, files.names(inside)):
        status = files.regular(name, inside)
        if status is not None:
            file = f"{layout.CAPTURES}/{name}"
            found.append(CaptureEntry(file=file, time_ns=status.st_mtime_ns, reason="unknown"))
    return found


def _stem(name: str) -> str:
    return name.removesuffix(".txt")
