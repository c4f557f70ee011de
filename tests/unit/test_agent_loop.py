# SPDX-License-Identifier: Apache-2.0
"""The loop with a world of fakes around it: incidents, limits, signals, clocks, storms."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from stallscope import capturefile
from stallscope.agent import capturing
from stallscope.agent.clock import NS, Clock
from stallscope.agent.loop import Agent, Plan
from stallscope.agent.news import Asked, ProbeState, Put, Shot, TargetEnded
from stallscope.agent.sources import Sources
from stallscope.agent.target import Target
from stallscope.agent.verdict_process import Judged, Request
from stallscope.agent.verdicts import Judge
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.processes import NotRunningError, Server
from stallscope.collectors.sql.texts import Texts
from stallscope.collectors.triggers import state
from stallscope.collectors.triggers.settings import AgentSettings, BurstSettings, TriggerSettings
from stallscope.incident import Incident, Verdict
from stallscope.model import Capture, Note, Process, Trigger
from stallscope.samples import Sample
from stallscope.store import Store, listing, read_incident
from stallscope.waitlines import WaitLine
from tests.support.servers.waiting import PATIENCE, wait_until

__all__: list[str] = []

BREACH = TriggerSettings(
    "busy",
    variable="Threads_running",
    threshold=10,
    cycles=1,
    clear_cycles=1,
    interval=0,
    sleep=0,
    run_time=0,
)
SETTINGS = AgentSettings(
    poll=0.05,
    burst=BurstSettings(captures=3, interval=0.01),
    triggers=(BREACH,),
    disk_bytes_free=0,
    disk_pct_free=0,
)
CAPTURE = Capture("bpf", (Process(4711),), ())
FOUND = Verdict("metadata-lock", "Statements wait", 0.9, 20)


class Status:
    """A collector whose number the test sets."""

    name = lane = "status"
    deadline = 5.0
    interval = 0.0

    def __init__(self) -> None:
        self.value = 0.0
        self.fails: str | None = None
        self.gate = threading.Event()
        self.gate.set()

    def collect(self) -> Sample:
        self.gate.wait(PATIENCE)
        if self.fails is not None:
            raise StallscopeError(self.fails)
        values = {"Threads_running": self.value}
        return Sample(self.name, time.time_ns(), time.monotonic_ns(), values)

    def close(self) -> None: ...


class Eye:
    """Takes captures at once."""

    def __init__(self, put: Put) -> None:
        self.put = put
        self.restarts = 0
        self.followed: list[tuple[int, ...]] = []
        self.adapted: list[AgentSettings] = []
        self.fails: str | None = None
        self.taken: list[str] = []

    def start(self, pids: tuple[int, ...]) -> None:
        self.follow(pids)

    def follow(self, pids: tuple[int, ...]) -> None:
        self.followed.append(pids)

    def adapt(self, settings: AgentSettings) -> None:
        self.adapted.append(settings)

    def snap(self, key: str, path: Path) -> None:
        if self.fails is not None:
            self.put(Shot(None, time.monotonic_ns(), key=key, error=self.fails))
            return
        capturefile.write(CAPTURE, path)
        self.taken.append(key)
        self.put(Shot(str(path), time.monotonic_ns(), key=key))

    def close(self) -> None: ...


class FakeJudge(Judge):
    def __init__(self, verdict: Verdict | None = FOUND, *notes: str) -> None:
        super().__init__()
        self.verdict = verdict
        self.notes = notes
        self.asked: list[Request] = []

    def judge(
        self, requests: Sequence[Request], done: Callable[[tuple[Judged, ...]], None]
    ) -> None:
        self.asked += requests
        done(
            tuple(
                Judged(request.path, self.verdict, notes=self.notes, version="10.11.19")
                for request in requests
            )
        )


class JumpingClock(Clock):
    """A wall clock that the test moves; lengths are still those of the machine."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def wall_ns(self) -> int:
        return time.time_ns() + self.ahead_ns


