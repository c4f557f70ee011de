# SPDX-License-Identifier: Apache-2.0
"""The loops of several servers: failures, hangs, reloads, servers that do not run, systemd."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.agent import supervisor as supervising
from stallscope.agent.environment import Plan
from stallscope.agent.events import Callback
from stallscope.agent.loop import Agent
from stallscope.agent.supervisor import Policy, Supervisor, WatchedServer
from stallscope.agent.systemd import ServiceManager
from stallscope.agent.target import Target
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors.processes import NotRunningError, Server
from stallscope.store import Store
from stallscope.store.locking import Locked
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentfakes import (
    SETTINGS,
    FakeEnvironment,
    FakeVerdicts,
    breach,
    gone,
    stored,
    this_server,
)
from tests.unit.agentlog import Messages


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(supervising, "LOOK_SECONDS", 0.05)


class Fleet:
    """A supervisor of agents with fakes around their loops, run in a thread."""

    def __init__(self, dest: Path, *names: str) -> None:
        self.store = Store.open(dest)
        self.environments = {name: FakeEnvironment() for name in names}
        self.finds: dict[str, Callable[[], Server]] = {}
        self.policy = Policy()
        self.plan = Plan()
        self.load: Callable[[], None] = lambda: None
        self.service = ServiceManager({})
        self.error: Exception | None = None
        self.log = Messages()

    def _watched(self, name: str) -> WatchedServer:
        @contextlib.contextmanager
        def make(server: Server, watched: WatchedServer) -> Iterator[Agent]:
            spool = self.store.dest / "spool" / name
            spool.mkdir(parents=True, exist_ok=True)
            yield Agent(
                self.plan,
                SETTINGS,
                Target(server, gone),
                self.store,
                spool,
                self.environments[name],
                FakeVerdicts(),
            )

        return WatchedServer(name, lambda: self.finds.get(name, this_server)(), make)

    @contextlib.contextmanager
    def running(self) -> Iterator[Supervisor]:
        servers = [self._watched(name) for name in self.environments]
        made = Supervisor(servers, self.policy, lambda: self.load(), self.service)

        def run() -> None:
            try:
                made.run()
            except Exception as error:
                self.error = error

        thread = threading.Thread(target=run)
        with self.log:
            thread.start()
            try:
                yield made
            finally:
                made.ask("stop")
                thread.join(PATIENCE)
        assert not thread.is_alive()

    def said(self, text: str) -> bool:
        return any(text in message for message in list(self.log.messages))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, "one", "two")


def states(supervisor: Supervisor) -> list[str]:
    return [server.state for server in supervisor.servers]


def all_watch(supervisor: Supervisor) -> None:
    wait_until(lambda: set(states(supervisor)) == {"watching"}, "all are watched")


def test_each_server_has_a_loop(fleet: Fleet) -> None:
    with fleet.running() as supervisor:
        all_watch(supervisor)
        for environment in fleet.environments.values():
            breach(environment)
        assert supervisor.problems() == []
    assert len(stored(fleet.store.dest)) == 2
    assert states(supervisor) == ["ended", "ended"]
    assert fleet.error is None


def test_a_loop_that_fails_is_started_again_and_others_go_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fleet.environments["one"]
    fixed = threading.Event()
    normal = broken.sources

    def sources(*args: object) -> object:
        if not fixed.is_set():
            raise RuntimeError("a bug")
        return normal(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(broken, "sources", sources)
    with fleet.running() as supervisor:
        one, two = supervisor.servers
        wait_until(lambda: one.failures >= 5, "it was started again")
        wait_until(lambda: _threads_of("one") <= 3, "threads of loops that failed have ended")
        breach(fleet.environments["two"])
        wait_until(lambda: one.state == "failed", "it failed")
        (problem,) = supervisor.problems()
        assert "one: the loop failed and is started again: RuntimeError: a bug" in problem
        fixed.set()
        all_watch(supervisor)
        breach(broken)
        assert two.failures == 0
    first = next(message for message in fleet.log.messages if "the loop failed" in message)
    assert "RuntimeError: a bug [" in first
    assert "loop.py:" in first
    assert " sources]" in first
    assert "\n" not in first


def _threads_of(server: str) -> int:
    return sum(thread.name.startswith(f"{server}/") for thread in threading.enumerate())


ONCE = Policy(waits=False, skips=True, restarts=False)
NONE = NotRunningError("no process named mysqld")


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        (Policy(), UsageError("no option file"), None),
        (Policy(restarts=False), ZeroDivisionError("a bug"), None),
        (Policy(waits=False), NONE, None),
        (ONCE, NONE, "no process named mysqld; nothing to watch"),
        (ONCE, Locked("the previous pass runs"), "the previous pass runs; exiting"),
    ],
)
def test_an_error_at_the_start_ends_the_only_server(
    tmp_path: Path, policy: Policy, error: Exception, said: str | None
) -> None:
    fleet = Fleet(tmp_path, "one")
    fleet.policy = policy

    def refuse() -> Server:
        raise error

    fleet.finds["one"] = refuse
    with fleet.running() as supervisor:
        wait_until(lambda: states(supervisor) == ["ended"], "it has ended")
    if said is None:
        assert fleet.error is error
    else:
        assert (fleet.error, fleet.log.messages) == (None, [said])


def test_an_error_of_one_of_several_is_tried_again(fleet: Fleet) -> None:
    refused = True

    def refuse() -> Server:
        if refused:
            raise UsageError("no option file")
        return this_server()

    fleet.finds["one"] = refuse
    with fleet.running() as supervisor:
        wait_until(lambda: supervisor.servers[0].failures >= 3, "it is tried again")
        assert len([one for one in fleet.log.messages if "no option file" in one]) == 1
        refused = False
        all_watch(supervisor)
    assert fleet.error is None


def test_a_server_that_does_not_run_is_waited_for(fleet: Fleet) -> None:
    there = threading.Event()
    error: StallscopeError = NotRunningError("no process named mysqld")

    def find() -> Server:
        if there.is_set():
            return this_server()
        raise error

    fleet.finds["one"] = find
    with fleet.running() as supervisor:
        one, two = supervisor.servers
        wait_until(lambda: (one.state, two.state) == ("waiting", "watching"), "it waits")
        assert supervisor.problems() == []
        error = StallscopeError("2 servers answer to mysqld: … give --port")
        wait_until(lambda: fleet.said("2 servers answer"), "the choice is logged")
        there.set()
        all_watch(supervisor)
    waiting = [message for message in fleet.log.messages if "waiting for " in message]
    assert len(waiting) == 2, "each reason is logged once"
    assert fleet.error is None
    assert one.failures == 0


def test_all_loops_end_at_the_plans_end(fleet: Fleet) -> None:
    fleet.plan = Plan(seconds=0.2)
    with fleet.running() as supervisor:
        wait_until(lambda: states(supervisor) == ["ended", "ended"], "both have ended")
    assert fleet.error is None


def test_a_loop_that_is_stuck_keeps_no_run_from_its_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(supervising, "END_SECONDS", 0.2)
    fleet.policy = Policy(restarts=False)
    gate = threading.Event()
    with fleet.running() as supervisor:
        all_watch(supervisor)
        for server in supervisor.servers:
            assert server.agent is not None
            server.agent.events.put(Callback(lambda: _hang(gate)))
        wait_until(lambda: fleet.said("two: the loop did not end in time"), "it is left")
        gate.set()
    assert fleet.error is None


def test_a_reload_reaches_all_loops_and_a_bad_file_changes_nothing(fleet: Fleet) -> None:
    with fleet.running() as supervisor:
        all_watch(supervisor)
        supervisor.ask("reload")
        fakes = [environment.fake for environment in fleet.environments.values()]
        wait_until(lambda: all(fake.adapted for fake in fakes), "both have reloaded")

        def refuse() -> None:
            raise UsageError("x.toml:3: wrong")

        fleet.load = refuse
        supervisor.ask("reload")
        wait_until(lambda: fleet.said("x.toml:3: wrong; keeping the previous"), "it is refused")
        assert [len(fake.adapted) for fake in fakes] == [1, 1]


def test_a_thread_that_fails_is_logged_and_counted(fleet: Fleet) -> None:
    def fail() -> None:
        raise OSError("a bug")

    with fleet.running() as supervisor:
        all_watch(supervisor)
        thread = threading.Thread(target=fail, name="helper")
        thread.start()
        thread.join()
        assert supervisor.failed_threads == 1
    assert fleet.said("the thread helper failed: OSError: a bug [")


class Manager:
    """A service manager: it receives what a service says."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self.said: list[str] = []
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._end.bind("\0" + address[1:] if address.startswith("@") else address)
        self.environment = {"NOTIFY_SOCKET": address, "WATCHDOG_PID": str(os.getpid())}
        if watchdog is not None:
            self.environment["WATCHDOG_USEC"] = str(round(watchdog * 1e6))
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        while text := self._end.recv(4096).decode():
            self.said.append(text)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self._end.getsockname())
        self._thread.join()
        self._end.close()

    def count(self, text: str) -> int:
        return list(self.said).count(text)

    def wait_said(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.count(text) >= count, text)


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    abstract = getattr(request, "param", False)
    name = f"@stallscope-test-{os.getpid()}" if abstract else f"{tmp_path}/notify"
    made = Manager(name, watchdog=6.0)
    yield made
    made.close()


