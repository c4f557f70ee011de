# SPDX-License-Identifier: Apache-2.0
"""Incidents as a state machine: each transition, and what no sequence of events may break."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stallscope.agent.clock import NS
from stallscope.agent.events import CaptureResult, QueryResult
from stallscope.agent.incident import MAX_CAPTURES, MAX_FAILED, NOT_ANALYZED, State
from stallscope.agent.incidents import Incidents
from stallscope.agent.messages import (
    AnalyzeCaptures,
    BackendReady,
    CaptureLost,
    CapturesAnalyzed,
    CaptureStored,
    CloseFolder,
    Command,
    DiskChecked,
    DropCapture,
    FetchSessions,
    FetchTexts,
    FolderLost,
    IncidentEvent,
    Moment,
    Notify,
    OpenFolder,
    PassEnded,
    Polled,
    SaveIncident,
    ServerEnded,
    Shutdown,
    StoreCapture,
    StoreTexts,
    TakeCapture,
    TriggerFired,
)
from stallscope.agent.verdict_process import VerdictAnswer
from stallscope.collectors.sql.sessiontexts import Texts
from stallscope.collectors.triggers.settings import AgentSettings, BurstSettings, TriggerSettings
from stallscope.model.capture import Trigger
from stallscope.model.incident import Fired, TargetEntry, Verdict
from stallscope.model.sessions import Sessions

RECOVERY = 10
SETTINGS = AgentSettings(
    burst=BurstSettings(captures=2, interval=0.1),
    captures_an_hour=40,
    triggers=(
        TriggerSettings("busy", run_time=RECOVERY, sleep=0),
        TriggerSettings("jam", run_time=RECOVERY, sleep=60),
    ),
)
FOUND = Verdict("metadata-lock", "Statements wait", 0.9, 20)
OTHER = Verdict("fsync", "The disk is slow", 0.9, 200)


class Driver:
    """Incidents, the time, and the commands that are still to be done."""

    def __init__(self, settings: AgentSettings = SETTINGS) -> None:
        self.incidents = Incidents(settings)
        self.ns = 1000 * NS
        self.commands: list[Command] = []
        self.files = 0
        self.due: list[Command] = []
        """What the incidents wait for."""

    def handle(self, event: IncidentEvent) -> list[Command]:
        found = self.incidents.handle(event, Moment(self.ns, self.ns + 7 * NS))
        self.commands += found
        waited_for = (TakeCapture, FetchSessions, FetchTexts, StoreCapture, AnalyzeCaptures)
        self.due += [command for command in found if isinstance(command, waited_for)]
        return found

    @property
    def state(self) -> State | None:
        """The state of the incident that began last."""
        machines = self.incidents._all()
        newest = max((one.number for one in machines), default=0)
        return next((one.state for one in machines if one.number == newest), None)

    def of(self, event: str) -> list[Notify]:
        return [c for c in self.commands if isinstance(c, Notify) and c.event == event]

    def file(self) -> str:
        self.files += 1
        return f"/spool/{self.files}"

    def do(self, command: Command, *, ok: bool = True, verdict: Verdict | None = FOUND) -> None:
        """Do what the incidents wait for."""
        self.due.remove(command)
        match command:
            case TakeCapture(key) if ok:
                self.handle(CaptureResult(self.file(), self.ns, key=key))
            case TakeCapture(key):
                self.handle(CaptureResult(None, self.ns, key=key, error="the probe has died"))
            case FetchSessions(key):
                found = Sessions(()) if ok else None
                self.handle(QueryResult(key, found, None if ok else "no answer"))
            case FetchTexts(key):
                texts = Texts({"processlist": "x"}, ("lock-waits: no",))
                self.handle(QueryResult(key, texts if ok else None, None if ok else "no answer"))
            case StoreCapture(_, key, _, entry) if ok:
                named = msgspec.structs.replace(entry, file=f"captures/{key}")
                self.handle(CaptureStored(key, named))
            case StoreCapture(_, key):
                self.handle(CaptureLost(key, "No space left on device"))
            case AnalyzeCaptures(incident, requests):
                error = None if ok else "killed"
                answers = tuple(
                    (one.key, VerdictAnswer(one.file, verdict if ok else None, error))
                    for one in requests
                )
                self.handle(CapturesAnalyzed(incident, answers, verdict if ok else None))

    def do_all(self, *, ok: bool = True, verdict: Verdict | None = FOUND) -> None:
        """Do all that is waited for, and what follows from it."""
        while self.due:
            self.do(self.due[0], ok=ok, verdict=verdict)

    def poll(self, seconds: float = 0.2, *, breached: bool = True) -> None:
        self.ns += round(seconds * NS)
        self.handle(Polled(breached, None if breached else self.ns))

    def fire(self, trigger: str = "busy", capture: CaptureResult | None = None) -> None:
        fired = Fired(trigger, "Threads_running 100 > 10", self.ns)
        target = TargetEntry(4711, "mariadbd")
        self.handle(TriggerFired(fired, self.ns - 1, target, capture))


def fire(driver: Driver) -> None:
    driver.fire()


def wait_fires(driver: Driver) -> None:
    """A wait fires, whose capture is there already."""
    wait = Trigger("threshold", "mutex", length_ms=1000.0, finished_ms=1.0)
    driver.fire("jam", CaptureResult(driver.file(), driver.ns, wait=wait))


def captured(driver: Driver) -> None:
    driver.do_all()


def burst(driver: Driver) -> None:
    """The whole burst is taken, stored and analyzed."""
    for _ in range(SETTINGS.burst.captures + 1):
        driver.do_all()
        driver.poll()
    driver.do_all()


def fails(driver: Driver) -> None:
    """Captures fail until nothing waits for them any more."""
    for _ in range(MAX_FAILED):
        for command in [c for c in driver.due if isinstance(c, TakeCapture)]:
            driver.do(command, ok=False)
        driver.poll(5)
    assert any(isinstance(c, TakeCapture) for c in driver.due), "it is tried again"


def calm(driver: Driver) -> None:
    driver.poll(breached=False)


def breached(driver: Driver) -> None:
    driver.poll()


def recovered(driver: Driver) -> None:
    driver.poll(breached=False)
    driver.poll(RECOVERY + 1, breached=False)


def quarter_hour(driver: Driver) -> None:
    driver.poll(901)


def full_disk(driver: Driver) -> None:
    driver.handle(DiskChecked("the disk is full"))


def lost(driver: Driver) -> None:
    assert driver.incidents.open is not None
    driver.handle(FolderLost(driver.incidents.open, "No space left on device"))


def after_recovery(driver: Driver) -> None:
    """Fires again when the recovery is still recorded, but the stall long over."""
    driver.poll(4, breached=False)
    driver.fire()


def of(event: IncidentEvent) -> Callable[[Driver], None]:
    return lambda driver: (driver.handle(event), None)[1]


server_ended, pass_ended, shutdown = of(ServerEnded()), of(PassEnded()), of(Shutdown())


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([fire], State.CAPTURING),
        ([wait_fires], State.CAPTURING),
        ([full_disk, fire], State.ONGOING),
        ([fire, captured], State.CAPTURING),
        ([fire, calm], State.CAPTURING),
        ([fire, burst], State.ONGOING),
        ([fire, full_disk, captured, breached], State.ONGOING),
        ([fire, fails], State.RETRYING),
        ([fire, fails, captured], State.CAPTURING),
        ([fire, fails, calm], State.RECOVERING),
        ([fire, fails, full_disk, captured, breached], State.ONGOING),
        ([fire, fails, server_ended], State.CLOSING),
        ([fire, burst, calm], State.RECOVERING),
        ([fire, burst, calm, breached], State.ONGOING),
        ([fire, burst, calm, fire], State.ONGOING),
        ([fire, burst, calm, after_recovery], State.CAPTURING),
        ([fire, burst, lost, fire], State.CAPTURING),
        ([fire, burst, recovered], None),
        ([fire, burst, quarter_hour], None),
        ([fire, quarter_hour], State.CLOSING),
        ([fire, quarter_hour, captured, breached, captured, breached], None),
        ([fire, server_ended], State.CLOSING),
        ([fire, server_ended, captured, breached, captured, breached], None),
        ([fire, server_ended, quarter_hour], None),
        ([fire, burst, pass_ended], State.CLOSING),
        ([fire, burst, calm, pass_ended], State.CLOSING),
        ([fire, pass_ended, shutdown], None),
        ([fire, shutdown], None),
        ([fire, fails, shutdown], None),
        ([fire, burst, shutdown], None),
        ([fire, burst, calm, shutdown], None),
    ],
)
def test_transitions(steps: Sequence[Callable[[Driver], None]], state: State | None) -> None:
    driver = Driver()
    for step in steps:
        step(driver)
    assert driver.state is state


def test_a_notification_is_decided_and_the_capture_asked_for_before_all_else() -> None:
    driver = Driver()
    driver.fire()
    kinds = [type(command) for command in driver.commands]
    assert kinds == [Notify, TakeCapture, FetchSessions, OpenFolder, Notify]
    assert [command.event for command in driver.commands if isinstance(command, Notify)] == [
        "open",
        "fire",
    ]


def wait_lasts(driver: Driver) -> None:
    """A wait that fires no trigger has a capture of the probe."""
    wait = Trigger("threshold", "mutex", length_ms=1000.0, finished_ms=1.0)
    driver.handle(CaptureResult(driver.file(), driver.ns, wait=wait))


@pytest.mark.parametrize("more", [wait_fires, wait_lasts])
def test_a_full_disk_takes_in_no_capture_of_the_probe(more: Callable[[Driver], None]) -> None:
    driver = Driver()
    full_disk(driver)
    driver.fire()
    more(driver)
    assert [c.path for c in driver.commands if isinstance(c, DropCapture)] == ["/spool/1"]
    assert not any(isinstance(command, StoreCapture) for command in driver.commands)


def test_a_capture_without_a_verdict_says_why_it_has_no_sessions() -> None:
    driver = Driver()
    driver.fire()
    driver.do(next(one for one in driver.due if isinstance(one, TakeCapture)))
    driver.do(next(one for one in driver.due if isinstance(one, StoreCapture)))
    driver.handle(Shutdown())
    (end,) = driver.of("end")
    assert [entry.sessions for entry in end.value.captures] == [NOT_ANALYZED]
    driver = Driver()
    driver.fire()
    while driver.due:
        driver.do(driver.due[0], ok=not isinstance(driver.due[0], AnalyzeCaptures))
        driver.poll()
    driver.handle(Shutdown())
    (end,) = driver.of("end")
    assert {entry.sessions for entry in end.value.captures} == {NOT_ANALYZED}


@pytest.mark.parametrize("ends", [recovered, pass_ended])
def test_the_recovery_is_no_part_of_the_stall(ends: Callable[[Driver], None]) -> None:
    driver = Driver()
    breached_ns = driver.ns - 1
    driver.fire()
    burst(driver)
    driver.poll(breached=False)
    calm_ns = driver.ns
    driver.poll(RECOVERY / 2, breached=False)
    ends(driver)
    driver.poll()
    (end,) = driver.of("end")
    assert end.value.end_ns is not None
    assert end.value.end_ns - end.value.start_ns == calm_ns - breached_ns
    assert not end.value.interrupted


@pytest.mark.parametrize("steps", [[fire, fails], [full_disk, fire, breached]])
def test_no_notification_waits_for_captures_that_do_not_come(
    steps: Sequence[Callable[[Driver], None]],
) -> None:
    driver = Driver()
    for step in steps:
        step(driver)
    assert len(driver.of("stall")) == 1
    full_disk(driver)
    recovered(driver)
    assert len(driver.of("stall")) == 1


def test_an_incident_without_a_folder_is_notified_and_writes_nothing() -> None:
    driver = Driver()
    driver.fire()
    lost(driver)
    driver.do_all(ok=False)
    for _ in range(20):
        driver.poll(5)
        driver.do_all(ok=False)
    recovered(driver)
    assert [one.stored for one in (*driver.of("stall"), *driver.of("end"))] == [False, False]
    assert not any(isinstance(c, CloseFolder | SaveIncident) for c in driver.commands)


def test_what_an_earlier_agent_has_captured_is_an_incident_without_captures() -> None:
    driver = Driver()
    earlier = Driver()
    earlier.fire("jam")
    driver.incidents.last_fired |= earlier.incidents.last_fired
    driver.ns += 30 * NS
    wait_fires(driver)
    assert [type(c) for c in driver.commands if isinstance(c, DropCapture)] == [DropCapture]
    (opened,) = [c for c in driver.commands if isinstance(c, OpenFolder)]
    assert not opened.records
    recovered(driver)
    assert [[note.code for note in end.value.notes] for end in driver.of("end")] == [["suppressed"]]
    driver.ns += 31 * NS
    wait_fires(driver)
    assert [c.records for c in driver.commands if isinstance(c, OpenFolder)] == [False, True]


def test_a_stall_that_goes_on_is_no_other_incident_within_the_sleep() -> None:
    driver = Driver()
    driver.fire("jam")
    burst(driver)
    recovered(driver)
    before = driver.incidents.found
    event = TriggerFired(
        Fired("jam", "why", 0), driver.ns, TargetEntry(4711, "mariadbd"), goes_on=True
    )
    driver.handle(event)
    assert (driver.incidents.open, driver.incidents.found) == (None, before)
    driver.ns += 61 * NS
    driver.handle(event)
    assert driver.incidents.found == before + 1


def test_a_storm_is_bounded() -> None:
    driver = Driver()
    for number in range(200):
        driver.fire(f"t{number}")
        driver.poll(1)
        driver.do_all()
    recovered(driver)
    (end,) = driver.of("end")
    assert len(end.value.captures) == MAX_CAPTURES
    assert len(end.value.triggers) == 100
    assert "more-triggers" in [note.code for note in end.value.notes]


def test_answers_that_come_twice_change_nothing() -> None:
    driver = Driver()
    driver.fire()
    burst(driver)
    asked = [c for c in driver.commands if isinstance(c, TakeCapture | StoreCapture)]
    (analysis,) = [c for c in driver.commands if isinstance(c, AnalyzeCaptures)]
    before = len(driver.commands)
    for command in asked:
        driver.due.append(command)
        driver.do(command)
    driver.due.append(analysis)
    driver.do(analysis, verdict=OTHER)
    driver.poll()
    later = driver.commands[before:]
    assert [type(c) for c in later if isinstance(c, DropCapture)] == [DropCapture] * 2
    assert not any(isinstance(c, StoreCapture | AnalyzeCaptures | Notify) for c in later)


def test_nothing_is_tried_again_for_an_incident_that_is_closing() -> None:
    driver = Driver()
    driver.fire()
    server_ended(driver)
    driver.do_all(ok=False)
    driver.poll(30)
    assert not driver.due
    assert driver.incidents.next_ns == math.inf
    assert driver.state is None


def test_an_incident_that_is_lost_waits_for_nothing_at_its_end() -> None:
    driver = Driver()
    driver.fire()
    lost(driver)
    server_ended(driver)
    driver.poll()
    assert driver.due, "a capture is still being taken"
    assert driver.state is None


class AnySequence(RuleBasedStateMachine):
    """Events in any order, with answers that come, fail, come twice, or never come."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(msgspec.structs.replace(SETTINGS, captures_an_hour=8))

    @rule(
        trigger=st.sampled_from(["busy", "jam", "unknown"]),
        capture=st.sampled_from(["none", "taken", "failed"]),
    )
    def fires(self, trigger: str, capture: str) -> None:
        wait = Trigger("threshold", "mutex", length_ms=1000.0, finished_ms=1.0, suppressed=2)
        result = None
        if capture == "taken":
            result = CaptureResult(self.driver.file(), self.driver.ns, wait=wait)
        elif capture == "failed":
            result = CaptureResult(None, self.driver.ns, wait=wait, error="too late")
        self.driver.fire(trigger, result)

    @rule()
    def strays_come(self) -> None:
        self.driver.handle(CaptureResult(self.driver.file(), self.driver.ns))

    @rule(
        seconds=st.sampled_from([0.0, 0.2, 1.0, 4.0, 20.0, 100.0, 1000.0]), breached=st.booleans()
    )
    def polls(self, seconds: float, breached: bool) -> None:
        self.driver.poll(seconds, breached=breached)

    @precondition(lambda self: self.driver.due)
    @rule(data=st.data(), ok=st.booleans(), verdict=st.sampled_from([FOUND, OTHER, None]))
    def answers(self, data: st.DataObject, ok: bool, verdict: Verdict | None) -> None:
        self.driver.do(data.draw(st.sampled_from(self.driver.due)), ok=ok, verdict=verdict)

    @rule(ok=st.booleans())
    def answers_all(self, ok: bool) -> None:
        self.driver.do_all(ok=ok)

    @precondition(lambda self: self.driver.commands)
    @rule(data=st.data())
    def answers_again(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.driver.commands))
        self.driver.due.insert(0, command)
        self.driver.do(command)

    @precondition(lambda self: self.driver.incidents.open)
    @rule()
    def folder_is_lost(self) -> None:
        number = self.driver.incidents.open
        assert number is not None
        self.driver.handle(FolderLost(number, "No space left on device"))

    @rule(
        event=st.sampled_from(
            [
                DiskChecked("full"),
                DiskChecked(None),
                BackendReady(),
                ServerEnded(),
                PassEnded(),
            ]
        )
    )
    def happens(self, event: IncidentEvent) -> None:
        self.driver.handle(event)

    @invariant()
    def no_file_is_taken_twice(self) -> None:
        taken = Counter(
            c.path for c in self.driver.commands if isinstance(c, StoreCapture | DropCapture)
        )
        assert all(count == 1 for count in taken.values())
        assert len(taken) == self.driver.files, "a file was forgotten"

    @invariant()
    def nothing_follows_the_end(self) -> None:
        ended: set[int] = set()
        for command in self.driver.commands:
            number = getattr(command, "incident", None)
            assert number not in ended, command
            if isinstance(command, Notify) and command.event == "end":
                ended.add(command.incident)

    @invariant()
    def what_is_open_began(self) -> None:
        opened = {c.incident for c in self.driver.commands if isinstance(c, OpenFolder)}
        assert {one.number for one in self.driver.incidents._all()} <= opened
        assert all(one.state is not State.CLOSED for one in self.driver.incidents._all())

    def teardown(self) -> None:
        self.driver.handle(Shutdown())
        commands = self.driver.commands
        opened = Counter(c.incident for c in commands if isinstance(c, OpenFolder))
        closed = Counter(c.incident for c in commands if isinstance(c, CloseFolder))
        ended = {c.incident: c for c in commands if isinstance(c, Notify) and c.event == "end"}
        stalls = {c.incident for c in commands if isinstance(c, Notify) and c.event == "stall"}
        assert all(count == 1 for count in opened.values())
        assert opened.keys() == ended.keys() == stalls
        assert closed == Counter(n for n, notify in ended.items() if notify.stored)
        assert not self.driver.incidents.busy
        assert not any(isinstance(c, StoreTexts) and c.incident not in opened for c in commands)


TestAnySequence = pytest.mark.large(AnySequence.TestCase)