class World:
    """All that is outside, and what it was told."""

    def __init__(self, settings: AgentSettings = SETTINGS) -> None:
        self.settings = settings
        self.status = Status()
        self.made: Eye | None = None
        self.said: list[str] = []
        self.events: list[tuple[str, Incident]] = []
        self.stored_when_told: list[bool] = []
        self.reload_error: str | None = None
        self.texts: Callable[[], Texts] | None = None
        self.more: tuple[Status, ...] = ()

    def sources(self, server: Server, settings: AgentSettings) -> Sources:
        return Sources((self.status, *self.more), texts=self.texts)

    def eye(self, settings: AgentSettings, put: Put) -> Eye:
        self.made = Eye(put)
        return self.made

    @property
    def camera(self) -> Eye:
        assert self.made is not None
        return self.made

    def reload(self) -> AgentSettings:
        if self.reload_error is not None:
            raise StallscopeError(self.reload_error)
        return self.settings

    def tell(self, text: str) -> None:
        self.said.append(text)

    def event(self, name: str, incident: Incident | None, folder: Path | None) -> None:
        if incident is not None and folder is not None and name != "fire":
            self.stored_when_told.append((folder / "incident.json").is_file())
            self.events.append((name, incident))

    def line(self, line: WaitLine) -> None: ...

    def metrics(self, text: bytes) -> None: ...

    def failures(self) -> int:
        return 0

    def of(self, name: str) -> list[Incident]:
        return [incident for event, incident in list(self.events) if event == name]


def this_server() -> Server:
    """Return this very process, which runs for as long as the test does."""
    return server_of(os.getpid())


def server_of(pid: int) -> Server:
    info = processes.read(pid)
    assert info is not None
    return Server(info, (info.pid,))


def gone(server: Server) -> Server:
    raise NotRunningError("it is gone")


@contextmanager
def running(
    world: World,
    dest: Path,
    *,
    plan: Plan | None = None,
    judge: Judge | None = None,
    clock: Clock | None = None,
    target: Target | None = None,
) -> Iterator[Agent]:
    """Run an agent in a thread until the block ends; its end must be quick."""
    store = Store.open(dest)
    spool = dest / "spool"
    spool.mkdir(exist_ok=True)
    agent = Agent(
        plan or Plan(),
        world.settings,
        target or Target(this_server(), gone, world.tell),
        store,
        spool,
        world,
        judge or FakeJudge(),
        clock or Clock(),
    )
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield agent
    finally:
        agent.inbox.put(Asked("stop"))
        begun = time.monotonic()
        thread.join(PATIENCE)
        waited = time.monotonic() - begun
        world.status.gate.set()
        assert not thread.is_alive()
        assert waited < PATIENCE / 2, "it has waited for a collector that hangs"


def stored(dest: Path) -> list[Incident]:
    return [
        read_incident(dest / "incidents" / summary.id).incident
        for summary in listing(dest).incidents
    ]


def length(incident: Incident) -> int:
    assert incident.end_ns is not None
    return incident.end_ns - incident.start_ns


def breach(world: World, count: int = 1) -> None:
    """Breach, wait for the announcement, and make it over."""
    world.status.value = 100
    wait_until(lambda: len(world.of("stall")) >= count, "the stall is told")
    world.status.value = 0
    wait_until(lambda: len(world.of("end")) >= count, "its end is told")


def test_a_breach_is_one_incident_with_a_burst_and_a_verdict(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path):
        wait_until(lambda: world.camera.followed, "it has begun")
        breach(world)
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
    assert all(world.stored_when_told)
    assert (tmp_path / "incidents" / incident.id / "samples.jsonl.zst").is_file()


