# SPDX-License-Identifier: Apache-2.0
"""How soon a probe reports a wait in flight, and has captured all threads."""

from __future__ import annotations

import bisect
import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallscope.model.waitlines import Event
from tests.bench import progress
from tests.bench.check import verified_right
from tests.bench.events import captures, events, is_of
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.tools import Taken
from tests.bench.watchers import PROBE_SERVE, Watching, probe_serve, probe_waits
from tests.support.known_waits import Call, known_waits, make
from tests.support.servers import SqlServer
from tests.support.stalls.load import sysbench_load

__all__ = [
    "FULL",
    "QUICK",
    "Sizes",
    "capture_section",
    "event_section",
    "lateness",
    "match",
    "percentile",
]

EVENT_GOAL_MS = 5.0
CAPTURE_GOAL_MS = 60.0
THRESHOLD_MS = 10
WAIT_MS = 25
CAPTURED_WAIT_MS = 80
LOAD = "oltp_read_write"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    waits: int = 300
    captures: int = 200
    threads: int = 400
    load_threads: int = 16


FULL = Sizes()
QUICK = Sizes(waits=100, captures=30, load_threads=8)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def lateness(calls: Sequence[Call], seen: Sequence[Event]) -> list[float]:
    """Return for each wait how long after its threshold the probe had learned of it, in ms.

    The wait began when its thread says so. Raises BenchError where no wait was reported.
    """
    found = []
    for call in calls:
        own = [event.received_ns for event in seen if event.received_ns and is_of(event, call)]
        if not own:
            raise BenchError(f"no event of the wait {call}")
        found.append((min(own) - call.start_ns) / 1e6 - THRESHOLD_MS)
    return found


@contextlib.contextmanager
def load_on(server: SqlServer | None, threads: int) -> Iterator[None]:
    """Keep the machine busy by a server that nobody watches, or not."""
    if server is None:
        yield
        return
    with sysbench_load(server, threads, LOAD):
        yield


def late_events(sizes: Sizes) -> list[float]:
    options = ("--events", "--threshold", f"mutex={THRESHOLD_MS}", "--interval", "100")
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder,
        known_waits(Path(folder)) as target,
    ):
        with Watching(probe_waits(*options), target.pid) as watching:
            made = make(target, f"mutex {sizes.waits} {WAIT_MS}")
        return lateness(made.calls, events(watching.lines))


def event_section(server: SqlServer, sizes: Sizes) -> Section:
    """Measure from the moment a wait passes its threshold until the probe has its event."""
    rows, goals = [], []
    for busy in (None, server):
        name = "nothing else runs" if busy is None else f"next to {server.name} under {LOAD}"
        progress(f"events: {name}")
        with load_on(busy, sizes.load_threads):
            late = late_events(sizes)
        worst = percentile(late, 99)
        rows.append(Row(name, late_cells(late)))
        goals.append((f"{name}: {worst:.2f} ms at p99, 5 allowed", worst <= EVENT_GOAL_MS))
    return Section(
        "latency-event",
        f"From the threshold of {THRESHOLD_MS} ms to the event of a mutex wait of {WAIT_MS} ms",
        tuple(rows),
        ("every wait has an event", "the threshold passes by the clock of the thread that waits"),
        tuple(goals),
    )


def late_cells(late: Sequence[float]) -> dict[str, Figure | str]:
    return {
        "waits": str(len(late)),
        "median": figure(late, "ms"),
        "p90": figure([percentile(late, 90)], "ms"),
        "p99": figure([percentile(late, 99)], "ms"),
    }


def capture_section(server: SqlServer, sizes: Sizes) -> Section:
    """Measure from the moment a wait passes its threshold until all threads are captured."""
    rows, goals = [], []
    for busy in (None, server):
        name = "nothing else runs" if busy is None else f"next to {server.name} under {LOAD}"
        progress(f"captures: {name}")
        with load_on(busy, sizes.load_threads):
            late = late_captures(sizes)
        finished = [one.finished_ms for one in late]
        worst = percentile(finished, 99)
        rows.append(Row(name, capture_cells(late)))
        goals.append((f"{name}: {worst:.1f} ms at p99, 60 allowed", worst <= CAPTURE_GOAL_MS))
        goals.append(
            (f"{name}: {len(late)} of {sizes.captures} waits captured", len(late) == sizes.captures)
        )
    return Section(
        "latency-capture",
        f"From the threshold of {THRESHOLD_MS} ms to the capture of all {sizes.threads} threads,"
        " 25 functions deep",
        tuple(rows),
        ("every stack of every capture has exactly its frames",),
        tuple(goals),
    )


@dataclass(frozen=True)
class LateCapture:
    """How long after the threshold, in ms."""

    learned_ms: float
    copied_ms: float
    finished_ms: float
    """By the clock of the thread that waits, and that of the reader of the last line."""


def late_captures(sizes: Sizes) -> list[LateCapture]:
    options = ("--capture-threshold", f"mutex={THRESHOLD_MS}", "--capture-interval", "0")
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder,
        known_waits(Path(folder), idle=sizes.threads - 6, depth=25) as target,
    ):
        with Watching(probe_serve(*options), target.pid) as watching:
            made = make(target, f"mutex {sizes.captures} {CAPTURED_WAIT_MS}")
        taken = captures(watching.lines)
        for one in taken:
            verified_right(target.threads, one, PROBE_SERVE)
        return match(made.calls, taken, time.time_ns() - time.monotonic_ns())


def match(calls: Sequence[Call], taken: Sequence[Taken], wall_ns: int) -> list[LateCapture]:
    """Return how late the capture of each wait is, of those that have one.

    A capture says when it began, by a clock that is ``wall_ns`` ahead of that of the calls, and how
    long before that its wait passed the threshold at least: its wait is the last one that had begun
    by then.
    """
    starts = [call.start_ns for call in calls]
    found: dict[int, LateCapture] = {}
    for one in taken:
        capture = one.capture
        trigger = capture.trigger if capture is not None else None
        if capture is None or capture.time_ns is None or trigger is None:
            raise BenchError("a capture does not say which wait it is of")
        if trigger.delay_ms is None:
            raise BenchError(f"a capture does not say how late it is: {trigger}")
        begun = capture.time_ns - wall_ns - int((trigger.delay_ms + THRESHOLD_MS) * 1e6)
        nr = bisect.bisect_right(starts, begun) - 1
        if nr < 0 or nr in found or trigger.tid != calls[nr].tid:
            raise BenchError(f"a capture of no wait: {trigger}")
        finished = (one.end_ns - starts[nr]) / 1e6 - THRESHOLD_MS
        found[nr] = LateCapture(trigger.delay_ms, trigger.copied_ms or 0.0, finished)
    return list(found.values())


def capture_cells(late: Sequence[LateCapture]) -> dict[str, Figure | str]:
    finished = [one.finished_ms for one in late]
    return {
        "captures": str(len(late)),
        "learned of, p99": figure([percentile([one.learned_ms for one in late], 99)], "ms"),
        "copied, p99": figure([percentile([one.copied_ms for one in late], 99)], "ms"),
        "finished and read": figure(finished, "ms"),
        "p99": figure([percentile(finished, 99)], "ms"),
    }
