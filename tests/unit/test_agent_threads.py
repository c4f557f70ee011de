# SPDX-License-Identifier: Apache-2.0
"""The agent at rest: when its probe may rest, and what becomes of what threads did."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from stallscope.agent.backends import ProbeBackend, with_triggers
from stallscope.agent.events import EventQueue, ProbeStatus, WaitsReceived
from stallscope.agent.probe_session import ProbeSettings, arguments
from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.engine import reader_of_counts
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.model.waitlines import Rest, WaitLine
from stallscope.reporters.exposition import Families
from stallscope.store import read_incident
from stallscope.store.history import find
from tests.support.servers.waiting import wait_until
from tests.unit.agentfakes import FakeEnvironment, breach, running, stored, this_server
from tests.unit.agentlog import Messages
from tests.unit.metricspages import text_of
from tests.unit.threadlines import COND, FSYNC, IDLE, MUTEX, RUNNING, line, sample

RESTING = Rest(True, 300.0, 412, 3)


def triggers(*expressions: str) -> AgentSettings:
    found = [TriggerSettings(f"t{n}", variable=text) for n, text in enumerate(expressions)]
    return AgentSettings(triggers=tuple(found))


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("Threads_running > 40", None),
        ("waits.fsync.in_flight > 2", None),
        ("rate(waits.fsync.count) > 100", "waits.fsync.count"),
        ("waits.mutex.max_ms > 5", "waits.mutex.max_ms"),
        ("waits.row-lock.longest_ms > 5", "waits.row-lock.longest_ms"),
        ("Threads_running > 1 and waits.mutex.convoy > 5", "waits.mutex.convoy"),
    ],
)
def test_which_values_are_not_counted_at_rest(expression: str, named: str | None) -> None:
    found = reader_of_counts(triggers("Threads_running > 3", expression))
    assert found == (None if named is None else ("t1", named))


def test_the_default_triggers_let_it_rest() -> None:
    assert reader_of_counts(triggerfile.defaults()) is None


def test_the_probe_rests_unless_a_trigger_or_the_user_needs_the_programs(tmp_path: Path) -> None:
    probe = ProbeSettings(captures=tmp_path)
    counting = triggers("waits.fsync.count > 5")
    with Messages() as log:
        assert with_triggers(probe, triggers("Threads_running > 3")).at_rest
        assert not with_triggers(probe, triggers(), always_on=True).at_rest
        assert not with_triggers(probe, counting, always_on=True).at_rest
        assert log.messages == []
        assert not with_triggers(probe, counting).at_rest
    assert log.messages == [
        "the wait programs stay attached: trigger t0 reads waits.fsync.count, which is not counted"
        " at rest"
    ]


def test_a_reload_keeps_what_the_user_asked_for(tmp_path: Path) -> None:
    put = EventQueue().put
    probe = ProbeSettings(captures=tmp_path)
    always = ProbeBackend(probe, triggers(), put, always_on=True)
    always.adapt(triggers("Threads_running > 3"))
    assert not always.settings.at_rest
    resting = ProbeBackend(probe, triggers("waits.fsync.count > 5"), put)
    assert not resting.settings.at_rest
    resting.adapt(triggers())
    assert resting.settings.at_rest


def test_the_command_line_of_the_probe(tmp_path: Path) -> None:
    resting = ProbeSettings(captures=tmp_path, at_rest=True)
    assert {"--at-rest", "--history"} <= set(arguments((1,), resting, watch=True))
    attached = arguments((1,), ProbeSettings(captures=tmp_path), watch=True)
    assert "--history" in attached
    assert "--at-rest" not in attached
    assert not {"--at-rest", "--history"} & set(arguments((1,), resting, watch=False))


def metrics(*lines: WaitLine) -> ThreadMetrics:
    found = ThreadMetrics()
    for one in lines:
        found.take(one)
    return found


def text(found: ThreadMetrics) -> str:
    return text_of(found.families(Families({"server": "mariadbd"})))


def test_metrics_of_threads_and_rest() -> None:
    rows = (MUTEX, FSYNC, RUNNING, COND, IDLE)
    found = text(metrics(line(sample(1, RUNNING), sample(2, *rows), rest=RESTING)))
    for activity, count in (("mutex", 12), ("fsync", 3), ("running", 2), ("idle", 390)):
        assert f'_threads{{activity="{activity}",server="mariadbd"}} {count}.0\n' in found
    for name, value in (
        ("wait_programs_attached", "0.0"),
        ("wait_programs_armed_total", "3.0"),
        ("sentinel_interval_seconds", "0.3"),
        ("sentinel_threads", "412.0"),
    ):
        assert f'stallscope_{name}{{server="mariadbd"}} {value}\n' in found


def test_programs_that_are_always_attached_are() -> None:
    assert metrics(line()).attached is True
    assert metrics(line(source="poll")).attached is False
    assert metrics(line(rest=msgspec.structs.replace(RESTING, resting=False))).attached is True


def test_the_count_of_arms_goes_on_where_the_probe_starts_again() -> None:
    found = metrics(line(rest=RESTING))
    found.ended()
    assert (found.armed, found.attached, found.latest) == (3, None, None)
    assert "threads" not in text(found).replace("wait_programs", "")
    found.take(line(rest=msgspec.structs.replace(RESTING, arms=1)))
    assert found.armed == 4
    found.take(line(rest=msgspec.structs.replace(RESTING, arms=0)))
    assert found.armed == 4, "an unseen restart"


def received(one: WaitLine) -> WaitsReceived:
    data = msgspec.json.encode({"type": "waits", **msgspec.to_builtins(one)})
    return WaitsReceived(one, data, time.monotonic_ns())


def test_the_minute_before_is_in_the_incident_and_all_of_it_for_other_processes(
    tmp_path: Path,
) -> None:
    environment = FakeEnvironment()
    begun = time.time_ns()
    before = [sample(begun - (5 - n) * 10**9, MUTEX, IDLE) for n in range(5)]
    with running(environment, tmp_path) as agent:
        wait_until(lambda: environment.fake.followed, "it has begun")
        for one in before:
            agent.events.put(received(line(one, rest=RESTING)))
        wait_until(lambda: len(agent.threads.history) == 5, "the lines are taken")
        breach(environment)
        assert list(agent.threads.history.since(0)) == before
        agent.threads.flush(this_server())
        pid = this_server().main.pid
        wait_until(lambda: find(tmp_path, [pid]) is not None, "it is written")
        found = find(tmp_path, [pid])
        assert found is not None
        assert list(found.samples) == before
        assert 'activity="mutex"' in text_of(agent.metrics.families())
    (incident,) = stored(tmp_path)
    lines = read_incident(tmp_path / "incidents" / incident.id).waits()
    kept = [one for item in lines if isinstance(item, WaitLine) for one in item.history]
    assert kept == before
    assert find(tmp_path, [pid]) is None, "the agent has ended"


def test_nothing_is_written_where_the_disk_is_full(tmp_path: Path) -> None:
    environment = FakeEnvironment(
        msgspec.structs.replace(FakeEnvironment().settings, disk_bytes_free=1 << 60)
    )
    with running(environment, tmp_path) as agent:
        wait_until(lambda: agent.threads.disk_full, "the disk is checked")
        agent.events.put(received(line(sample(time.time_ns(), MUTEX))))
        wait_until(lambda: len(agent.threads.history) == 1, "the line is taken")
    assert not (tmp_path / "history").exists()


def test_it_says_how_it_watches_and_why_it_could_not_attach(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        agent.events.put(ProbeStatus(ready=True, sees_waits=True, at_rest=True))
        for refused in (1, 1, 2):
            rest = msgspec.structs.replace(RESTING, refused=refused, why="no memory")
            agent.events.put(received(line(rest=rest)))
        wait_until(lambda: agent.threads.metrics.rest is not None, "the lines are taken")
        agent.events.put(ProbeStatus(ready=False))
        wait_until(lambda: agent.threads.metrics.rest is None, "the probe has ended")
    assert any(
        one.endswith("; wait programs are attached when a wait is long") for one in environment.said
    )
    why = "the wait programs could not be attached: no memory; waits are polled"
    assert environment.said.count(why) == 2
