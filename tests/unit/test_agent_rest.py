# SPDX-License-Identifier: Apache-2.0
"""When a server is at rest, and that a stall is seen all the same."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from stallscope.agent.rest import FEW, HOLD_NS, LEARN_NS, ServerRest
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.model.samples import Sample
from tests.unit.test_triggers_recordings import STALLS, WITHIN
from tests.unit.trigger_recordings import NS, load, mark

__all__: list[str] = []

RARE_NS = {"processlist": 30 * NS, "heartbeat": 5 * NS}
"""At rest; other collectors of the host have 5 s."""
WARM_UP_SECONDS = 60


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


def _asked(name: str) -> Iterator[tuple[Sample, bool]]:
    """Yield the samples of a recording that the agent takes, and whether there was rest before."""
    settings = triggerfile.defaults()
    engine, rest = Engine(settings, {"host.cpus": 2}), ServerRest()
    latest: dict[str, int] = {}
    for sample in _with_warm_up(name):
        resting = rest.at_rest(sample.clock_ns) and engine.calm
        if resting and sample.source != "status":
            least = RARE_NS.get(sample.source, 5 * NS)
            if sample.clock_ns - latest.get(sample.source, -least) < least * 9 // 10:
                continue
        latest[sample.source] = sample.clock_ns
        rest.take(sample, incident=bool(engine.breached))
        yield sample, resting
        engine.feed(sample)


def _with_warm_up(name: str) -> Iterator[Sample]:
    records = load(name)
    samples = [record.sample for record in records if record.sample is not None]
    # Not the first ones: those waited for the connection.
    usual: dict[str, Sample] = {}
    for sample in samples:
        if sample.error is None and sample.clock_ns < mark(records, "begin"):
            before = usual.get(sample.source, sample)
            usual[sample.source] = min(before, sample, key=lambda one: one.elapsed_ms)
    first_ns = samples[0].clock_ns
    for second in range(WARM_UP_SECONDS, 0, -1):
        for sample in usual.values():
            yield msgspec.structs.replace(sample, clock_ns=first_ns - second * NS)
    begin = mark(records, "begin")  # before it the recorder waited for its connection
    yield from (one for one in samples if one.error is None or one.clock_ns >= begin)


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_is_seen_as_soon_as_with_all_samples(name: str) -> None:
    engine = Engine(triggerfile.defaults(), {"host.cpus": 2})
    found, rested = [], 0
    for sample, resting in _asked(name):
        rested += resting
        clock = sample.clock_ns + (int(sample.elapsed_ms * 1e6) if sample.error is None else 0)
        found += [(clock, one) for one in engine.feed(sample)]
    records = load(name)
    assert rested > WARM_UP_SECONDS / 2
    assert found, "nothing fired"
    assert mark(records, "begin") <= found[0][0] <= mark(records, "there") + WITHIN[name] * NS
    assert {one.trigger for _, one in found} >= STALLS[name][0]


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