@pytest.mark.parametrize("manager", [False, True], indirect=True, ids=["path", "abstract"])
def test_systemd_hears_of_start_reload_and_end(fleet: Fleet, manager: Manager) -> None:
    fleet.service = ServiceManager(manager.environment)
    assert manager.environment == {}, "children of the agent are not the service"
    missing = threading.Event()

    def find() -> Server:
        if missing.is_set():
            return this_server()
        raise NotRunningError("no process named mysqld")

    def refuse() -> None:
        raise UsageError("wrong")

    fleet.finds["two"] = find
    with fleet.running() as supervisor:
        manager.wait_said("READY=1\nSTATUS=watching one; waiting for two")
        manager.wait_said("WATCHDOG=1")
        missing.set()
        manager.wait_said("STATUS=watching one, two")
        supervisor.ask("reload")
        manager.wait_said("READY=1\nSTATUS=watching one, two")
        assert any(text.startswith("RELOADING=1\nMONOTONIC_USEC=") for text in manager.said)
        fleet.load = refuse
        supervisor.ask("reload")
        manager.wait_said("READY=1\nSTATUS=watching one, two", 2)
    manager.wait_said("STOPPING=1")
    assert manager.count("STOPPING=1") == 1


HANGS = "one: the loop has not moved for "


def test_a_loop_that_hangs_is_named_and_the_watchdog_is_not_served(
    fleet: Fleet, manager: Manager
) -> None:
    fleet.service = ServiceManager(manager.environment)
    gate = threading.Event()
    with fleet.running() as supervisor:
        all_watch(supervisor)
        one = supervisor.servers[0].agent
        assert one is not None
        one.events.put(Callback(lambda: _hang(gate)))

        def hangs() -> bool:
            return any(problem.startswith(HANGS) for problem in supervisor.problems())

        wait_until(hangs, "the hang is noticed")
        breach(fleet.environments["two"])
        served = manager.count("WATCHDOG=1")
        breach(fleet.environments["two"], 2)
        assert manager.count("WATCHDOG=1") == served
        gate.set()
        wait_until(lambda: not supervisor.problems(), "it moves again")
        manager.wait_said("WATCHDOG=1", served + 1)
    said = [message for message in fleet.log.messages if message.startswith(HANGS)]
    assert any(" _hang" in message for message in said), "the log says where"
    assert fleet.said("one: the loop moves again")


def _hang(gate: threading.Event) -> None:
    gate.wait(PATIENCE)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "@none", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "1000000"},
    ],
)
def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    expected = "WATCHDOG_PID" not in environment and environment.get("NOTIFY_SOCKET", "r")[0] != "r"
    manager = ServiceManager(environment)
    assert (manager.watchdog_seconds is not None) == expected
    manager.ready("x")
    manager.alive()
    manager.stopping()
