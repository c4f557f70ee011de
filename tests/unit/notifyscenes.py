# SPDX-License-Identifier: Apache-2.0
"""Alerts, and a destination in memory, for the tests of notifications."""

from __future__ import annotations

import threading
from typing import Literal

import msgspec

from stallscope.base.sending import SendError
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.notify.alert import Alert, Event

__all__ = ["INCIDENT", "FakeReceiver", "alert", "incident"]

INCIDENT = Incident(
    "20261121T145012.345Z-mariadbd-4711",
    1_000_000_000,
    TargetEntry(4711, "mariadbd", host="db1"),
    triggers=(Fired("threads", "Threads_running 187 > 40; $(reboot)", 0),),
    captures=(CaptureEntry("captures/1.jsonl.zst", 0, "trigger", analyzed=True),),
    verdict=Verdict(
        "metadata-lock",
        "Statements wait for a metadata lock",
        0.89,
        20,
        'thread 12 "connection", connection 88, user app',
        "ALTER TABLE t ADD c INT",
        "KILL 88;",
        0.9,
    ),
)


def incident(name: str = INCIDENT.id) -> Incident:
    return msgspec.structs.replace(INCIDENT, id=name)


def alert(key: str = "db1/1", *, over: bool = False, name: str = INCIDENT.id) -> Alert:
    return Alert(key, incident(name), "db1", "critical", over=over)


class FakeReceiver:
    """A destination whose answers the test sets."""

    repeat: float | None = None
    least_firing = 0.0
    least_severity: Literal["warning", "critical"] = "warning"

    def __init__(self, name: str = "fake", *, updates: bool = False, resolves: bool = True) -> None:
        self.name = name
        self.updates = updates
        self.resolves = resolves
        self.sent: list[tuple[Event, Alert]] = []
        self.error: SendError | None = None
        self.tries = 0
        self.gate = threading.Event()
        self.gate.set()

    def send(self, event: Event, alert: Alert) -> None:
        self.tries += 1
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.sent.append((event, alert))

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in list(self.sent)]
