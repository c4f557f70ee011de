# SPDX-License-Identifier: Apache-2.0
"""Execute the commands of incidents: captures, queries, files, verdicts, notifications. The result
of a command comes back as an event, by ``feed``, in the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.agent.backends import CaptureBackend
from stallscope.agent.clock import NS
from stallscope.agent.events import Callback, Put, QueryResult
from stallscope.agent.incidentwriter import IncidentWriter, drop
from stallscope.agent.messages import (
    AnalyzeCaptures,
    CaptureLost,
    CapturesAnalyzed,
    CaptureStored,
    CloseFolder,
    Command,
    DropCapture,
    FetchSessions,
    FetchTexts,
    FolderLost,
    IncidentEvent,
    Notify,
    OpenFolder,
    SaveIncident,
    StoreCapture,
    StoreStatements,
    StoreTexts,
    Suppressed,
    TakeCapture,
)
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.verdict_process import Answers, VerdictRequest
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.agent.writer import Writer
from stallscope.fleet.facts import Facts
from stallscope.model.incident import Incident, verdict_name
from stallscope.store import Store

__all__ = ["CommandRunner", "Loop"]

_log = logging.getLogger(__name__)

FLUSH_NS = 5 * NS
"""The time from one write of samples to the next."""

Ship = Callable[[str, int, Incident, Path | None, Facts | None], None]
"""Takes events of incidents for the fleet: Shipper.take."""


class Loop(Protocol):
    """What the execution of commands needs from the loop."""

    def feed(self, event: IncidentEvent) -> None:
        """Let the incidents handle an event."""

    def fetch_sessions(self, key: str) -> str | None:
        """Query the server's sessions; a QueryResult with the key follows.

        Return why it cannot be asked, None where it was.
        """

    def fetch_texts(self, key: str) -> bool:
        """Query the server's texts; a QueryResult follows. False: there is no SQL."""

    def history(self) -> tuple[Iterable[bytes], Iterable[bytes]]:
        """Return the samples, and the lines of waits, of the last minute."""

    def notify(self, event: str, number: int, incident: Incident, folder: Path | None) -> None:
        """Notify of ``open``, ``fire``; ``verdict`` and, once that is on disk, ``stall``;
        ``ending`` and then ``end``. ``folder`` is None where there is none."""


