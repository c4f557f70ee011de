# SPDX-License-Identifier: Apache-2.0
"""The loop with fakes around it: incidents, limits, signals, clocks, storms."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.agent import incident as machine
from stallscope.agent import loop
from stallscope.agent.clock import NS
from stallscope.agent.environment import Plan
from stallscope.agent.events import (
    Callback,
    CaptureResult,
    ProbeStatus,
    Signal,
    TargetEnded,
    WaitsReceived,
)
from stallscope.agent.loop import Agent
from stallscope.agent.sources import Sources
from stallscope.agent.target import Target
from stallscope.base.errors import StallscopeError
from stallscope.collectors.processes import Server
from stallscope.collectors.sql.sessiontexts import Texts
from stallscope.collectors.triggers import triggerfile
from stallscope.model import capturefile
from stallscope.model.capture import Note, Trigger
from stallscope.model.incident import EVENTS, Incident, TargetEntry
from stallscope.model.samples import Sample
from stallscope.model.sessions import Moment, Session, Sessions
from stallscope.model.waitlines import SCHEMA, Hits, Key, WaitLine
from stallscope.store import read_incident
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentfakes import (
    BREACH,
    CAPTURE,
    FOUND,
    SETTINGS,
    FakeEnvironment,
    FakeVerdicts,
    JumpingClock,
    Status,
    breach,
    gone,
    length,
    running,
    server_of,
    stored,
)


def test_a_breach_is_one_incident_with_a_burst_and_a_verdict(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path):
        wait_until(lambda: environment.fake.followed, "it has begun")
        breach(environment)
    (incident,) = stored(tmp_path)
    assert incident.verdict == FOUND
    assert incident.target.version == "10.11.19"
    assert [entry.reason for entry in incident.captures] == ["trigger", "burst", "burst"]
    assert all(entry.analyzed for entry in incident.captures)
    first = incident.captures[0]
    assert first.breach_to_done_ms is not None
    assert first.breach_to_done_ms < PATIENCE * 1000
    assert incident.end_ns is not None
    assert not incident.interrupted
    assert incident.triggers[0].trigger == "busy"
    assert list((tmp_path / "spool").iterdir()) == []
    assert all(environment.stored_when_notified)
    assert (tmp_path / "incidents" / incident.id / "samples.jsonl.zst").is_file()


def test_the_servers_texts_are_kept_once_an_incident(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    pictures: list[int] = []

    def texts() -> Texts:
        pictures.append(len(environment.fake.taken))
        return Texts({"processlist": "12 others\n"}, ("lock-waits: no answer since 1.0 s",))

    environment.texts = texts
    with running(environment, tmp_path):
        breach(environment)
    (incident,) = stored(tmp_path)
    assert pictures == [3], "after the burst, whose connections they would delay"
    folder = read_incident(tmp_path / "incidents" / incident.id)
    assert folder.texts() == {"processlist": "12 others\n"}
    assert incident.notes == (Note("no-text", "lock-waits: no answer since 1.0 s"),)


def test_what_sql_refuses_is_said_to_be_missing(tmp_path: Path) -> None:
    environment = FakeEnvironment()

    def refuse() -> Any:
        raise StallscopeError("Access denied")

    environment.sessions = environment.texts = refuse
    with running(environment, tmp_path):
        breach(environment)
    (incident,) = stored(tmp_path)
    assert incident.notes == (Note("no-texts", "Access denied"),)
    assert [entry.sessions for entry in incident.captures] == ["Access denied"] * 3


def test_what_the_server_does_not_report_is_said_once(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path, verdicts=FakeVerdicts(FOUND, "the owners are unknown")):
        breach(environment)
    (incident,) = stored(tmp_path)
    assert len(incident.captures) == 3
    assert incident.notes == (Note("not-known", "the owners are unknown"),)


@pytest.mark.parametrize(
    ("sql", "raw_sql"), [("answers", True), ("answers", False), ("fails", True), ("none", True)]
)
def test_what_connections_do_goes_with_each_capture(
    tmp_path: Path, sql: str, raw_sql: bool
) -> None:
    environment, verdicts = FakeEnvironment(), FakeVerdicts()
    listed = Sessions((Session(8, 102, statement="SELECT 'listed'"),))

    def sessions() -> Sessions:
        if sql == "fails":
            raise StallscopeError("Access denied")
        return listed

    environment.sessions = None if sql == "none" else sessions
    session = Session(7, process=0, tid=101, statement="SELECT 'secret'")
    seen = (Moment(number=0, time_ns=1, sessions=(session,)),)
    with running(environment, tmp_path, plan=Plan(raw_sql=raw_sql), verdicts=verdicts):
        wait_until(lambda: environment.made, "it has begun")
        environment.fake.memory = seen
        breach(environment)
    (incident,) = stored(tmp_path)
    assert len(verdicts.asked) == 3
    for request in verdicts.asked:
        assert request.sessions is not None
        assert request.sessions.memory == seen
        assert request.sessions.sessions == (listed.sessions if sql == "answers" else ())
        assert (request.sessions.reason is None) == (sql == "answers")
        assert sql != "fails" or request.sessions.reason == "Access denied"
    if sql == "answers":
        assert [entry.sessions for entry in incident.captures] == [None] * 3
    kept = tmp_path / "incidents" / incident.id / "raw-sql.jsonl"
    assert kept.exists() == raw_sql
    if raw_sql:
        assert "secret" in kept.read_text()
        assert ("listed" in kept.read_text()) == (sql == "answers")
    texts = [path.read_bytes() for path in kept.parent.glob("**/*.json")]
    assert not any(b"secret" in text for text in texts)


def test_a_notification_that_fails_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = FakeEnvironment()
    notify, failed = environment.notify, list[str]()

    def fails(event: str, incident: Incident | None, folder: Path | None) -> None:
        if incident is not None and len(failed) < 3:
            failed.append(event)
            raise OSError("no space left")
        notify(event, incident, folder)

    monkeypatch.setattr(environment, "notify", fails)
    with running(environment, tmp_path):
        environment.status.value = 100
        wait_until(lambda: len(failed) == 2, "two fail")
        environment.status.value = 0
        wait_until(lambda: len(failed) == 3, "the third does")
        breach(environment)
    assert failed == ["fire", "stall", "end"]
    assert "cannot notify of stall: OSError: no space left" in environment.said
    assert len(stored(tmp_path)) == 2


def test_a_capture_of_the_probe_fires_its_trigger_or_is_dropped(tmp_path: Path) -> None:
    waits = msgspec.structs.replace(BREACH, variable=None, wait="fsync", threshold=1000.0)
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, triggers=(waits,)))
    taken = {kind: tmp_path / f"{kind}.jsonl.zst" for kind in ("mutex", "fsync")}
    with running(environment, tmp_path) as agent:
        for kind, path in taken.items():
            capturefile.write(CAPTURE, path)
            wait = Trigger("threshold", kind, length_ms=1500.0, finished_ms=1.0)
            agent.events.put(CaptureResult(str(path), time.monotonic_ns(), wait=wait))
        wait_until(lambda: environment.of("stall"), "the stall is notified")
        wait_until(lambda: not any(path.exists() for path in taken.values()), "none is left")
        assert agent.metrics.fired == {"busy": 1}
    (incident,) = stored(tmp_path)
    assert [entry.reason for entry in incident.captures] == ["trigger", "burst", "burst"]
    assert incident.triggers[0].why.startswith("fsync has waited 1,500 ms")


def test_a_collector_that_fails_ends_nothing(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        environment.status.value = 100
        wait_until(lambda: environment.of("stall"), "the stall is notified")
        environment.status.fails = "Access denied"
        wait_until(lambda: agent.metrics.errors["status"] > 20, "it fails again and again")
        assert agent.engine.breached == ("busy",)
        assert len(environment.made_alerts.open) == 1
        environment.status.value, environment.status.fails = 0, None
        wait_until(lambda: environment.of("end"), "its end")
        assert environment.made_alerts.open == []
    (incident,) = stored(tmp_path)
    assert not incident.interrupted


def test_a_stop_during_an_incident_leaves_it_interrupted(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path):
        environment.status.value = 100
        wait_until(lambda: environment.of("stall"), "the stall is notified")
    (incident,) = stored(tmp_path)
    assert incident.interrupted
    assert incident.end_ns is not None
    assert incident.verdict == FOUND


def test_no_more_captures_an_hour_than_allowed(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, captures_an_hour=4)
    environment = FakeEnvironment(settings)
    with running(environment, tmp_path):
        breach(environment)
        breach(environment, 2)
        environment.status.value = 100
        wait_until(lambda: any("no capture was taken" in s for s in environment.said), "it refuses")
        wait_until(lambda: len(environment.of("stall")) == 3, "it is notified all the same")
    first, second, third = stored(tmp_path)
    assert len(first.captures) == 3
    assert len(second.captures) == 1
    assert second.suppressed == 1
    assert third.captures == ()
    assert third.suppressed == 1
    assert [note.code for note in third.notes] == ["suppressed"]


def test_a_full_disk_limits_captures_and_no_notification(tmp_path: Path) -> None:
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, disk_pct_free=100))
    with running(environment, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls > 3, "it polls")
        breach(environment)
        assert any("disk-pct-free" in text for text in environment.said)
    (incident,) = stored(tmp_path)
    assert incident.captures == ()
    assert [note.code for note in incident.notes] == ["suppressed"]
    assert not (tmp_path / "incidents" / incident.id / "samples.jsonl.zst").exists()


def test_an_incident_that_cannot_be_stored_is_notified(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls > 3, "it polls")
        shutil.rmtree(tmp_path / "incidents")
        (tmp_path / "incidents").write_text("no folder")
        environment.status.value = 100
        wait_until(lambda: environment.lost, "it is notified")
        environment.status.value = 0
        wait_until(lambda: len(environment.lost) == 2, "its end is, too")
    assert [event for event, _ in environment.lost] == ["stall", "end"]


def test_a_capture_that_fails_is_tried_again_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RETRY_NS", NS // 1000)
    monkeypatch.setattr(machine, "LONGEST_RETRY_NS", NS // 100)
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, captures_an_hour=3))
    with running(environment, tmp_path) as agent:
        wait_until(lambda: environment.made, "it has begun")
        environment.fake.fails = "the probe reads symbols"
        environment.status.value = 100
        wait_until(lambda: agent.metrics.captures["failed"] > 60, "it fails again and again")
        assert [one.verdict for one in environment.of("stall")] == [None]
        environment.fake.fails = None
        wait_until(lambda: len(environment.of("stall")) == 2, "its verdict is notified, too")
        environment.status.value = 0
        wait_until(lambda: environment.of("end"), "its end")
    (incident,) = stored(tmp_path)
    assert any(note.message == "the probe reads symbols" for note in incident.notes)
    assert len(incident.captures) == 3, "those that failed are none of the three of an hour"
    assert incident.verdict == FOUND


def test_a_capture_that_failed_is_taken_as_soon_as_the_probe_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RETRY_NS", 3600 * NS)
    monkeypatch.setattr(machine, "LONGEST_RETRY_NS", 3600 * NS)
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        wait_until(lambda: environment.made, "it has begun")
        environment.fake.fails = "the probe is not ready yet"
        environment.status.value = 100
        wait_until(lambda: agent.metrics.captures["failed"], "it fails")
        environment.fake.fails = None
        agent.events.put(ProbeStatus(ready=True))
        wait_until(lambda: environment.of("stall"), "the stall is notified")
    (incident,) = stored(tmp_path)
    assert len(incident.captures) == 3


def test_what_an_incident_turns_out_to_be_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "LEAST_APART_NS", 0)
    more = msgspec.structs.replace(BREACH, name="jam", threshold=1000)
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, triggers=(BREACH, more)))
    verdicts = FakeVerdicts(None)
    with running(environment, tmp_path, verdicts=verdicts) as agent:
        environment.status.value = 100
        wait_until(lambda: environment.of("stall"), "it is notified")
        verdicts.verdict = FOUND
        environment.status.value = 2000
        wait_until(lambda: len(environment.of("stall")) == 2, "it is notified again")
        environment.status.value = 0
        wait_until(lambda: environment.of("end"), "its end")
        assert agent.metrics.incidents == {"none": 1, "metadata-lock": 1}
        assert (agent.incidents.found, agent.incidents.stalls) == (1, 1)
    (incident,) = stored(tmp_path)
    assert incident.verdict == FOUND
    assert [one.verdict for one in environment.of("stall")] == [None, FOUND]
    assert {one.id for one in environment.of("stall")} == {incident.id}
    assert len(environment.of("end")) == 1


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that lasts until the end of the block."""
    words = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_a_server_that_is_back_when_the_probe_reports_its_end_is_added(tmp_path: Path) -> None:
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, poll_interval=60.0))
    environment.layout = "thd.tls=1"
    with child() as before, child() as after:
        found: list[Server] = []

        def find(server: Server) -> Server:
            return found[0] if found else gone(server)

        target = Target(server_of(before.pid), find)
        with running(environment, tmp_path, target=target) as agent:
            wait_until(lambda: agent.metrics.polls, "it polls")
            assert environment.fake.layouts == ["", "thd.tls=1"]
            environment.layout = None
            before.kill()
            before.wait()
            agent.events.put(TargetEnded())
            wait_until(
                lambda: any("has ended" in text for text in environment.said), "it sees the end"
            )
            found.append(server_of(after.pid))

            def follows() -> bool:
                agent.events.put(TargetEnded())
                return (after.pid,) in environment.fake.followed

            wait_until(follows, "it follows")
            # The layout was that of the process before.
            assert environment.fake.layouts == ["", "thd.tls=1", ""]
            assert sum("watching" in text for text in environment.said) == 1


