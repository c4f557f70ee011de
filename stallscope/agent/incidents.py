# SPDX-License-Identifier: Apache-2.0
"""An incident that goes on: what is known of it, and how it comes to the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stallscope.agent.events import QueryResult
from stallscope.agent.verdict_process import VerdictAnswer, VerdictRequest
from stallscope.agent.verdicts import combine
from stallscope.agent.writer import Writer
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Note
from stallscope.model.incident import CaptureEntry, Fired, Incident, Verdict
from stallscope.model.sessions import Sessions, raw_statements
from stallscope.store import IncidentFolder, Store

__all__ = ["MAX_FIRED", "NotStoredError", "OpenIncident", "Picture", "drop"]

MAX_FIRED = 100
"""Triggers that one incident names; the rest of a storm is counted."""
MAX_NOTES = 50
FLUSH_BYTES = 256 << 10


class Picture(msgspec.Struct):
    """One capture of an incident, from the question to its verdict."""

    key: str
    reason: str
    trigger: str | None
    breach_ns: int
    """CLOCK_MONOTONIC."""
    time_ns: int
    """Wall clock, when it was asked for."""
    entry: CaptureEntry | None = None
    """Once it is in the incident's folder."""
    failed: bool = False
    sessions: Sessions | None = None
    asked_sessions: bool = False
    """The server was asked, and has neither answered nor been given up."""
    no_sessions: str | None = None
    judging: bool = False
    judged: bool = False

    @property
    def settled(self) -> bool:
        """Say whether nothing more is to come before it can be judged."""
        return self.failed or (self.entry is not None and not self.asked_sessions)