def test_the_servers_texts_are_kept_once_an_incident(tmp_path: Path) -> None:
    world = World()
    pictures: list[int] = []

    def texts() -> Texts:
        pictures.append(len(world.camera.taken))
        return Texts({"processlist": "12 others\n"}, ("lock-waits: no answer since 1.0 s",))

    world.texts = texts
    with running(world, tmp_path):
        breach(world)
    (incident,) = stored(tmp_path)
    assert pictures == [3], "after the burst, whose connections they would delay"
    folder = read_incident(tmp_path / "incidents" / incident.id)
    assert folder.texts() == {"processlist": "12 others\n"}
    assert incident.notes == (Note("no-text", "lock-waits: no answer since 1.0 s"),)


def test_texts_that_do_not_come_are_said_to_be_missing(tmp_path: Path) -> None:
    world = World()

    def texts() -> Texts:
        raise StallscopeError("Access denied")

    world.texts = texts
    with running(world, tmp_path):
        breach(world)
    (incident,) = stored(tmp_path)
    assert incident.notes == (Note("no-texts", "Access denied"),)


def test_what_the_server_does_not_tell_is_said_once(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path, judge=FakeJudge(FOUND, "the owners are not told")):
        breach(world)
    (incident,) = stored(tmp_path)
    assert len(incident.captures) == 3
    assert incident.notes == (Note("not-told", "the owners are not told"),)


def test_stalls_one_after_the_other_are_incidents_of_their_own(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path):
        breach(world)
        breach(world, 2)
    assert len(stored(tmp_path)) == 2


RECOVERY = 6.0


@pytest.mark.parametrize("seconds", [None, 3.0], ids=["watch", "pass-ends-before-the-recovery"])
def test_the_recovery_is_no_part_of_the_stall(tmp_path: Path, seconds: float | None) -> None:
    slow = msgspec.structs.replace(BREACH, run_time=RECOVERY)
    world = World(msgspec.structs.replace(SETTINGS, triggers=(slow,)))
    begun = time.monotonic_ns()
    with running(world, tmp_path, plan=Plan(seconds=seconds)):
        world.status.value = 100
        wait_until(lambda: world.of("stall"), "the stall is told")
        world.status.value = 0
        lasted = time.monotonic_ns() - begun
        wait_until(lambda: world.of("end"), "its end is told")
        recorded = time.monotonic_ns() - begun
    (incident,) = stored(tmp_path)
    assert not incident.interrupted
    if seconds is None:
        assert recorded > lasted + RECOVERY * NS
    # The look that finds it over comes a poll later, and is late where the machine is busy.
    assert length(incident) < lasted + RECOVERY * NS / 2


def test_a_trigger_whose_collector_fails_for_good_lets_its_incident_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LOST_NS", NS // 10)
    world = World()
    with running(world, tmp_path) as agent:
        world.status.value = 100
        wait_until(lambda: world.of("stall"), "the stall is told")
        world.status.fails = "Access denied"
        wait_until(lambda: world.of("end"), "its end")
        assert agent.engine.breached == ()
    (incident,) = stored(tmp_path)
    assert not incident.interrupted
    assert "trigger-unknown" in [note.code for note in incident.notes]


def test_a_stop_amid_an_incident_leaves_it_interrupted(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path):
        world.status.value = 100
        wait_until(lambda: world.of("stall"), "the stall is told")
    (incident,) = stored(tmp_path)
    assert incident.interrupted
    assert incident.end_ns is not None
    assert incident.verdict == FOUND


def test_no_more_captures_an_hour_than_allowed(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, captures_an_hour=4)
    world = World(settings)
    with running(world, tmp_path):
        breach(world)
        breach(world, 2)
        world.status.value = 100
        wait_until(lambda: any("nothing is captured" in s for s in world.said), "it refuses")
    first, second = stored(tmp_path)
    assert len(first.captures) == 3
    assert len(second.captures) == 1
    assert second.suppressed == 1


