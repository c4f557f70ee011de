# SPDX-License-Identifier: Apache-2.0
"""Incidents in one file, to be sent to others: a store in a tar.gz, as it is or redacted.

The same incidents make the same bytes. One capture at a time is in memory.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model import capturefile
from stallscope.model.capture import Note
from stallscope.model.incident import CaptureEntry, Incident
from stallscope.model.waitlines import Notice, WaitLine
from stallscope.redaction.redact import Redactor
from stallscope.store import files, layout
from stallscope.store.appended import pack
from stallscope.store.reading import StoredIncident
from stallscope.store.records import encode, encode_lines

__all__ = ["TOP", "write"]

TOP = "stallscope-incidents"
"""The folder in a bundle."""
README = "README.txt"
MAX_FILE = 512 << 20
_CHUNK = 1 << 20
_MAX_NOTES = 100

_REDACTED = """\
Incidents of stallscope without names and data; read them with
    stallscope incidents --dest {top}
    stallscope report {top}/incidents/ID -o report.html

Replaced, each by the same name in all files: {replaced}.
Left out: statements with literals (raw-sql.jsonl), command lines, values of more than seven digits
in texts, fields that this version of stallscope does not know.
Kept: functions and modules of the system, kinds of locks, thread and process ids, addresses, times,
lengths, values of the collectors, and words that stallscope, SQL and servers use.
"""
_PLAIN = """\
Incidents of stallscope as they were recorded: they hold names and may hold data.
"""


def write(
    path: Path, incidents: Sequence[StoredIncident], *, redact: bool, force: bool = False
) -> list[Note]:
    """Write the bundle, readable by its owner alone; return what could not be read.

    Raises: StallscopeError.
    """
    atomicfile.check_can_create(path, force=force)
    notes: list[Note] = []
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            with (
                gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                bundle = _Bundle(archive)
                bundle.folder("")
                bundle.file(layout.MARK, layout.MARK_TEXT)
                bundle.folder(layout.INCIDENTS)
                if redact:
                    _redacted(bundle, incidents)
                else:
                    bundle.file(README, _PLAIN.encode())
                    for stored in incidents:
                        _plain(bundle, stored)
                for stored in incidents:
                    notes += [
                        Note(note.code, f"{stored.incident.id}: {note.message}")
                        for note in stored.notes
                    ]
            atomicfile.write(path, _chunks(file), force=force)
    except OSError as error:
        raise StallscopeError(f"cannot write {path}: {files.one_line_of(error)}") from error
    return notes[:_MAX_NOTES]


class _Bundle:
    """The archive: nothing in it says who made it, when, or on which host."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def folder(self, name: str) -> None:
        entry = self._entry(name, 0o700)
        entry.type = tarfile.DIRTYPE
        self._archive.addfile(entry)

    def file(self, name: str, data: bytes) -> None:
        entry = self._entry(name, 0o600)
        entry.size = len(data)
        self._archive.addfile(entry, io.BytesIO(data))

    def _entry(self, name: str, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(f"{TOP}/{name}" if name else TOP)
        entry.mode = mode
        return entry


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(_CHUNK):
        yield chunk


def _plain(bundle: _Bundle, stored: StoredIncident) -> None:
    """Add an incident's files as they are."""
    top = f"{layout.INCIDENTS}/{stored.incident.id}"
    bundle.folder(top)
    with files.folder(stored.path) as inside:
        for name in files.names(inside):
            if name in (layout.INCIDENT, layout.SAMPLES, layout.WAITS, layout.RAW_SQL):
                bundle.file(f"{top}/{name}", files.read(name, inside, MAX_FILE))
            elif name in (layout.CAPTURES, layout.TEXTS):
                bundle.folder(f"{top}/{name}")
                with files.folder(name, inside) as below:
                    for file in filter(_is_stored, files.names(below)):
                        bundle.file(f"{top}/{name}/{file}", files.read(file, below, MAX_FILE))


def _is_stored(name: str) -> bool:
    return (
        layout.is_capture_name(name) or layout.is_sessions_name(name) or layout.is_text_name(name)
    )


def _redacted(bundle: _Bundle, incidents: Sequence[StoredIncident]) -> None:
    redactor = Redactor()
    # Names first: what is a user in one capture is one in the texts of another incident too.
    for stored in incidents:
        redactor.learn_incident(stored.incident)
        for one in stored.captures():
            if one.capture is not None:
                redactor.learn(one.capture)
    for stored in incidents:
        _redacted_incident(bundle, stored, redactor)
    kinds = ", ".join(f"{many} of {kind}" for kind, many in sorted(redactor.names.counts.items()))
    text = _REDACTED.format(top=TOP, replaced=kinds or "nothing")
    bundle.file(README, text.encode())


def _redacted_incident(bundle: _Bundle, stored: StoredIncident, redactor: Redactor) -> None:
    names = redactor.names
    incident = redactor.of(msgspec.structs.replace(stored.incident, captures=()))
    incident = msgspec.structs.replace(incident, id=_id(stored.incident, redactor))
    top = f"{layout.INCIDENTS}/{incident.id}"
    bundle.folder(top)
    bundle.folder(f"{top}/{layout.CAPTURES}")
    entries: list[CaptureEntry] = []
    for one in stored.captures():
        redactor.forget()
        if one.capture is not None:
            data = pack(capturefile.dumps(redactor.of(one.capture)))
            bundle.file(f"{top}/{one.entry.file}", data)
            entries.append(redactor.of(one.entry))
    redactor.forget()
    incident = msgspec.structs.replace(incident, captures=tuple(entries))
    bundle.file(f"{top}/{layout.INCIDENT}", encode(incident))
    samples = encode_lines(map(redactor.of, stored.samples()))
    if samples:
        bundle.file(f"{top}/{layout.SAMPLES}", pack(samples))
    waits = encode_lines(map(_line, map(redactor.of, stored.waits())))
    if waits:
        bundle.file(f"{top}/{layout.WAITS}", pack(waits))
    bundle.folder(f"{top}/{layout.TEXTS}")
    for number, (name, text) in enumerate(stored.texts().items(), 1):
        file = f"{names.code(name)}.txt"
        if not layout.is_text_name(file):
            file = f"text-{number}.txt"
        bundle.file(f"{top}/{layout.TEXTS}/{file}", names.text(text).encode())


def _id(incident: Incident, redactor: Redactor) -> str:
    """Return the id with the program's name redacted."""
    moment, _, rest = incident.id.partition("-")
    found = f"{moment}-{redactor.names.code(rest)}"
    return found if layout.is_id(found) else f"{moment}-{redactor.names.of('program', rest)}"


def _line(line: WaitLine | Notice) -> WaitLine | dict[str, str]:
    """Return what a file has: of a notice its type and message."""
    if isinstance(line, WaitLine):
        return line
    return {"type": line.type, "message": one_line(line.message or "")}
