# SPDX-License-Identifier: Apache-2.0
"""Whether the probes count exactly, and measure rightly, what a target is known to have done."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from stallscope.model.waitlines import Event
from tests.bench import progress
from tests.bench.events import events, final_line, is_of
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.watchers import Watching, probe_waits
from tests.support.known_waits import Call, known_waits, make

__all__ = ["differences", "exact_section"]

COMMANDS = {"fsync": "fsync 23", "fallocate": "fallocate 29", "mutex": "mutex 31 5"}
WANTED = {"fsync": 23, "fallocate": 29, "mutex": 31}
LIMIT_MS = 2.0
# Every wait is an event, so that each can be compared with what the target says of it.
OPTIONS = ("--events", "--threshold", "0.001", "--interval", "100")


def differences(calls: Sequence[Call], seen: Sequence[Event]) -> list[float]:
    """Return for each call how much its length differs from that of its event, in ms.

    An event belongs to a call of the same thread that it lies in. Raises BenchError where a call
    has none, or more than one. A thread that was preempted may have been so between its wait and
    its read of the clock: then the event must not be longer, and how much shorter nobody knows.
    """
    found = []
    for call in calls:
        own = [event for event in seen if not event.in_flight and is_of(event, call)]
        if len(own) != 1:
            raise BenchError(f"{len(own)} events of the wait {call}")
        longer = own[0].length_ms - call.length_ns / 1e6
        found.append(max(0.0, longer) if call.involuntary else abs(longer))
    return found


def one_run(folder: Path) -> tuple[dict[str, int], dict[str, list[float]], int]:
    """Return the probe's counts, how much its lengths differ, and how many waits were preempted."""
    off: dict[str, list[float]] = {}
    preempted = 0
    with known_waits(folder) as target:
        with Watching(probe_waits(*OPTIONS), target.pid) as watching:
            made = {kind: make(target, command) for kind, command in COMMANDS.items()}
        for kind, known in made.items():
            seen = [event for event in events(watching.lines) if event.kind == kind]
            off[kind] = differences(known.calls, seen)
            preempted += sum(call.involuntary > 0 for call in known.calls)
    counts = {kind: final_line(watching.lines).kinds[kind].count for kind in WANTED}
    return counts, off, preempted


def exact_section(runs: int) -> Section:
    """Count and measure known waits again and again, each time with a new probe."""
    counts: dict[str, list[int]] = {kind: [] for kind in WANTED}
    off: dict[str, list[float]] = {kind: [] for kind in WANTED}
    preempted = 0
    for nr in range(runs):
        progress(f"known waits, run {nr + 1}")
        # Not in /tmp, which may be memory: there an fsync is nothing.
        with tempfile.TemporaryDirectory(prefix="stallscope-bench-", dir="/var/tmp") as folder:
            counted, differ, late = one_run(Path(folder))
        preempted += late
        for kind in WANTED:
            counts[kind].append(counted[kind])
            off[kind] += differ[kind]
    rows, goals = [], []
    for kind, wanted in WANTED.items():
        exact = sum(count == wanted for count in counts[kind])
        worst = max(off[kind])
        cells: dict[str, Figure | str] = {
            "made": str(wanted),
            "counted": figure(counts[kind], ""),
            "exactly": f"{exact} of {runs} runs",
            "length differs by": figure(off[kind], "ms"),
        }
        rows.append(Row(kind, cells))
        goals.append((f"{kind}: {wanted} counted in {exact} of {runs} runs", exact == runs))
        goals.append((f"{kind}: lengths within {worst:.3f} ms, 2 allowed", worst <= LIMIT_MS))
    title = f"Known waits of a target, counted and measured in {runs} runs"
    checks = (
        "each wait has one event, of its thread, that begins while it lasts",
        f"{preempted} of the threads were preempted, perhaps before they read the clock: there"
        " the length must be no longer than theirs",
    )
    return Section("exact", title, tuple(rows), checks, tuple(goals))