def test_a_full_disk_takes_nothing_and_is_said(tmp_path: Path) -> None:
    world = World(msgspec.structs.replace(SETTINGS, disk_pct_free=100))
    with running(world, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls > 3, "it looks")
        world.status.value = 100
        wait_until(lambda: any("disk-pct-free" in s for s in world.said), "it refuses")
    assert stored(tmp_path) == []


def test_a_capture_that_fails_is_noted_and_the_incident_stays(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path):
        wait_until(lambda: world.made, "it has begun")
        world.camera.fails = "the probe has died"
        world.status.value = 100
        wait_until(lambda: stored(tmp_path), "the incident is stored")
        world.status.value = 0
        wait_until(lambda: world.of("end"), "its end")
    (incident,) = stored(tmp_path)
    assert incident.captures == ()
    assert any(note.message == "the probe has died" for note in incident.notes)


def test_a_capture_that_fails_is_tried_again_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "RETRY_NS", NS // 1000)
    monkeypatch.setattr(capturing, "LONGEST_RETRY_NS", NS // 100)
    world = World(msgspec.structs.replace(SETTINGS, captures_an_hour=3))
    with running(world, tmp_path) as agent:
        wait_until(lambda: world.made, "it has begun")
        world.camera.fails = "the probe reads symbols"
        world.status.value = 100
        wait_until(lambda: agent.metrics.captures["failed"] > 60, "it fails again and again")
        world.camera.fails = None
        wait_until(lambda: world.of("stall"), "the stall is told")
        world.status.value = 0
        wait_until(lambda: world.of("end"), "its end")
    (incident,) = stored(tmp_path)
    assert len(incident.captures) == 3, "those that failed are none of the three of an hour"
    assert incident.verdict == FOUND


def test_a_capture_that_failed_is_taken_as_soon_as_the_probe_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "RETRY_NS", 3600 * NS)
    monkeypatch.setattr(capturing, "LONGEST_RETRY_NS", 3600 * NS)
    world = World()
    with running(world, tmp_path) as agent:
        wait_until(lambda: world.made, "it has begun")
        world.camera.fails = "the probe is not ready yet"
        world.status.value = 100
        wait_until(lambda: agent.metrics.captures["failed"], "it fails")
        world.camera.fails = None
        agent.inbox.put(ProbeState(ready=True))
        wait_until(lambda: world.of("stall"), "the stall is told")
    (incident,) = stored(tmp_path)
    assert len(incident.captures) == 3


def test_what_an_incident_turns_out_to_be_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "LEAST_APART_NS", 0)
    more = msgspec.structs.replace(BREACH, name="jam", threshold=1000)
    world = World(msgspec.structs.replace(SETTINGS, triggers=(BREACH, more)))
    judge = FakeJudge(None)
    with running(world, tmp_path, judge=judge) as agent:
        world.status.value = 100
        wait_until(lambda: world.of("stall"), "it is told")
        judge.verdict = FOUND
        world.status.value = 2000
        wait_until(lambda: len(world.of("stall")) == 2, "it is told again")
        world.status.value = 0
        wait_until(lambda: world.of("end"), "its end")
        assert agent.metrics.incidents == {"none": 1, "metadata-lock": 1}
        assert (agent.capturing.found, agent.capturing.stalls) == (1, 1)
    (incident,) = stored(tmp_path)
    assert incident.verdict == FOUND
    assert [one.verdict for one in world.of("stall")] == [None, FOUND]
    assert {one.id for one in world.of("stall")} == {incident.id}
    assert len(world.of("end")) == 1


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


