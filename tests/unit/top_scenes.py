# SPDX-License-Identifier: Apache-2.0
"""A recorded metadata lock pile-up for the live view, event by event, without a clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis
from stallscope.base import inputfile
from stallscope.model import capturefile, waitlines
from stallscope.model.capture import Capture
from stallscope.model.incident import TargetEntry, Verdict
from stallscope.model.waitlines import ThreadRow, ThreadSample, WaitLine
from stallscope.screens.events import Analyzed, Event, IncidentsListed, Noted, Put, Saved, WaitsSeen
from stallscope.store import Summary

__all__ = ["FakeSource", "analysis", "events", "incidents", "recorded", "wait_lines"]

DATA = Path(__file__).parent.parent / "data" / "top"


def recorded() -> Capture:
    """Return the capture of MariaDB with 20 SELECTs behind an ALTER TABLE."""
    data = b"".join(inputfile.chunks(DATA / "metadata-lock.jsonl.zst"))
    return capturefile.loads(data, "metadata-lock")


def analysis(capture: Capture | None = None) -> Analysis:
    return engine.analyze(capture or recorded(), catalog.load())


def wait_lines() -> list[WaitLine]:
    """Return the eight seconds around it."""
    data = b"".join(inputfile.chunks(DATA / "waits.jsonl.zst"))
    found = [waitlines.loads(line, "waits", 1) for line in data.splitlines()]
    lines = [line for line in found if isinstance(line, WaitLine)]
    return [with_history(line, number) for number, line in enumerate(lines)]


def with_history(line: WaitLine, number: int) -> WaitLine:
    """Add what threads did, which was not recorded then."""
    waiting = ThreadRow(min(20, 5 * number), "S", "futex", "metadata-lock", None, "futex_wait")
    syncing = ThreadRow(number % 3, "D", "fsync", "fsync", "redo", "jbd2_log_wait_commit")
    rows = (waiting, syncing, ThreadRow(1 + number % 2, "R"), ThreadRow(12, "S", "ppoll"))
    sample = ThreadSample(round(line.ts * 1e9), sum(row.count for row in rows), rows)
    return msgspec.structs.replace(line, history=(sample,), call_added_ns=44.8)


def incidents() -> tuple[Summary, ...]:
    start = 1_795_275_000 * 10**9
    verdict = Verdict("metadata-lock", "Statements wait for a metadata lock", 0.9, 20)
    target = TargetEntry(20250, "mariadbd")
    stamp = (0, 0, 0, 0)
    ended = Summary("a", start, target, start + 42 * 10**9, stamp=stamp, verdict=verdict)
    return (Summary("b", start + 10**11, target, stamp=stamp, going_on=True, captures=3), ended)


def events() -> Iterator[Event]:
    """Yield the lines of waits, and the capture as often as it would have been taken."""
    found = analysis()
    yield IncidentsListed(incidents())
    for number, line in enumerate(wait_lines()):
        if number % 2 == 0:
            yield Analyzed(found, line.ts, 2.0)
        yield WaitsSeen(line)


class FakeSource:
    """Prints the lines that a test gives it."""

    def __init__(self, said: Sequence[Event] | None = None) -> None:
        self.said = list(events()) if said is None else list(said)
        self.paused = False
        self.closed = False
        self.asked: list[Path] = []
        self.killed: list[str] = []
        self.put: Put = lambda event: None

    @property
    def titles(self) -> Sequence[str]:
        return ["mariadbd (pid 20250)"]

    def start(self, put: Put) -> None:
        self.put = put
        for event in self.said:
            put(event)

    def pause(self, on: bool) -> None:
        self.paused = on

    def capture(self, path: Path) -> None:
        self.asked.append(path)
        self.put(Saved(path=str(path)))

    def kill(self, statement: str) -> None:
        self.killed.append(statement)
        self.put(Noted(f"sent: {statement}"))

    def close(self) -> None:
        self.closed = True
