# SPDX-License-Identifier: Apache-2.0
"""When a server is at rest, and that a stall is seen all the same."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.agent.rest import FEW, HOLD_NS, LEARN_NS, ServerRest
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.model.samples import Sample
from tests.unit.trigger_recordings import NS


class Server:
    """Samples of the status once a second."""

    def __init__(self, running: float = 1, statements: float = 0) -> None:
        self.rest = ServerRest()
        self.clock = 1000 * NS
        self.questions = 0.0
        self.poll(30, running=running, statements=statements)

    def poll(
        self, seconds: int, *, running: float, statements: float = 0, incident: bool = False
    ) -> None:
        for _ in range(seconds):
            self.clock += NS
            self.questions += statements
            values = {"Threads_running": running, "Questions": self.questions}
            sample = Sample("status", self.clock, self.clock, values, 1.0)
            self.rest.take(sample, incident=incident)

    def rests(self) -> bool:
        return self.rest.at_rest(self.clock)


def test_it_learns_first() -> None:
    server = Server()
    rest = ServerRest()
    rest.take(Sample("status", 0, server.clock, {"Threads_running": 1.0}), incident=False)
    assert not rest.at_rest(server.clock + LEARN_NS - 1)
    assert rest.at_rest(server.clock + LEARN_NS)
    assert server.rests()


def test_a_target_without_sql_is_at_rest() -> None:
    assert ServerRest().at_rest(1)


def test_more_running_threads_than_usual_end_it_and_are_usual_later() -> None:
    server = Server()
    server.poll(1, running=2)
    assert not server.rests()
    server.poll(HOLD_NS // NS + 1, running=1)
    assert server.rests()
    server.poll(10, running=30, statements=1000)
    assert not server.rests()
    server.poll(60, running=30, statements=1000)
    assert server.rests()


def test_noise_of_a_busy_server_does_not() -> None:
    server = Server(running=20, statements=20_000)
    server.poll(5, running=24, statements=20_000)
    assert server.rests()


def test_nothing_becomes_usual_during_an_incident() -> None:
    server = Server()
    server.poll(120, running=30, statements=1000, incident=True)
    assert not server.rests()


def test_a_collapse_ends_it_though_no_more_threads_run() -> None:
    server = Server(running=64, statements=20_000)
    server.poll(1, running=64, statements=10_000)
    assert server.rests()
    server.poll(1, running=64, statements=2_000)
    assert not server.rests()


def test_a_load_that_stops_does_not() -> None:
    server = Server(running=64, statements=20_000)
    server.poll(3, running=FEW, statements=0)
    assert server.rests()


@pytest.mark.parametrize("source", ["status", "heartbeat"])
def test_a_slow_or_late_answer_ends_it(source: str) -> None:
    for sample in (
        Sample(source, 0, 0, {}, 500.0),
        Sample(source, 0, 0, {}, 1000.0, error="no answer"),
    ):
        server = Server()
        late = msgspec.structs.replace(sample, clock_ns=server.clock)
        server.rest.take(late, incident=False)
        assert not server.rests()


def test_an_account_that_is_refused_does_not() -> None:
    server = Server()
    later = server.clock + 120 * NS
    server.rest.take(Sample("status", 0, later, error="refused"), incident=False)
    assert server.rest.at_rest(later)


def test_rates_and_baselines_are_known_when_the_first_name_is_sampled_again() -> None:
    variable = "processlist.running > 7 and rate(Questions) < 0.25 * baseline(rate(Questions))"
    trigger = TriggerSettings("mine", variable=variable, cycles=1)
    engine = Engine(AgentSettings(triggers=(trigger,)))

    def status(second: int, questions: float) -> Sample:
        return Sample("status", 0, second * NS, {"Questions": questions})

    def listed(second: int, running: float) -> Sample:
        return Sample("processlist", 0, second * NS + 1, {"processlist.running": running})

    engine.feed(listed(0, 1))
    for second in range(200):  # at rest the processlist is not asked
        assert engine.feed(status(second, second * 100.0)) == ()
    assert engine.calm
    engine.feed(status(200, 19_901.0))
    (fired,) = engine.feed(listed(200, 9))
    assert fired.trigger == "mine"
    assert not engine.calm