def test_a_server_that_is_back_when_the_probe_tells_of_its_end_is_taken_up(tmp_path: Path) -> None:
    world = World(msgspec.structs.replace(SETTINGS, poll=60.0))
    with child() as before, child() as after:
        found: list[Server] = []

        def find(server: Server) -> Server:
            return found[0] if found else gone(server)

        target = Target(server_of(before.pid), find, world.tell)
        with running(world, tmp_path, target=target) as agent:
            wait_until(lambda: agent.metrics.polls, "it looks")
            before.kill()
            before.wait()
            agent.inbox.put(TargetEnded())
            wait_until(lambda: any("has ended" in text for text in world.said), "it sees the end")
            found.append(server_of(after.pid))

            def follows() -> bool:
                agent.inbox.put(TargetEnded())
                return (after.pid,) in world.camera.followed

            wait_until(follows, "it follows")
            assert sum("watching" in text for text in world.said) == 1


def test_nothing_of_a_server_that_has_ended_goes_on_with_the_next(tmp_path: Path) -> None:
    world = World()
    with child() as before:
        target = Target(server_of(before.pid), gone, world.tell)
        with running(world, tmp_path, target=target) as agent:
            wait_until(lambda: agent.metrics.polls, "it looks")
            asked = time.monotonic_ns()
            before.kill()
            before.wait()
            wait_until(lambda: any("has ended" in text for text in world.said), "it sees the end")
            agent.inbox.put(Sample("status", time.time_ns(), asked, {"Threads_running": 100.0}))
            path = tmp_path / "spool" / "late.jsonl.zst"
            capturefile.write(CAPTURE, path)
            late = Sample("status", time.time_ns(), time.monotonic_ns(), {"Threads_running": 100.0})
            agent.inbox.put(late)
            wait_until(lambda: world.of("end"), "what still comes is over at once")
            assert agent.engine.breached == ()
            assert agent.metrics.fired == {"busy": 1}, "the older one was of its life"
    (incident,) = stored(tmp_path)
    assert "server-ended" in [note.code for note in incident.notes]


@pytest.mark.parametrize("jump_ns", [-10 * 365 * 86400 * NS, 3600 * NS])
def test_the_wall_clock_may_jump(tmp_path: Path, jump_ns: int) -> None:
    world, clock = World(), JumpingClock()
    with running(world, tmp_path, clock=clock):
        world.status.value = 100
        wait_until(lambda: world.of("stall"), "the stall is told")
        clock.ahead_ns = jump_ns
        world.status.value = 0
        wait_until(lambda: world.of("end"), "its end")
        breach(world, 2)
    found = stored(tmp_path)
    assert len(found) == 2
    assert all(len(incident.captures) == 3 for incident in found)
    assert not any(incident.interrupted for incident in found)
    assert all(0 <= length(incident) < 60 * NS for incident in found)


def test_thousands_of_triggers_a_second_are_one_incident(tmp_path: Path) -> None:
    storm = tuple(msgspec.structs.replace(BREACH, name=f"t{n}") for n in range(200))
    world = World(msgspec.structs.replace(SETTINGS, triggers=storm))
    with running(world, tmp_path) as agent:
        wait_until(lambda: world.made, "it has begun")
        shots = tmp_path / "shots"
        shots.mkdir()
        world.status.value = 100
        wait_until(lambda: world.of("stall"), "the stall is told")
        for number in range(2000):  # captures of waits, as fast as they can be told of
            path = shots / f"{number}.jsonl.zst"
            path.write_bytes(b"")
            wait = Trigger("threshold", "mutex", length_ms=1000.0, finished_ms=1.0)
            agent.inbox.put(Shot(str(path), time.monotonic_ns(), wait=wait))
        wait_until(lambda: not list(shots.iterdir()), "each was taken or dropped")
        looks = agent.metrics.polls
        wait_until(lambda: agent.metrics.polls > looks, "it looks again")
        world.status.value = 0
        wait_until(lambda: world.of("end"), "its end")
    (incident,) = stored(tmp_path)
    assert len(incident.captures) <= 20
    assert len(incident.triggers) <= 100
    assert sum(agent.metrics.fired.values()) >= 200