class CommandRunner:
    """``spool``: folder for captures that are not stored yet, in the file system of the store."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        spool: Path,
        writer: Writer,
        verdicts: VerdictProcess,
        backend: CaptureBackend,
        metrics: AgentMetrics,
        put: Put,
        ship: Ship,
        *,
        raw_sql: bool,
    ) -> None:
        self._loop = loop
        self._store = store
        self._spool = spool
        self._writer = writer
        self._verdicts = verdicts
        self._backend = backend
        self._metrics = metrics
        self._put = put
        self._ship = ship
        self._raw_sql = raw_sql
        self._folders: dict[int, IncidentWriter] = {}
        """The writers of incidents that are not closed yet, by number."""
        self._facts: dict[int, Facts] = {}
        """Of incidents that are not closed yet, by number."""
        self._flush_due = 0

    def run(self, command: Command) -> None:
        """Execute a command, or start its execution."""
        _log.debug("%s", type(command).__name__)
        match command:
            case TakeCapture(key):
                self._backend.capture(key, self._spool / f"{key}.jsonl.zst")
            case DropCapture(path):
                drop(path)
            case FetchSessions(key):
                why = self._loop.fetch_sessions(key)
                if why is not None:
                    self._loop.feed(QueryResult(key, error=why))
            case FetchTexts(key):
                if not self._loop.fetch_texts(key):
                    self._loop.feed(QueryResult(key))
            case OpenFolder():
                self._open(command)
            case StoreCapture():
                self._store_capture(command)
            case StoreStatements(incident, time_ns, sessions):
                if self._raw_sql:
                    self._folders[incident].store_statements(time_ns, sessions)
            case StoreTexts(incident, texts):
                self._folders[incident].store_texts(texts)
            case SaveIncident(incident, value):
                self._folders[incident].save(value)
            case AnalyzeCaptures():
                self._analyze(command)
            case Notify():
                self._notify(command)
            case CloseFolder(incident, value):
                self._folders[incident].close(value)
            case Suppressed(message):
                self._metrics.captures["suppressed"] += 1
                if message is not None:
                    _log.warning("%s", message)

    def event(self, value: Incident) -> Path:
        """Store an event that is no stall, with the minute before it; return its folder."""
        folder = IncidentWriter(value, self._store, self._writer, lambda why: None, records=True)
        samples, waits = self._loop.history()
        folder.add_samples(samples)
        folder.add_waits(waits)
        folder.close(value)
        return folder.path

    def record(
        self, incident: int | None, samples: Iterable[bytes], waits: Iterable[bytes]
    ) -> None:
        """Add samples or waits to the ongoing incident."""
        if incident is not None:
            folder = self._folders[incident]
            folder.add_samples(samples)
            folder.add_waits(waits)

    def flush(self, incident: int | None, now_ns: int) -> None:
        """Write what was recorded, at intervals."""
        if incident is not None and now_ns >= self._flush_due:
            self._flush_due = now_ns + FLUSH_NS
            self._folders[incident].flush()

    def _open(self, command: OpenFolder) -> None:
        number = command.incident
        folder = self._folders[number] = IncidentWriter(
            command.value,
            self._store,
            self._writer,
            lambda why: self._loop.feed(FolderLost(number, why)),
            records=command.records,
        )
        samples, waits = self._loop.history()
        folder.add_samples(samples)
        folder.add_waits(waits)

    def _store_capture(self, command: StoreCapture) -> None:
        entry, key = command.entry, command.key
        self._metrics.captures["partial" if entry.partial else "whole"] += 1
        if entry.breach_to_done_ms is not None:
            self._metrics.captured(entry.breach_to_done_ms / 1000)
        self._folders[command.incident].store_capture(
            Path(command.path),
            entry,
            lambda named: self._loop.feed(CaptureStored(key, named)),
            lambda why: self._loop.feed(CaptureLost(key, why)),
        )

    def _analyze(self, command: AnalyzeCaptures) -> None:
        folder = self._folders[command.incident].path
        keys = {str(folder / one.file): one.key for one in command.requests}
        requests = [
            VerdictRequest(str(folder / one.file), one.sessions) for one in command.requests
        ]

        def analyzed(found: Answers) -> None:
            self._metrics.failures["analysis"] += sum(one.error is not None for one in found.each)
            if found.facts is not None and command.incident in self._folders:
                self._facts[command.incident] = found.facts
            answers = tuple((keys[one.path], one) for one in found.each)
            self._loop.feed(CapturesAnalyzed(command.incident, answers, found.together))

        # Those that were named before have their sessions in files beside them.
        known = [VerdictRequest(str(folder / file), known=True) for file in command.known]
        self._verdicts.analyze(
            [*known, *requests], lambda found: self._put(Callback(lambda: analyzed(found)))
        )

    def _notify(self, command: Notify) -> None:
        value, event, number = command.value, command.event, command.incident
        if event == "open":
            self._loop.notify(event, number, value, None)
            return
        folder = self._folders[number]
        if event == "fire":
            self._loop.notify(event, number, value, folder.path)
            return
        if event == "stall":
            self._metrics.incidents[verdict_name(value.verdict)] += 1
        facts = self._facts.get(number)
        if event == "end":
            del self._folders[number]
            self._facts.pop(number, None)

        def notify(event: str) -> None:
            named = msgspec.structs.replace(value, id=folder.path.name)
            path = folder.path if command.stored else None
            self._ship(event, number, named, path, facts)
            self._loop.notify(event, number, named, path)

        # The writer can be late: a disk that hangs must not hold back a notification.
        notify("ending" if event == "end" else "verdict")

        def written(_: None) -> None:
            notify(event)

        self._writer.submit(lambda: None, written)
