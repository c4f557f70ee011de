# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench probes measures by a target, in small."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.bench.probe_exact import LIMIT_MS, WANTED, one_run
from tests.bench.probe_latency import Sizes, late_captures, late_events
from tests.bench.probe_programs import program_times, timed_programs
from tests.bench.watchers import NOTHING, Watching, probe_serve, probe_waits
from tests.support.targets import Target

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

SMALL = Sizes(waits=20, captures=5, threads=50)
TRIES = 5
"""A wait can be over before a busy machine has taken its capture."""


def test_known_waits_are_counted_and_measured(tmp_path: Path) -> None:
    counts, off, _ = one_run(tmp_path)
    assert counts == WANTED
    assert {kind: len(values) for kind, values in off.items()} == WANTED
    for values in off.values():  # one thread can be late to read its clock, not most of them
        assert statistics.median(values) <= LIMIT_MS


def test_no_event_comes_before_its_threshold() -> None:
    late = late_events(SMALL)
    assert len(late) == SMALL.waits
    assert min(late) >= 0


def test_steps_of_a_capture_are_ordered() -> None:
    for _ in range(TRIES):
        late = late_captures(SMALL)
        if len(late) == SMALL.captures:
            break
    assert len(late) == SMALL.captures
    for one in late:
        assert 0 <= one.learned_ms <= one.copied_ms <= one.finished_ms


def test_both_programs_of_ours_say_what_they_counted() -> None:
    with Target("storm", "4", "1000", "1000") as target:
        for watcher in (probe_waits(), probe_serve("--interval", "1000")):
            with Watching(watcher, target.pid) as watching:
                done = target.ask("run 500")
            assert set(watching.seen().counts) == {"mutex"}
            assert watching.seen().total > 0
            assert done["operations"] > 0
    with Watching(NOTHING, 0) as watching:
        assert watching.cpu_ns() == 0
    assert watching.seen().total == 0


def test_programs_are_timed_while_that_is_asked_for() -> None:
    with (
        Target("storm", "4", "1000", "1000") as target,
        Watching(probe_waits(), target.pid) as watching,
        timed_programs(),
    ):
        before = program_times(watching.pid)
        target.ask("run 200")
        after = program_times(watching.pid)
    for name in ("stall_sys_enter", "stall_sys_exit"):
        ns, runs = (late - early for late, early in zip(after[name], before[name], strict=True))
        assert 0 < runs < ns