def test_a_collector_that_never_returns_stops_nothing(tmp_path: Path) -> None:
    world = World()
    world.status.gate.clear()
    with running(world, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls > 5, "it looks all the same")


def test_what_several_collectors_fail_for_is_said_once(tmp_path: Path) -> None:
    world = World()
    other = Status()
    other.name = other.lane = "processlist"
    world.more = (other,)
    with running(world, tmp_path) as agent:
        errors = agent.metrics.errors
        world.status.fails = "Access denied"
        wait_until(lambda: errors["status"], "the one fails")
        other.fails = "Access denied; tried again in 60 s"
        wait_until(lambda: errors["processlist"] > 1, "the other does")
        world.status.fails = other.fails = None
        samples = agent.metrics.samples
        begun = samples["processlist"]
        wait_until(lambda: samples["processlist"] > begun + 1, "the other is back")
        wait_until(lambda: any("again" in text for text in world.said), "the one is back")
    said = [text for text in world.said if "status" in text or "processlist" in text]
    assert said == ["status: Access denied", "status: it answers again"]


def test_triggers_are_read_again_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path) as agent:
        world.reload_error = "triggers.toml:3: no such key"
        agent.inbox.put(Asked("reload"))
        wait_until(lambda: world.said, "it complains")
        assert world.said == ["triggers.toml:3: no such key; what was read before holds on"]
        world.reload_error = None
        calm = msgspec.structs.replace(BREACH, threshold=1000)
        world.settings = msgspec.structs.replace(SETTINGS, triggers=(calm,))
        agent.inbox.put(Asked("reload"))
        wait_until(lambda: world.camera.adapted, "it reads them")
        world.status.value = 100
        looks = agent.metrics.polls
        wait_until(lambda: agent.metrics.polls > looks + 3, "it looks")
    assert stored(tmp_path) == []


def test_what_was_learnt_and_another_poll_survive_a_reload(tmp_path: Path) -> None:
    usual = msgspec.structs.replace(BREACH, threshold="9 * baseline(Threads_running)")
    world = World(msgspec.structs.replace(SETTINGS, poll=60.0, triggers=(usual,)))
    with running(world, tmp_path) as agent:
        wait_until(lambda: agent.metrics.polls, "it looks")
        agent.engine.recall({"busy": [(5.0,) * 60]})
        world.settings = msgspec.structs.replace(world.settings, poll=0.05)
        agent.inbox.put(Asked("reload"))
        wait_until(lambda: world.camera.adapted, "it reads them")
        assert agent.engine.learnt() == {"busy": [(5.0,) * 60]}
        wait_until(lambda: agent.metrics.polls > 3, "it looks at the new pace")


def test_an_incident_of_a_killed_agent_is_marked(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path):
        breach(world)
    (incident,) = stored(tmp_path)
    file = tmp_path / "incidents" / incident.id / "incident.json"
    left = msgspec.structs.replace(incident, end_ns=None)
    file.write_bytes(msgspec.json.encode(left))
    (tmp_path / "index.json").unlink(missing_ok=True)
    with running(World(), tmp_path):
        wait_until(lambda: stored(tmp_path)[0].interrupted, "it is marked")


def test_a_dry_run_captures_nothing(tmp_path: Path) -> None:
    world = World()
    with running(world, tmp_path, plan=Plan(captures=False)) as agent:
        world.status.value = 100
        wait_until(lambda: agent.fired, "it fires")
    assert stored(tmp_path) == []
    assert any("would fire" in line for line in world.said)


def test_a_pass_ends_by_itself_and_finishes_what_it_began(tmp_path: Path) -> None:
    world = World()
    world.status.value = 100
    with running(world, tmp_path, plan=Plan(seconds=2.0)):
        wait_until(lambda: world.of("end"), "the pass is over")
    (incident,) = stored(tmp_path)
    assert not incident.interrupted
    assert [note.code for note in incident.notes] == ["pass-ended"]
    assert incident.verdict == FOUND
