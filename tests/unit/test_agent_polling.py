# SPDX-License-Identifier: Apache-2.0
"""When the loop polls before its interval is over: while a wait is long."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from stallscope.agent import loop
from stallscope.agent.clock import NS
from stallscope.agent.events import Callback, WaitsReceived
from stallscope.agent.loop import Agent
from stallscope.model.waitlines import SCHEMA, Key, WaitLine
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentfakes import BREACH, SETTINGS, FakeEnvironment, running

__all__: list[str] = []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> FakeEnvironment:
    """Polls come every 30 s, and after 0.3 s while a wait is long: for a minute after its line."""
    monkeypatch.setattr(loop, "CONFIRM", 0.01)
    monkeypatch.setattr(loop, "HURRY_NS", 60 * NS)
    twice = msgspec.structs.replace(BREACH, cycles=2)
    return FakeEnvironment(msgspec.structs.replace(SETTINGS, poll_interval=30.0, triggers=(twice,)))


def test_a_breach_is_sampled_again_soon_while_a_wait_is_long(
    patient: FakeEnvironment, tmp_path: Path
) -> None:
    patient.status.value = 100
    with running(patient, tmp_path) as agent:
        wait_until(lambda: agent.engine.counting, "the first poll")
        _hand_over(agent, _waits(loop.LONG_WAIT_MS - 1))
        assert agent.metrics.polls == 1
        begun = time.monotonic()
        _hand_over(agent, _waits(loop.LONG_WAIT_MS))
        wait_until(lambda: patient.of("stall"), "the second poll")
        assert time.monotonic() - begun < 25
        assert agent.metrics.polls == 2


def test_the_first_long_wait_is_a_reason_to_poll(patient: FakeEnvironment, tmp_path: Path) -> None:
    with running(patient, tmp_path) as agent:
        wait_until(lambda: agent.engine.states()[0].samples, "the first poll, before the stall")
        patient.status.value = 100
        begun = time.monotonic()
        _hand_over(agent, _waits(loop.LONG_WAIT_MS))
        wait_until(lambda: patient.of("stall"), "two more polls")
        assert time.monotonic() - begun < 25
        assert agent.metrics.polls == 3
        _hand_over(agent, _waits(loop.LONG_WAIT_MS))
        assert agent.metrics.polls == 3, "it goes on, and is no news"


def _hand_over(agent: Agent, waits: WaitsReceived) -> None:
    """Give the agent a line, and wait until it has handled it."""
    handled = threading.Event()
    agent.events.put(waits)
    agent.events.put(Callback(handled.set))
    assert handled.wait(PATIENCE)


def _waits(longest_ms: float) -> WaitsReceived:
    key = Key(
        1,
        longest_ms,
        0.0,
        kind="mutex",
        name="a",
        in_flight=1,
        longest_in_flight_ms=longest_ms,
    )
    line = WaitLine(SCHEMA, 0.0, 1.0, {}, (key,), {})
    return WaitsReceived(line, b"{}", time.monotonic_ns())
