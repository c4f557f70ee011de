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
    """The result of a query in a collector's thread; ``error`` says why there is none."""

    key: str
    value: Any = None
    error: str | None = None


class CaptureResult(msgspec.Struct, frozen=True):
    """A capture is complete, or could not be taken: a requested one, or one of a long wait."""

    path: str | None
    done_ns: int
    """CLOCK_MONOTONIC, when its end was known."""
    partial: bool = False
    key: str | None = None
    """Of the request; None: the probe count it by itself, for a wait."""
    wait: Trigger | None = None
    error: str | None = None


class WaitsReceived(msgspec.Struct, frozen=True):
    """A line of the wait programs, parsed and as bytes."""

    line: WaitLine
    data: bytes
    clock_ns: int


class ProbeStatus(msgspec.Struct, frozen=True):
    """The probe has become ready, or has ended. ``sees_waits``: it watches waits; ``at_rest``: the
    wait programs are attached only when one is long."""

    ready: bool
    sees_waits: bool = False
    at_rest: bool = False
    why: str | None = None


class TargetEnded(msgspec.Struct, frozen=True):
    """The probe saw the end of the server."""


class Callback(msgspec.Struct, frozen=True):
    """Work in another thread is done: ``then`` is called in the loop's thread."""

    then: Callable[[], None]


class Signal(msgspec.Struct, frozen=True):
    """A request of the user: ``stop`` or ``reload``."""

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


MAX_BATCH = 1000
"""The most events that are handled before the steps that follow them."""


class EventQueue:
    """The queue. Putting never waits, also in a signal handler (queue.SimpleQueue is reentrant)."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._queue.put(event)

    def get(self, seconds: float) -> Event | None:
        """Return the next event, or None after that time."""
        try:
            return self._queue.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def take(self, seconds: float) -> list[Event]:
        """Return the events that are there, after waiting so long for the first one."""
        event = self.get(seconds)
        found = [] if event is None else [event]
        while found and len(found) < MAX_BATCH:
            try:
                found.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return found
