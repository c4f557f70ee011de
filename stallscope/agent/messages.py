# SPDX-License-Identifier: Apache-2.0
"""The events that the state machine of incidents takes, and the commands that it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stallscope.agent.events import CaptureResult, QueryResult
from stallscope.agent.verdict_process import VerdictAnswer
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.model.sessions import Sessions

if TYPE_CHECKING:
    from stallscope.collectors.sql.sessiontexts import Texts

__all__ = [
    "AnalysisRequest",
    "AnalyzeCaptures",
    "BackendReady",
    "CaptureLost",
    "CaptureStored",
    "CapturesAnalyzed",
    "CloseFolder",
    "Command",
    "DiskChecked",
    "DropCapture",
    "FetchSessions",
    "FetchTexts",
    "FolderLost",
    "IncidentEvent",
    "Moment",
    "Notify",
    "OpenFolder",
    "PassEnded",
    "Polled",
    "SaveIncident",
    "ServerEnded",
    "Shutdown",
    "StoreCapture",
    "StoreStatements",
    "StoreTexts",
    "Suppressed",
    "TakeCapture",
    "TriggerFired",
]


class Moment(msgspec.Struct, frozen=True):
    """When an event is handled."""

    ns: int
    """CLOCK_MONOTONIC, for durations."""
    wall_ns: int
    """Time of day, for people."""


class TriggerFired(msgspec.Struct, frozen=True):
    """A trigger fired; ``capture`` is the one that was already taken for its wait."""

    fired: Fired
    breach_ns: int
    """CLOCK_MONOTONIC."""
    target: TargetEntry
    capture: CaptureResult | None = None
    goes_on: bool = False
    """Its alert is open, of an incident before."""


class Polled(msgspec.Struct, frozen=True):
    """Time has passed.

    ``breached``: a trigger that has fired is not over yet; ``over_ns``: when the latest one was
    over, by the monotonic clock.
    """

    breached: bool
    over_ns: int | None = None


class DiskChecked(msgspec.Struct, frozen=True):
    """Why the store's disk has too little space for a capture, None where it has enough."""

    why: str | None


class BackendReady(msgspec.Struct, frozen=True):
    """The backend of captures works from now on."""


class FolderLost(msgspec.Struct, frozen=True):
    """An incident cannot be stored."""

    incident: int
    why: str


class CaptureStored(msgspec.Struct, frozen=True):
    """A capture is in the incident's folder."""

    key: str
    entry: CaptureEntry


class CaptureLost(msgspec.Struct, frozen=True):
    """A capture could not be put into the incident's folder."""

    key: str
    why: str


class CapturesAnalyzed(msgspec.Struct, frozen=True):
    """The analyses of captures of one incident, by key.

    ``together``: the verdict of all captures of the incident.
    """

    incident: int
    answers: tuple[tuple[str, VerdictAnswer], ...]
    together: Verdict | None = None


class ServerEnded(msgspec.Struct, frozen=True):
    """The server's process has ended."""

    how: str = ""
    """In words, where that is known."""


class PassEnded(msgspec.Struct, frozen=True):
    """The agent's time is over; unfinished incidents are closed."""


class Shutdown(msgspec.Struct, frozen=True):
    """The agent ends now."""


IncidentEvent = (
    TriggerFired
    | CaptureResult
    | QueryResult
    | Polled
    | DiskChecked
    | BackendReady
    | FolderLost
    | CaptureStored
    | CaptureLost
    | CapturesAnalyzed
    | ServerEnded
    | PassEnded
    | Shutdown
)
"""A CaptureResult without a key belongs to a wait that fires no trigger."""


class TakeCapture(msgspec.Struct, frozen=True):
    """A CaptureResult with the key follows."""

    key: str


class DropCapture(msgspec.Struct, frozen=True):
    """Remove a file that belongs to no incident."""

    path: str


class FetchSessions(msgspec.Struct, frozen=True):
    """Query the server's sessions; a QueryResult with the key follows."""

    key: str


class FetchTexts(msgspec.Struct, frozen=True):
    """Query the server's texts; a QueryResult with the key follows."""

    key: str


class OpenFolder(msgspec.Struct, frozen=True):
    """Store the incident. ``records``: with the samples and waits of the minute before it, and of
    its time."""

    incident: int
    value: Incident
    records: bool


class StoreCapture(msgspec.Struct, frozen=True):
    """Move a file into the folder; CaptureStored or CaptureLost follows."""

    incident: int
    key: str
    path: str
    entry: CaptureEntry


class StoreStatements(msgspec.Struct, frozen=True):
    """Store the statements with their literals, where the user asked for that."""

    incident: int
    time_ns: int
    sessions: Sessions


class StoreTexts(msgspec.Struct, frozen=True):
    incident: int
    texts: Texts


class SaveIncident(msgspec.Struct, frozen=True):
    """Write the incident as it is now."""

    incident: int
    value: Incident


class AnalysisRequest(msgspec.Struct, frozen=True):
    """A capture to name."""

    key: str
    file: str
    """Relative to the incident's folder."""
    sessions: Sessions | None


class AnalyzeCaptures(msgspec.Struct, frozen=True):
    """Name captures; CapturesAnalyzed follows."""

    incident: int
    requests: tuple[AnalysisRequest, ...]
    known: tuple[str, ...] = ()
    """Files of captures that were named before: they count for the verdict of all."""


class Notify(msgspec.Struct, frozen=True):
    """Notify of what happened to an incident: ``open``, ``fire``, ``stall`` (its verdict is there,
    or will not come soon) or ``end``.

    ``stored``: the incident has a folder.
    """

    incident: int
    event: str
    value: Incident
    stored: bool = True


class CloseFolder(msgspec.Struct, frozen=True):
    """Write the incident for the last time."""

    incident: int
    value: Incident


class Suppressed(msgspec.Struct, frozen=True):
    """A capture was not taken. ``message``: what to log about it."""

    message: str | None = None


Command = (
    TakeCapture
    | DropCapture
    | FetchSessions
    | FetchTexts
    | OpenFolder
    | StoreCapture
    | StoreStatements
    | StoreTexts
    | SaveIncident
    | AnalyzeCaptures
    | Notify
    | CloseFolder
    | Suppressed
)
