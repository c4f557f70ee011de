# SPDX-License-Identifier: Apache-2.0
"""Events for the agent's loop: everything that other threads have for it, through one queue."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import msgspec

from stallscope.model.capture import Trigger
from stallscope.model.samples import Sample
from stallscope.model.waitlines import WaitLine

__all__ = [
    "Callback",
    "CaptureResult",
    "Event",
    "EventQueue",
    "ProbeStatus",
    "Put",
    "QueryResult",
    "Signal",
    "TargetEnded",
    "WaitsReceived",
]


class QueryResult(msgspec.Struct, frozen=True):
    """What a query in a collector's thread brought; ``error`` says why it brought nothing."""

    key: str
    value: Any = None
    error: str | None = None


class CaptureResult(msgspec.Struct, frozen=True):
    """A capture is a whole file, or could not be taken: one asked for, or one of a long wait."""

    path: str | None
    done_ns: int
    """CLOCK_MONOTONIC, when it was known to be whole."""
    partial: bool = False
    key: str | None = None
    """Of the request; None: the probe count it by itself, for a wait."""
    wait: Trigger | None = None
    error: str | None = None


class WaitsReceived(msgspec.Struct, frozen=True):
    """A line of the wait programs, as it was understood and as it came."""

    line: WaitLine
    data: bytes
    clock_ns: int


class ProbeStatus(msgspec.Struct, frozen=True):
    """The probe has become ready, or has ended. ``sees_waits``: its wait programs are on."""

    ready: bool
    sees_waits: bool = False
    why: str | None = None


class TargetEnded(msgspec.Struct, frozen=True):
    """The probe saw the end of the server."""


class Callback(msgspec.Struct, frozen=True):
    """Work in another thread is done: ``then`` is called in the loop's own."""

    then: Callable[[], None]


class Signal(msgspec.Struct, frozen=True):
    """The user wants something: ``stop`` or ``reload``."""

    action: str


Event = (
    Sample
    | QueryResult
    | CaptureResult
    | WaitsReceived
    | ProbeStatus
    | TargetEnded
    | Callback
    | Signal
)
Put = Callable[[Event], None]


class EventQueue:
    """The queue. Putting never waits, also in a signal handler (queue.SimpleQueue is reentrant)."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._queue.put(event)

    def get(self, seconds: float) -> Event | None:
        """Return the next, or None where nothing came in that time."""
        try:
            return self._queue.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
