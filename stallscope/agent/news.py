# SPDX-License-Identifier: Apache-2.0
"""What arrives at the agent's loop, all of it through one queue."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import msgspec

from stallscope.model import Trigger
from stallscope.samples import Sample
from stallscope.waitlines import WaitLine

__all__ = [
    "Answer",
    "Asked",
    "Done",
    "Inbox",
    "News",
    "ProbeState",
    "Put",
    "Shot",
    "TargetEnded",
    "Waits",
]


class Answer(msgspec.Struct, frozen=True):
    """What a lane's one-off call brought; ``error`` says why it brought nothing."""

    key: str
    value: Any = None
    error: str | None = None


class Shot(msgspec.Struct, frozen=True):
    """A capture that was asked for, or that a wait took, is a whole file, or could not be taken."""

    path: str | None
    done_ns: int
    """CLOCK_MONOTONIC, when it was known to be whole."""
    partial: bool = False
    key: str | None = None
    """Of the one who asked; None: the probe took it by itself."""
    wait: Trigger | None = None
    error: str | None = None


class Waits(msgspec.Struct, frozen=True):
    """A line of the wait programs, as it was understood and as it came."""

    line: WaitLine
    data: bytes
    clock_ns: int


class ProbeState(msgspec.Struct, frozen=True):
    """The probe has become ready, or has ended. ``sees_waits``: its wait programs are on."""

    ready: bool
    sees_waits: bool = False
    why: str | None = None


class TargetEnded(msgspec.Struct, frozen=True):
    """The probe saw the end of the server."""


class Done(msgspec.Struct, frozen=True):
    """Work in another thread is done: ``then`` is called in the loop's own."""

    then: Callable[[], None]


class Asked(msgspec.Struct, frozen=True):
    """A signal: ``stop`` or ``reload``."""

    what: str


News = Sample | Answer | Shot | Waits | ProbeState | TargetEnded | Done | Asked
Put = Callable[[News], None]


class Inbox:
    """The queue. Putting never waits, also in a signal handler (queue.SimpleQueue is reentrant)."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[News] = queue.SimpleQueue()

    def put(self, news: News) -> None:
        self._queue.put(news)

    def get(self, seconds: float) -> News | None:
        """Return the next, or None where nothing came in that time."""
        try:
            return self._queue.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
