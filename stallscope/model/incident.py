# SPDX-License-Identifier: Apache-2.0
"""Incidents: what triggers fired, what was captured, and what it was; docs/store.md.

An incident is a folder. Its ``incident.json`` is this value; next to it are
``captures/*.jsonl.zst`` (stallscope.capture/1), ``samples.jsonl.zst`` (of the minute before,
during, and the recovery), ``waits.jsonl.zst`` (lines of stallscope.waits/1) and texts of the
server.
"""

from __future__ import annotations

import msgspec

from stallscope.base.times import Count, Moment
from stallscope.model.capture import Note, Trigger

__all__ = [
    "BLIND",
    "EVENTS",
    "NONE",
    "SCHEMA",
    "SERVER_ENDED",
    "UNKNOWN",
    "CaptureEntry",
    "Fired",
    "Incident",
    "Origin",
    "Outline",
    "TargetEntry",
    "Verdict",
    "verdict_name",
]

SCHEMA = "stallscope.incident/1"
SERVER_ENDED = "server-ended"
BLIND = "blind"
EVENTS = (SERVER_ENDED, BLIND)
"""Triggers of which each has an alert of its own, beside that of a stall: there is nothing to
capture, and the stall may go on."""
UNFINISHED = frozenset({"pass-ended", "goes-on", "server-ended"})
"""Codes of notes of an incident whose recording ended before its stall."""
UNKNOWN = "unknown"
"""A stall that no signature knows."""
NONE = "none"
"""No stall was found, or none is known yet."""


class TargetEntry(msgspec.Struct, frozen=True):
    """The server as it was."""

    pid: Count
    name: str
    """Of the program: ``mariadbd``."""
    start_time: Count | None = None
    """Field 22 of /proc/PID/stat: distinguishes it from a later process with the same pid."""
    exe: str | None = None
    server: str | None = None
    """``mysql``, ``mariadb``, ``postgres``, ``mongodb`` or None."""
    version: str | None = None
    host: str | None = None


class Fired(msgspec.Struct, frozen=True):
    """A trigger that fired."""

    trigger: str
    """Its name in the triggers file: ``threads-running``."""
    why: str
    """One sentence with the figures: ``Threads_running is 187, over 40; in 2 samples in a row``."""
    time_ns: Moment
    """Wall clock at the breach."""
    value: float | None = None
    threshold: float | None = None
    wait: Trigger | None = None
    """Of a probe's trigger: the wait."""


class Verdict(msgspec.Struct, frozen=True):
    """The first finding of an analysis. No stall found: there is no Verdict."""

    signature: str | None
    """None: a stall that no signature knows."""
    title: str
    confidence: float
    threads: Count = 0
    blocker: str | None = None
    """One line: ``thread 4711 "connection", waiting``."""
    statement: str | None = None
    """What the blocker runs, in one line without literals."""
    remedy: str | None = None
    """What ends the stall: one line."""
    share: float = 0.0
    """Of the threads that have something to do: those that it holds up."""
    ending: str | None = None
    """The statement to paste that ends the stall: ``KILL 88;``; None: none is known."""
    effect: str | None = None
    """What that does, and to whom."""
    lines: tuple[str, ...] = ()
    """What ``snap`` prints of it; of all captures of an incident together."""


class CaptureEntry(msgspec.Struct, frozen=True):
    file: str
    """Relative to the incident's folder."""
    time_ns: Moment
    reason: str
    """``trigger``, ``burst`` or ``manual``."""
    trigger: str | None = None
    breach_to_done_ms: float | None = None
    """From the breach of the threshold until the file was whole."""
    partial: bool = False
    sessions: str | None = None
    """None: each thread has its connection where the server says so; else why not."""
    analyzed: bool = False
    verdict: Verdict | None = None


class Origin(msgspec.Struct, frozen=True):
    """Who began an incident, and when by the time of the store (docs/store.md)."""

    host: str
    boot: str
    at_ns: Moment
    """Incidents are in this order: no wall clock that is set changes it."""


class Outline(msgspec.Struct, frozen=True):
    """What an incident and its entry in the list of all have in common."""

    id: str
    """``20261121T145012.345Z-mariadbd-4711``: sorts by time, and is the folder's name."""
    start_ns: Moment
    target: TargetEntry
    end_ns: Moment | None = None
    """When the last breach was over, before the recovery that is recorded too, or the recording
    ended.

    None while it goes on, and forever where the agent died in it.
    """
    interrupted: bool = False
    """The agent ended, or was killed, before the recovery."""
    verdict: Verdict | None = None
    """Of all its captures together."""
    suppressed: Count = 0
    """Captures that were not taken, since they came too often or the disk was too full."""
    origin: Origin | None = None
    """None: of an earlier version, or a copy without it."""

    @property
    def order(self) -> tuple[int, str]:
        """Return by what incidents are sorted: the order in which they happened."""
        return (self.start_ns if self.origin is None else self.origin.at_ns, self.id)


class Incident(Outline, frozen=True):
    """All that ``incident.json`` holds."""

    schema: str = SCHEMA
    triggers: tuple[Fired, ...] = ()
    captures: tuple[CaptureEntry, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def is_event(self) -> bool:
        """Return whether it is one of EVENTS, and no stall."""
        return any(fired.trigger in EVENTS for fired in self.triggers)

    @property
    def is_unfinished(self) -> bool:
        """Return whether its recording ended, and nothing shows that its stall did."""
        return self.interrupted or any(note.code in UNFINISHED for note in self.notes)


def verdict_name(verdict: Verdict | None) -> str:
    """Return the name of a verdict in metrics, notifications and rows."""
    return NONE if verdict is None else verdict.signature or UNKNOWN
