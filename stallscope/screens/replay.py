# SPDX-License-Identifier: Apache-2.0
"""The replay: captures, or an incident with its lines of waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from stallscope import store
from stallscope.analyzers import engine, importers
from stallscope.analyzers.catalog import Catalog
from stallscope.base.errors import StallscopeError
from stallscope.base.inputfile import chunks
from stallscope.model import sessionsfile
from stallscope.model.capture import Capture
from stallscope.model.waitlines import WaitLine
from stallscope.screens.events import Analyzed, Ended, Event, Noted, Put, Saved, WaitsSeen

__all__ = ["Replay", "source"]

_STEP = 1.0
"""The most seconds between two events."""
_END_SECONDS = 3.0

Timed = tuple[float, Event]


def source(paths: Sequence[Path], catalog: Catalog) -> Replay:
    """Read everything; raises StallscopeError where there is nothing to show."""
    events: list[Timed] = []
    for path in paths:
        events += _incident(path, catalog) if path.is_dir() else _file(path, catalog)
    if not events:
        raise StallscopeError(f"{paths[0]}: contains no capture")
    return Replay("replay of " + ", ".join(map(str, paths)), events)


def _incident(path: Path, catalog: Catalog) -> Iterator[Timed]:
    stored = store.read_incident(path)
    for item in stored.captures():
        if item.capture is not None:
            yield _analyzed(
                item.capture, (item.capture.time_ns or item.entry.time_ns) / 1e9, catalog
            )
    for line in stored.waits():
        if isinstance(line, WaitLine):
            yield line.ts, WaitsSeen(line)


def _file(path: Path, catalog: Catalog) -> Iterator[Timed]:
    for number, capture in enumerate(importers.read(chunks(path), str(path))):
        capture = sessionsfile.add_from_file(capture, path)
        yield _analyzed(
            capture, capture.time_ns / 1e9 if capture.time_ns else float(number), catalog
        )


def _analyzed(capture: Capture, ts: float, catalog: Catalog) -> Timed:
    return ts, Analyzed(engine.analyze(capture, catalog), ts)


class Replay:
    """Recorded captures and lines of waits, in the order of their times."""

    def __init__(self, title: str, events: Sequence[Timed], step: float = _STEP) -> None:
        """``events``: (seconds since the epoch, event). ``step``: the most seconds between two
        events."""
        self._title = title
        self._events = sorted(events, key=lambda item: item[0])
        self._step = step
        self._closing = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread: threading.Thread | None = None
        self._put: Put = lambda event: None

    @property
    def titles(self) -> Sequence[str]:
        """Return what is replayed."""
        return [self._title]

    def start(self, put: Put) -> None:
        """Begin."""
        self._put = put
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def pause(self, on: bool) -> None:
        """Pause, or continue."""
        if on:
            self._running.clear()
        else:
            self._running.set()

    def capture(self, path: Path) -> None:
        """Report that a replay takes no captures."""
        self._put(Saved(error="no captures during a replay"))

    def kill(self, statement: str) -> None:
        """Report that a replay has no server."""
        self._put(Noted(f"a replay has no server: {statement} was not sent"))

    def close(self) -> None:
        """End."""
        self._closing.set()
        self._running.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        last = None
        for ts, event in self._events:
            if last is not None and ts > last:
                self._closing.wait(min(ts - last, self._step))
            self._running.wait()
            if self._closing.is_set():
                return
            last = ts
            self._put(event)
        self._put(Ended("end of replay"))
