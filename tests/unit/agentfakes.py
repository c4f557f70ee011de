# SPDX-License-Identifier: Apache-2.0
"""An agent with fakes around its loop: a collector, a backend, verdicts, an environment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stallscope.agent.clock import Clock
from stallscope.agent.environment import Plan
from stallscope.agent.events import CaptureResult, Put, Signal
from stallscope.agent.loop import Agent
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.sources import Sources
from stallscope.agent.target import Target
from stallscope.agent.verdict_process import Answers, VerdictAnswer, VerdictRequest
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes
from stallscope.collectors.processes import NotRunningError, Server
from stallscope.collectors.sql.sessiontexts import Texts
from stallscope.collectors.triggers.settings import AgentSettings, BurstSettings, TriggerSettings
from stallscope.fleet.settings import ShipSettings
from stallscope.fleet.shipping.shipper import Shipper
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Process
from stallscope.model.incident import Incident, TargetEntry, Verdict
from stallscope.model.samples import Sample
from stallscope.model.sessions import Moment, Sessions
from stallscope.model.waitlines import WaitLine
from stallscope.notify.alerts import Alerts, Rules
from stallscope.notify.delivery import Delivery
from stallscope.reporters.exposition import MetricsPage
from stallscope.store import Store, listing, read_incident
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentlog import Messages

__all__ = [
    "BREACH",
    "CAPTURE",
    "FOUND",
    "SETTINGS",
    "FakeBackend",
    "FakeEnvironment",
    "FakeVerdicts",
    "JumpingClock",
    "Status",
    "breach",
    "gone",
    "length",
    "running",
    "server_of",
    "stored",
    "this_server",
]

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
    poll_interval=0.05,
    burst=BurstSettings(captures=3, interval=0.01),
    triggers=(BREACH,),
    disk_bytes_free=0,
    disk_pct_free=0,
)
CAPTURE = Capture("bpf", (Process(4711),), ())
FOUND = Verdict("metadata-lock", "Statements wait", 0.9, 20)


class Status:
    """A collector whose number the test sets."""

    name = thread = "status"
    deadline = 5.0
    interval = rest_interval = 0.0

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


class FakeBackend:
    """Takes captures at once."""

    def __init__(self, put: Put) -> None:
        self.put = put
        self.restarts = 0
        self.takes_bursts = False
        self.followed: list[tuple[int, ...]] = []
        self.adapted: list[AgentSettings] = []
        self.fails: str | None = None
        self.taken: list[str] = []
        self.layouts: list[str] = []
        self.memory: tuple[Moment, ...] = ()

    def start(self, pids: tuple[int, ...]) -> None:
        self.follow(pids)

    def follow(self, pids: tuple[int, ...]) -> None:
        self.followed.append(pids)

    def adapt(self, settings: AgentSettings) -> None:
        self.adapted.append(settings)

    def use_layout(self, text: str) -> None:
        self.layouts.append(text)

    def capture(self, key: str, path: Path) -> None:
        if self.fails is not None:
            self.put(CaptureResult(None, time.monotonic_ns(), key=key, error=self.fails))
            return
        capturefile.write(CAPTURE, path)
        self.taken.append(key)
        self.put(CaptureResult(str(path), time.monotonic_ns(), key=key, memory=self.memory))

    def close(self) -> None: ...


class FakeVerdicts(VerdictProcess):
    def __init__(self, verdict: Verdict | None = FOUND, *notes: str) -> None:
        super().__init__()
        self.verdict = verdict
        self.notes = notes
        self.asked: list[VerdictRequest] = []

    def analyze(self, requests: Sequence[VerdictRequest], done: Callable[[Answers], None]) -> None:
        asked = [request for request in requests if not request.known]
        self.asked += asked
        each = tuple(
            VerdictAnswer(request.path, self.verdict, notes=self.notes, version="10.11.19")
            for request in asked
        )
        done(Answers(each, self.verdict))


class JumpingClock(Clock):
    """A wall clock that the test moves; lengths are still those of the machine."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def wall_ns(self) -> int:
        return time.time_ns() + self.ahead_ns


class FakeEnvironment:
    """What surrounds the loop, and what it was notified of."""

    def __init__(self, settings: AgentSettings = SETTINGS) -> None:
        self.settings = settings
        self.status = Status()
        self.made: FakeBackend | None = None
        self.said: list[str] = []
        self.events: list[tuple[str, Incident]] = []
        self.stored_when_notified: list[bool] = []
        self.lost: list[tuple[str, Incident]] = []
        """Events of incidents that could not be stored."""
        self.reload_error: str | None = None
        self.texts: Callable[[], Texts] | None = None
        self.sessions: Callable[[], Sessions] | None = None
        self.more: tuple[Status, ...] = ()
        self.layout: str | None = None
        self.made_alerts = Alerts(Delivery(None, ()), Rules(2.0, 20, ""))
        self.made_shipper = Shipper(Path("/nowhere"), ShipSettings())
        self.page: MetricsPage | None = None

    def sources(
        self, server: Server, settings: AgentSettings, use_layout: Callable[[str], None]
    ) -> Sources:
        if self.layout is not None:
            use_layout(self.layout)
        return Sources((self.status, *self.more), self.sessions, texts=self.texts)

    def shipper(self) -> Shipper:
        return self.made_shipper

    def backend(self, settings: AgentSettings, put: Put) -> FakeBackend:
        self.made = FakeBackend(put)
        return self.made

    @property
    def fake(self) -> FakeBackend:
        assert self.made is not None
        return self.made

    def reload(self) -> AgentSettings:
        if self.reload_error is not None:
            raise StallscopeError(self.reload_error)
        return self.settings

    def alerts(self) -> Alerts:
        return self.made_alerts

    def notify(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        if incident is not None and folder is None:
            self.lost.append((event, incident))
        if incident is not None and folder is not None and event != "fire":
            self.stored_when_notified.append((folder / "incident.json").is_file())
            self.events.append((event, incident))

    def count_waits(self, line: WaitLine) -> None: ...

    def publish(self, metrics: AgentMetrics) -> Callable[[], None] | None:
        if self.page is not None:
            self.page.put(self, metrics.families())
        return None

    def failures(self) -> dict[str, int]:
        return {}

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
    environment: FakeEnvironment,
    dest: Path,
    *,
    plan: Plan | None = None,
    verdicts: VerdictProcess | None = None,
    clock: Clock | None = None,
    target: Target | None = None,
    was: TargetEntry | None = None,
) -> Iterator[Agent]:
    """Run an agent in a thread until the block ends; its end must be quick."""
    store = Store.open(dest)
    spool = dest / "spool"
    spool.mkdir(exist_ok=True)
    agent = Agent(
        plan or Plan(),
        environment.settings,
        target or Target(this_server(), gone),
        store,
        spool,
        environment,
        verdicts or FakeVerdicts(),
        clock or Clock(),
    )
    agent.kept.was = was
    thread = threading.Thread(target=agent.run)
    log = Messages()
    log.messages = environment.said
    log.__enter__()
    thread.start()
    try:
        yield agent
    finally:
        agent.events.put(Signal("stop"))
        begun = time.monotonic()
        thread.join(PATIENCE)
        waited = time.monotonic() - begun
        environment.status.gate.set()
        log.__exit__()
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


def breach(environment: FakeEnvironment, count: int = 1) -> None:
    """Breach, wait for the announcement, and make it over."""
    environment.status.value = 100
    wait_until(lambda: len(environment.of("stall")) >= count, "the stall is notified")
    environment.status.value = 0
    wait_until(lambda: len(environment.of("end")) >= count, "its end is notified")
