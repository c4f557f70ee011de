# SPDX-License-Identifier: Apache-2.0
"""An agent that is stopped, suspended, or whose wall clock is set, takes that for no stall."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from stallscope.agent.clock import NS
from stallscope.agent.gaps import CATCH_UP_NS, Gaps
from stallscope.model.samples import Sample
from tests.unit.agentfakes import SETTINGS

STOPPED_SECONDS = 5.0

CHILD = """
import sys, threading, time
from pathlib import Path
import msgspec
from stallscope.agent.environment import Plan
from stallscope.agent.sources import Sources
from stallscope.collectors.triggers.settings import TriggerSettings
from stallscope.model.samples import Sample
from tests.unit.agentfakes import SETTINGS, FakeEnvironment, running

def trigger(name, variable, threshold):
    return TriggerSettings(
        name, variable=variable, threshold=threshold, cycles=1, clear_cycles=1, interval=0,
        sleep=0, run_time=0,
    )

class Heartbeat:
    name, thread, deadline = "heartbeat", "sql", 1.0
    interval = rest_interval = 0.0
    hangs = threading.Event()
    def collect(self):
        wall, clock = time.time_ns(), time.monotonic_ns()
        time.sleep(0.4)  # it is nearly always in flight
        if self.hangs.is_set():
            time.sleep(30)
        return Sample(self.name, wall, clock, {"heartbeat.ms": (time.monotonic_ns() - clock) / 1e6})
    def close(self): pass

heartbeat = Heartbeat()

class Environment(FakeEnvironment):
    def sources(self, server, settings, use_layout):
        return Sources((heartbeat,))

triggers = (
    trigger("no-answer", "heartbeat.unanswered_ms", 1500),
    trigger("heartbeat", "heartbeat.ms", 1500),
)
environment = Environment(msgspec.structs.replace(SETTINGS, triggers=triggers))
with running(environment, Path(sys.argv[1])) as agent:
    while not agent.engine.states() or agent.metrics.polls < 10:
        time.sleep(0.05)
    time.sleep(1)
    print("runs", flush=True)
    sys.stdin.readline()
    time.sleep(3)
    print(dict(agent.metrics.fired), flush=True)
    heartbeat.hangs.set()
    while not agent.metrics.fired:
        time.sleep(0.05)
    print(dict(agent.metrics.fired), flush=True)
"""


def test_an_agent_that_was_stopped_sees_no_stall(tmp_path: object) -> None:
    """And it sees one that comes later."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.getcwd(), *sys.path))},
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            assert child.stdout.readline() == "runs\n"
            child.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)  # the length of the gap is what is tested
            child.send_signal(signal.SIGCONT)
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "{}\n"
            assert child.stdout.readline() == "{'no-answer': 1}\n"
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


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
    from stallscope.agent import gaps, loop

    assert loop.LONGEST_PAUSE * NS + NS < gaps.GAP_NS
    assert SETTINGS.poll_interval < loop.LONGEST_PAUSE
