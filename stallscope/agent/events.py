# SPDX-License-Identifier: Apache-2.0
"""Events for the agent's loop: everything that other threads have for it, through one queue."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stallscope.model.capture import Trigger
from stallscope.model.samples import Sample
from stallscope.model.sessions import Moment
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
    "ThreadFailed",
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
    memory: tuple[Moment, ...] = ()
    """What the connections ran, as the server's memory has it."""


class WaitsReceived(msgspec.Struct, frozen=True):
    """A line of the wait programs, parsed and as bytes."""

    line: WaitLine
    data: bytes
    clock_ns: int

    @property
    def can_wait(self) -> bool:
        """Return whether it may be handled some time later: the source rests and saw no wait."""
        return self.line.rest is not None and self.line.rest.resting and not self.line.keys


class ProbeStatus(msgspec.Struct, frozen=True):
    """The probe has become ready, or has ended. ``sees_waits``: it watches waits; ``at_rest``: the
    wait programs are attached only when one is long."""

    ready: bool
    sees_waits: bool = False
    at_rest: bool = False
    why: str | None = None


class TargetEnded(msgspec.Struct, frozen=True):
    """The probe saw the end of the server."""


class ThreadFailed(msgspec.Struct, frozen=True):
    """A thread of the agent raised an exception; its work has begun again."""

    what: str
    why: str


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
    | ThreadFailed
    | Callback
    | Signal
)
Put = Callable[[Event], None]


MAX_BATCH = 1000
"""The most events that are handled before the steps that follow them."""


class EventQueue:
    """The queue. Putting never waits, also in a signal handler (queue.SimpleQueue is reentrant).

    Each time that the loop wakes up costs more than an event: what can wait comes with the next
    event, or at the end of the pause.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._patient: queue.SimpleQueue[Event] = queue.SimpleQueue()
        """Events that wake nobody up."""

    def put(self, event: Event) -> None:
        patient = isinstance(event, WaitsReceived) and event.can_wait
        (self._patient if patient else self._queue).put(event)

    def get(self, seconds: float) -> Event | None:
        """Return the next event, or None after that time."""
        try:
            return self._queue.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def take(self, seconds: float) -> list[Event]:
        """Return the events that are there, after waiting so long for the first one."""
        event = self.get(seconds)
        found = list(_waiting(self._patient, MAX_BATCH - 1))
        if event is not None:
            found.append(event)
            found += _waiting(self._queue, MAX_BATCH - len(found))
        return found


def _waiting(events: queue.SimpleQueue[Event], most: int) -> Iterator[Event]:
    """Yield the events that are there now."""
    with contextlib.suppress(queue.Empty):
        for _ in range(most):
            yield events.get_nowait()