class OpenIncident:
    """All of it belongs to the loop's thread but ``folder``, which is the writer's."""

    def __init__(
        self, incident: Incident, store: Store, writer: Writer, breach_ns: int, now_ns: int
    ) -> None:
        self.begun_ns = now_ns
        self.breach_ns = breach_ns
        """CLOCK_MONOTONIC at ``incident.start_ns``."""
        self.over_ns: int | None = None
        """When the last breach was over."""
        self.cleared_ns: int | None = None
        """When that was known, and the recovery began."""
        self.pictures: dict[str, Picture] = {}
        self.announced = False
        self.finished = False
        """It was written for the last time."""
        self.end_ns: int | None = None
        """Wall clock, of the last breach: the recovery is no part of the stall."""
        self.lost: str | None = None
        """Why it could not be stored."""
        self.verdict: Verdict | None = None
        self.recovery_ns = 0
        self.texts_key: str | None = None
        """Of the question for the server's texts, once it was asked."""
        self.texts_due = False
        """They have not come yet."""
        self._incident = incident
        self._store = store
        self._writer = writer
        self._fired: list[Fired] = list(incident.triggers)
        self._more_fired = 0
        self._notes: list[Note] = list(incident.notes)
        self._suppressed = incident.suppressed
        self._samples: list[bytes] = []
        self._waits: list[bytes] = []
        self._bytes = 0
        self._folder: IncidentFolder | None = None
        writer.submit(self._begin)

    @property
    def id(self) -> str:
        """Return its id, as it was asked for."""
        return self._incident.id

    @property
    def path(self) -> Path:
        """Return its folder; valid once a capture is in it."""
        folder = self._folder
        return self._store.incidents / self.id if folder is None else folder.path

    def end(self) -> None:
        """Set when it was over, by its length: the time of day can have been set meanwhile."""
        if self.over_ns is not None:
            self.end_ns = self._incident.start_ns + max(0, self.over_ns - self.breach_ns)

    def value(self, *, end_ns: int | None = None, interrupted: bool = False) -> Incident:
        """Return the incident as it is known now."""
        notes = list(self._notes)
        if self._more_fired:
            what = f"triggers fired {self._more_fired} times more than are listed"
            notes.append(Note("more-triggers", what))
        folder = self._folder
        return msgspec.structs.replace(
            self._incident,
            id=self._incident.id if folder is None else folder.incident.id,
            end_ns=end_ns,
            interrupted=interrupted,
            triggers=tuple(self._fired),
            captures=tuple(p.entry for p in self.pictures.values() if p.entry is not None),
            verdict=self.verdict,
            suppressed=self._suppressed,
            notes=tuple(notes),
        )

    def fired(self, fired: Fired) -> bool:
        """Take a trigger that fired; say whether this one has not been seen in this incident."""
        new = all(known.trigger != fired.trigger for known in self._fired)
        if len(self._fired) < MAX_FIRED:
            self._fired.append(fired)
        else:
            self._more_fired += 1
        return new

    def note(self, code: str, message: str) -> None:
        """Say what is missing; the same thing once."""
        note = Note(code, one_line(message))
        if note not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.append(note)

    def suppress(self, why: str) -> None:
        """Count a capture that was not taken."""
        self._suppressed += 1
        self.note("suppressed", why)

    def store_capture(self, picture: Picture, path: Path, entry: CaptureEntry) -> None:
        """Take a finished capture in."""

        def take() -> CaptureEntry:
            return self._open_folder().add_capture(path, entry)

        def taken(named: CaptureEntry) -> None:
            picture.entry = named

        def failed(why: str) -> None:
            picture.failed = True
            self.note("capture-lost", why)
            drop(path)

        self._writer.submit(take, taken, failed)

    def add_raw_sql(self, picture: Picture) -> None:
        """Keep the statements with their literals, where the user asked for that."""
        assert picture.sessions is not None
        lines = [
            msgspec.json.encode({"time_ns": picture.time_ns, "connection": number, "sql": text})
            for number, text in raw_statements(picture.sessions).items()
        ]
        self._writer.submit(lambda: self._open_folder().append_raw_sql(lines), needed=False)

    def take_texts(self, answer: QueryResult) -> None:
        """Keep the texts of the server; what is missing is noted."""
        self.texts_due = False
        texts = answer.value
        if texts is None:
            self.note("no-texts", answer.error or "the server was not asked")
            return
        for missing in texts.missing:
            self.note("no-text", missing)

        def keep() -> None:
            folder = self._open_folder()
            for name, text in texts.found.items():
                folder.add_text(name, text)

        self._writer.submit(keep, needed=False)

    def add_samples(self, lines: Iterable[bytes]) -> None:
        """Take encoded samples."""
        self._samples += lines
        self._maybe_flush(self._samples)

    def add_waits(self, lines: Iterable[bytes]) -> None:
        """Take lines of the wait programs."""
        self._waits += lines
        self._maybe_flush(self._waits)

    def flush(self) -> None:
        """Hand the samples and lines to the writer."""
        samples, self._samples = self._samples, []
        waits, self._waits = self._waits, []
        if samples:
            self._writer.submit(
                lambda: self._open_folder().append_sample_lines(samples), needed=False
            )
        if waits:
            self._writer.submit(lambda: self._open_folder().append_waits(waits), needed=False)

    def save(self) -> None:
        """Write incident.json as it is now."""
        value = self.value()
        self._writer.submit(lambda: self._update(value))

    def requests(self) -> list[VerdictRequest]:
        """Return what is to be judged now, and mark it so: all that is settled and is not yet."""
        found = []
        for picture in self.pictures.values():
            if picture.entry is not None and picture.settled and not picture.judging:
                picture.judging = True
                path = str(self.path / picture.entry.file)
                found.append(VerdictRequest(path, picture.sessions))
        return found

    def judged(self, found: Iterable[VerdictAnswer]) -> None:
        """Take verdicts of captures, and make that of the incident."""
        by_file = {f"{self.path}/{p.entry.file}": p for p in self.pictures.values() if p.entry}
        for one in found:
            picture = by_file.get(one.path)
            if picture is None or picture.entry is None:
                continue
            picture.judged = True
            picture.sessions = None
            for missing in one.notes:
                self.note("not-told", missing)
            if one.version is not None:
                target = msgspec.structs.replace(self._incident.target, version=one.version)
                self._incident = msgspec.structs.replace(self._incident, target=target)
            if one.error is not None:
                self.note("not-analyzed", f"{picture.entry.file}: {one.error}")
            picture.entry = msgspec.structs.replace(
                picture.entry,
                analyzed=one.error is None,
                verdict=one.verdict,
                sessions=one.sessions or picture.no_sessions,
            )
        self.verdict = combine(p.entry.verdict for p in self.pictures.values() if p.entry)

    def finish(self, value: Incident) -> None:
        """Write it for the last time."""
        self.flush()
        self._writer.submit(lambda: self._finish(value))

    def _begin(self) -> None:
        try:
            self._folder = self._store.begin(self._incident)
        except StallscopeError as error:
            self.lost = str(error)
            raise

    def _open_folder(self) -> IncidentFolder:
        if self._folder is None:
            raise NotStoredError(f"{self.id} is not stored: {self.lost}")
        return self._folder

    def _update(self, value: Incident) -> None:
        folder = self._open_folder()
        folder.update(msgspec.structs.replace(value, id=folder.incident.id))

    def _finish(self, value: Incident) -> None:
        folder = self._open_folder()
        folder.finish(msgspec.structs.replace(value, id=folder.incident.id))

    def _maybe_flush(self, lines: list[bytes]) -> None:
        if sum(map(len, lines)) > FLUSH_BYTES:
            self.flush()


class NotStoredError(StallscopeError):
    """The incident has no folder; why was told when it was to be made."""


def drop(path: Path | str) -> None:
    """Remove a capture that nobody wants."""
    with contextlib.suppress(OSError):
        os.unlink(path)