OWN = tuple(one for one in triggerfile.defaults().triggers if one.name in EVENTS)


def open_alerts(environment: FakeEnvironment) -> list[tuple[str, ...]]:
    return [alert.triggers for alert in environment.made_alerts.open]


def test_a_stall_is_not_over_before_the_next_server_shows_it(tmp_path: Path) -> None:
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, triggers=(BREACH, *OWN)))
    with child() as before, child() as after:
        found: list[Server] = []

        def find(server: Server) -> Server:
            return found[0] if found else gone(server)

        with running(environment, tmp_path, target=Target(server_of(before.pid), find)) as agent:
            environment.status.value = 100
            wait_until(lambda: environment.of("stall"), "the stall is notified")
            before.kill()
            before.wait()
            both = [("busy",), ("server-ended",)]
            wait_until(lambda: open_alerts(environment) == both, "its end is an alert, too")
            said = agent.metrics.polls
            wait_until(lambda: agent.metrics.polls > said + 5, "it polls")
            assert open_alerts(environment) == both
            environment.status.fails = "not yet"
            found.append(server_of(after.pid))
            wait_until(lambda: open_alerts(environment) == [("busy",)], "a server runs")
            wait_until(lambda: agent.metrics.errors["status"] > 5, "it shows nothing")
            assert open_alerts(environment) == [("busy",)]
            environment.status.value, environment.status.fails = 0, None
            wait_until(lambda: open_alerts(environment) == [], "it shows that all is well")
    ended = next(one for _, one in environment.events if one.is_event)
    assert ended.triggers[0].why.startswith("it ended: killed by SIGKILL")
    assert len(stored(tmp_path)) == 2


