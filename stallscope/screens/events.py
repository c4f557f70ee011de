# SPDX-License-Identifier: Apache-2.0
"""Events from the sources to the live view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.analyzers.analysis import Analysis
from stallscope.model.waitlines import WaitLine
from stallscope.store import Summary

__all__ = [
    "Analyzed",
    "Ended",
    "Event",
    "IncidentsListed",
    "Noted",
    "Put",
    "Rates",
    "Saved",
    "Source",
    "SourceState",
    "WaitsSeen",
]


class WaitsSeen(msgspec.Struct, frozen=True):
    """A line of waits."""

    line: WaitLine


class Analyzed(msgspec.Struct, frozen=True):
    """A capture, analyzed. ``ts``: seconds since the epoch."""

    analysis: Analysis
    ts: float
    pause: float | None = None
    """Seconds until the next one; None: unknown."""


class Saved(msgspec.Struct, frozen=True):
    """A requested capture is in a file, or why not."""

    path: str | None = None
    error: str | None = None


class SourceState(msgspec.Struct, frozen=True):
    """A source that is degraded and what is lost; ``text`` None: it works again."""

    source: str
    text: str | None = None


class IncidentsListed(msgspec.Struct, frozen=True):
    """The last incidents of the store, the newest first."""

    incidents: tuple[Summary, ...]


class Noted(msgspec.Struct, frozen=True):
    """What a key brought about, one sentence."""

    text: str


class Rates(msgspec.Struct, frozen=True):
    """What the server's status says of one moment."""

    ts: float
    queries: float
    """Statements since its start."""
    running: int
    """``Threads_running``, without this program's own."""


class Ended(msgspec.Struct, frozen=True):
    """No more events follow."""

    why: str


Event = WaitsSeen | Analyzed | Saved | SourceState | IncidentsListed | Noted | Rates | Ended
Put = Callable[[Event], None]


class Source(Protocol):
    """Where events come from. ``start`` returns at once; ``put`` is called from threads."""

    def start(self, put: Put) -> None: ...

    def pause(self, on: bool) -> None:
        """Pause captures, or continue."""
        ...

    def capture(self, path: Path) -> None:
        """Take a capture into a file; a Saved follows."""
        ...

    def kill(self, statement: str) -> None:
        """Send a KILL that the user has confirmed; a Noted follows."""
        ...

    def close(self) -> None:
        """End the source; all its threads and processes have ended when this returns."""
        ...

    @property
    def titles(self) -> Sequence[str]:
        """Return the watched server's name and process."""
        ...
