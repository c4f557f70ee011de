# SPDX-License-Identifier: Apache-2.0
"""An agent that is stopped, suspended, or whose wall clock is set, takes that for no stall."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.agent import loop
from stallscope.agent.clock import NS, Clock
from stallscope.agent.collecting import CollectorThreads
from stallscope.agent.events import Callback, Event, WaitsReceived
from stallscope.agent.gaps import CATCH_UP_NS, GAP_NS, Gaps
from stallscope.collectors.triggers.settings import TriggerSettings
from stallscope.model.samples import Sample
from stallscope.model.waitlines import SCHEMA, Key, WaitLine
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentfakes import BREACH, SETTINGS, FakeEnvironment, running


class StoppedClock(Clock):
    """The clock of an agent that was stopped for so long."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


def trigger(name: str, **condition: Any) -> TriggerSettings:
    return msgspec.structs.replace(BREACH, name=name, **condition)


def test_an_agent_that_was_stopped_sees_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it sees one that comes later."""
    late = trigger("late", variable="heartbeat.unanswered_ms", threshold=1500.0)
    waits = trigger("waits", variable=None, wait="fsync", threshold=1000.0)
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, triggers=(late, waits)))
    clock = StoppedClock()
    excused = threading.Event()
    monkeypatch.setattr(CollectorThreads, "excuse", lambda threads: excused.set())
    with running(environment, tmp_path, clock=clock) as agent:

        def happens(event: Event) -> None:
            handled = threading.Event()
            agent.events.put(event)
            agent.events.put(Callback(handled.set))
            assert handled.wait(PATIENCE)

        def unanswered(since_ns: int) -> Sample:
            late = sample(since_ns, waited_ms=60_000, error="no answer")
            return msgspec.structs.replace(late, values={"heartbeat.unanswered_ms": 60e3})

        wait_until(lambda: agent.metrics.polls, "it polls")
        happens(msgspec.structs.replace(sample(clock.now_ns()), values={"heartbeat.ms": 1.0}))
        clock.ahead_ns += 60 * NS
        happens(unanswered(clock.now_ns()))
        assert excused.is_set()
        key = Key(1, 60e3, 60e3, kind="fsync", name="a", in_flight=1, longest_in_flight_ms=60e3)
        line = WaitLine(SCHEMA, 0.0, 1.0, {}, (key,), {})
        happens(WaitsReceived(line, b"{}", clock.now_ns()))
        assert agent.metrics.fired == {}
        happens(unanswered(clock.now_ns() + CATCH_UP_NS))
        happens(WaitsReceived(line, b"{}", clock.now_ns() + CATCH_UP_NS))
        assert agent.metrics.fired == {"late": 1, "waits": 1}


def sample(clock_ns: int, *, waited_ms: float = 0.0, error: str | None = None) -> Sample:
    return Sample("heartbeat", 0, clock_ns, elapsed_ms=waited_ms, error=error)


def test_what_was_begun_before_a_gap_is_stale() -> None:
    gaps = Gaps()
    assert gaps.look(100 * NS, 0) == 0
    assert gaps.look(101 * NS, NS) == 0
    assert not gaps.is_stale(sample(100 * NS))
    assert gaps.look(161 * NS, 61 * NS) == 60 * NS
    assert gaps.is_stale(sample(101 * NS))
    assert gaps.is_stale(sample(161 * NS + 5, waited_ms=60_000, error="no answer"))
    assert not gaps.is_stale(sample(161 * NS + 5))
    # A server that hangs since then still hangs: that counts.
    later = 161 * NS + CATCH_UP_NS
    assert not gaps.is_stale(sample(later, waited_ms=61_000, error="no answer"))
    assert gaps.is_catching_up(later - 1)
    assert not gaps.is_catching_up(later)


def test_a_loop_that_runs_has_no_gaps() -> None:
    gaps = Gaps()
    assert not any(gaps.look(n * NS, n * NS) for n in range(1, 100))
    assert not gaps.is_catching_up(0)


@pytest.mark.parametrize("step", [31 * 86_400 * NS, -86_400 * NS, 3600 * NS])
def test_lengths_by_the_servers_wall_clock_are_unknown_after_a_step(step: int) -> None:
    """A step is a clock that was set, or suspend, in which the monotonic clock stops."""
    values = {
        "processlist.longest_s": 5000.0,
        "transactions.oldest_s": 3.0,
        "processlist.running": 5000.0,
        "host.uptime_s": 5000.0,
    }
    lists = msgspec.structs.replace(sample(20 * NS), values=values)
    gaps = Gaps()
    gaps.look(10 * NS, 500 * NS)
    assert gaps.checked(lists) is lists
    gaps.look(11 * NS, 501 * NS + step)
    assert set(gaps.checked(lists).values) == set(values) - {"processlist.longest_s"}
    later = msgspec.structs.replace(lists, clock_ns=6000 * NS)
    assert gaps.checked(later) is later


def test_slewing_is_no_step() -> None:
    gaps = Gaps()
    for second in range(1000):
        gaps.look(second * NS, second * NS + second * 500_000)
    lists = msgspec.structs.replace(sample(1000 * NS), values={"processlist.longest_s": 1e6})
    assert gaps.checked(lists) is lists


def test_the_loop_wakes_up_more_often_than_a_gap_is_long() -> None:
    assert loop.LONGEST_PAUSE * NS + NS < GAP_NS