def test_a_server_that_was_restarted_while_no_agent_watched_is_an_event(tmp_path: Path) -> None:
    environment = FakeEnvironment(msgspec.structs.replace(SETTINGS, triggers=(BREACH, *OWN)))
    with running(environment, tmp_path, was=TargetEntry(1, "mariadbd", 2)):
        wait_until(lambda: any(one.is_event for _, one in environment.events), "it is said")
        wait_until(lambda: open_alerts(environment) == [], "the one of now runs")
    (incident,) = stored(tmp_path)
    assert incident.triggers[0].why == "it ended while no agent watched it (pid 1)"


def test_a_reload_ends_nothing(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        environment.status.value = 100
        wait_until(lambda: environment.of("stall"), "the stall is notified")
        environment.status.fails = "Access denied"
        environment.settings = msgspec.structs.replace(SETTINGS, captures_an_hour=7)
        agent.events.put(Signal("reload"))
        wait_until(lambda: agent.settings.captures_an_hour == 7, "it has reloaded")
        failed = agent.metrics.errors["status"]
        wait_until(lambda: agent.metrics.errors["status"] > failed + 5, "it knows nothing")
        assert (agent.engine.breached, open_alerts(environment)) == (("busy",), [("busy",)])
        environment.status.value, environment.status.fails = 0, None
        wait_until(lambda: open_alerts(environment) == [], "it is over")


@pytest.mark.large
def test_nothing_of_a_server_that_has_ended_goes_on_with_the_next(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with child() as before:
        target = Target(server_of(before.pid), gone)
        with running(environment, tmp_path, target=target) as agent:
            wait_until(lambda: agent.metrics.polls, "it polls")
            asked = time.monotonic_ns()
            before.kill()
            before.wait()
            # It says so a moment before: what comes in between is of the server's life, too.
            wait_until(lambda: agent.metrics.up.get("server") is False, "it sees the end")
            agent.events.put(Sample("status", time.time_ns(), asked, {"Threads_running": 100.0}))
            late = Sample("status", time.time_ns(), time.monotonic_ns(), {"Threads_running": 100.0})
            agent.events.put(late)
            wait_until(lambda: environment.of("end"), "what still comes is over at once")
            assert agent.engine.breached == ()
            assert agent.metrics.fired == {"busy": 1}, "the older one was of its life"
    (incident,) = stored(tmp_path)
    assert "server-ended" in [note.code for note in incident.notes]


@pytest.mark.parametrize("jump_ns", [-10 * 365 * 86400 * NS, 3600 * NS])
def test_the_wall_clock_may_jump(tmp_path: Path, jump_ns: int) -> None:
    environment, clock = FakeEnvironment(), JumpingClock()
    with running(environment, tmp_path, clock=clock):
        environment.status.value = 100
        wait_until(lambda: environment.of("stall"), "the stall is notified")
        clock.ahead_ns = jump_ns
        environment.status.value = 0
        wait_until(lambda: environment.of("end"), "its end")
        breach(environment, 2)
    found = stored(tmp_path)
    assert len(found) == 2
    assert all(len(incident.captures) == 3 for incident in found)
    assert not any(incident.interrupted for incident in found)
    assert all(0 <= length(incident) < 60 * NS for incident in found)


def test_what_several_collectors_fail_for_is_said_once(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    other = Status()
    other.name = other.thread = "processlist"
    environment.more = (other,)
    with running(environment, tmp_path) as agent:
        errors = agent.metrics.errors
        environment.status.fails = "Access denied"
        wait_until(lambda: errors["status"], "the one fails")
        other.fails = "Access denied; tried again in 60 s"
        wait_until(lambda: errors["processlist"] > 1, "the other does")
        environment.status.fails = other.fails = None
        samples = agent.metrics.samples
        begun = samples["processlist"]
        wait_until(lambda: samples["processlist"] > begun + 1, "the other is back")
        wait_until(lambda: any("again" in text for text in environment.said), "the one is back")
    said = [text for text in environment.said if "status" in text or "processlist" in text]
    assert said == ["status: Access denied", "status: works again"]


def test_triggers_are_read_again_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path) as agent:
        environment.reload_error = "triggers.toml:3: no such key"
        agent.events.put(Signal("reload"))
        wait_until(lambda: environment.said, "it complains")
        assert environment.said == [
            "triggers.toml:3: no such key; keeping the previous configuration"
        ]
        environment.reload_error = None
        calm = msgspec.structs.replace(BREACH, threshold=1000)
        environment.settings = msgspec.structs.replace(SETTINGS, triggers=(calm,))
        agent.events.put(Signal("reload"))
        wait_until(lambda: environment.fake.adapted, "it reads them")
        environment.status.value = 100
        polls = agent.metrics.polls
        wait_until(lambda: agent.metrics.polls > polls + 3, "it polls")
    assert stored(tmp_path) == []


def test_baselines_and_a_new_polling_interval_survive_a_reload(tmp_path: Path) -> None:
    usual = msgspec.structs.replace(BREACH, threshold="9 * baseline(Threads_running)")
    environment = FakeEnvironment(
        msgspec.structs.replace(SETTINGS, poll_interval=60.0, triggers=(usual,))
    )
    with running(environment, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls, "it polls")
        agent.engine.restore_baselines({"busy": [(5.0,) * 60]})
        environment.settings = msgspec.structs.replace(environment.settings, poll_interval=0.05)
        agent.events.put(Signal("reload"))
        wait_until(lambda: environment.fake.adapted, "it reads them")
        assert agent.engine.baselines() == {"busy": [(5.0,) * 60]}
        wait_until(lambda: agent.metrics.polls > 3, "it polls at the new interval")


def test_an_incident_of_a_killed_agent_is_marked(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path):
        breach(environment)
    (incident,) = stored(tmp_path)
    file = tmp_path / "incidents" / incident.id / "incident.json"
    left = msgspec.structs.replace(incident, end_ns=None)
    file.write_bytes(msgspec.json.encode(left))
    (tmp_path / "index.json").unlink(missing_ok=True)
    with running(FakeEnvironment(), tmp_path):
        wait_until(lambda: stored(tmp_path)[0].interrupted, "it is marked")


def test_a_dry_run_captures_nothing(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    with running(environment, tmp_path, plan=Plan(captures=False)) as agent:
        environment.status.value = 100
        wait_until(lambda: agent.fired, "it fires")
    assert stored(tmp_path) == []
    assert any("would fire" in line for line in environment.said)


@pytest.mark.large
def test_a_pass_ends_by_itself_and_finishes_what_it_began(tmp_path: Path) -> None:
    environment = FakeEnvironment()
    environment.status.value = 100
    with running(environment, tmp_path, plan=Plan(seconds=2.0)):
        wait_until(lambda: environment.of("end"), "the pass is over")
    (incident,) = stored(tmp_path)
    assert not incident.interrupted
    assert [note.code for note in incident.notes] == ["pass-ended"]
    assert incident.verdict == FOUND


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> FakeEnvironment:
    """Polls come every hour, and after 0.3 s while a wait is long: for an hour after its line."""
    monkeypatch.setattr(loop, "CONFIRM", 0.3 / 3600)
    monkeypatch.setattr(loop, "HURRY_NS", 3600 * NS)
    twice = msgspec.structs.replace(BREACH, cycles=2)
    hourly = msgspec.structs.replace(SETTINGS, poll_interval=3600.0, triggers=(twice,))
    return FakeEnvironment(hourly)


def test_a_breach_is_sampled_again_soon_while_a_wait_is_long(
    patient: FakeEnvironment, tmp_path: Path
) -> None:
    patient.status.value = 100
    with running(patient, tmp_path) as agent:
        wait_until(lambda: agent.engine.counting, "the first poll")
        _hand_over(agent, _waits(loop.LONG_WAIT_MS - 1))
        assert agent.metrics.polls == 1
        _hand_over(agent, _waits(loop.LONG_WAIT_MS))
        wait_until(lambda: patient.of("stall"), "the second poll")
        assert agent.metrics.polls == 2


def test_the_first_long_wait_is_a_reason_to_poll(patient: FakeEnvironment, tmp_path: Path) -> None:
    with running(patient, tmp_path) as agent:
        wait_until(lambda: agent.engine.states()[0].samples, "the first poll, before the stall")
        patient.status.value = 100
        _hand_over(agent, _waits(loop.LONG_WAIT_MS))
        wait_until(lambda: patient.of("stall"), "two more polls")
        assert agent.metrics.polls == 3
        _hand_over(agent, _waits(loop.LONG_WAIT_MS))
        assert agent.metrics.polls == 3, "it goes on, and is no news"


def test_calls_that_say_so_are_deadlocks_and_waits_are_none(tmp_path: Path) -> None:
    """By what the probe says of a function, not by its name."""
    environment = FakeEnvironment()
    seen = 0

    def deadlock_seen() -> None:
        nonlocal seen
        seen += 1

    def line(**server: Hits) -> WaitsReceived:
        return WaitsReceived(
            WaitLine(SCHEMA, 0.0, 1.0, {}, (), {}, server=server), b"{}", time.monotonic_ns()
        )

    environment.sources = lambda *_: Sources(  # type: ignore[method-assign]
        (environment.status,), deadlock_seen=deadlock_seen
    )
    with running(environment, tmp_path) as agent:
        _hand_over(agent, line(trx_weight_ge=Hits(0, event=True), deadlock_wait=Hits(1)))
        assert seen == 0
        _hand_over(agent, line(trx_weight_ge=Hits(2, event=True), deadlock_wait=Hits(2)))
        assert seen == 1
        _hand_over(agent, line(trx_weight_ge=Hits(2, event=True), deadlock_wait=Hits(3)))
        assert seen == 1


def _hand_over(agent: Agent, waits: WaitsReceived) -> None:
    """Give the agent a line, and wait until it has handled it."""
    handled = threading.Event()
    agent.events.put(waits)
    agent.events.put(Callback(handled.set))
    assert handled.wait(PATIENCE)


def _waits(longest_ms: float) -> WaitsReceived:
    key = Key(1, longest_ms, 0.0, kind="mutex", name="a", longest_in_flight_ms=longest_ms)
    line = WaitLine(SCHEMA, 0.0, 1.0, {}, (key,), {})
    return WaitsReceived(line, b"{}", time.monotonic_ns())
