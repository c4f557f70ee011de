# SPDX-License-Identifier: Apache-2.0
"""stallscope is not in its own output: neither its connections nor what they make the server do.
All that others make it do is there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from stallscope.analyzers import catalog
from stallscope.collectors import processes, waits
from stallscope.collectors.ownthreads import Ignoring
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.model.waitlines import WaitLine
from stallscope.screens.events import Analyzed, Event, WaitsSeen
from stallscope.screens.live import LiveOptions, LiveSource
from stallscope.screens.sessions import Asking
from stallscope.store import read_incident
from stallscope.store.reading import StoredIncident
from tests.support.agents import CHECKOUT, AgentProcess, agent
from tests.support.servers import PATIENCE, MariaDB118, SqlServer, wait_until
from tests.support.watching import Waits

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

ASKED = 20
LISTS = (
    "SELECT * FROM information_schema.PROCESSLIST",
    "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'mysql'",
    "SHOW GLOBAL STATUS",
    "SHOW ENGINE INNODB STATUS",
)
"""Statements for which old servers make temporary tables on the disk."""
TEMPORARY = (
    "CREATE TEMPORARY TABLE made.others ENGINE=MyISAM SELECT 1 AS a",
    "DROP TEMPORARY TABLE made.others",
)


@pytest.fixture(
    params=[pytest.param("mariadb118", marks=pytest.mark.nightly), "mysql97", "mysql55"]
)
def server(request: pytest.FixtureRequest) -> SqlServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SqlServer)
    return found


@pytest.fixture(scope="module")
def mariadb118(require: Callable[..., None]) -> Iterator[MariaDB118]:
    require("mariadb118")
    with MariaDB118() as server:
        yield server


def ask_much(session: SqlSession) -> None:
    for statement in LISTS:
        session.select(statement)


class Reading:
    """A probe, all of whose waits are events, that ignores our connections' threads."""

    def __init__(self, watch: Waits, server: SqlServer) -> None:
        self.watch = watch
        self._ignoring = Ignoring(watch.say)
        self._ignoring.begin((server.pid,))

    @property
    def tids(self) -> frozenset[int]:
        return self._ignoring.tids

    def line(self) -> WaitLine:
        """Return the next line."""
        while True:
            self._ignoring.tick()
            said = self.watch.read()
            assert said is not None
            if isinstance(said, WaitLine):
                return said
            assert self._ignoring.answered(said), said

    def lines_until(self, done: threading.Event) -> list[WaitLine]:
        lines = []
        while not done.is_set():
            lines.append(self.line())
        return [*lines, self.line()]

    def close(self) -> None:
        self._ignoring.close()


@contextmanager
def reading(server: SqlServer) -> Iterator[Reading]:
    options = ("--interval", "100", "--threshold", "0", "--events", "--top", "1000")
    with Waits(*options, pids=(server.pid,)) as watch, closing(Reading(watch, server)) as found:
        yield found
        watch.say("quit")
        while watch.read():
            continue


@contextmanager
def working(work: list[object]) -> Iterator[threading.Event]:
    done = threading.Event()

    def run() -> None:
        try:
            for call in work:
                assert callable(call)
                call()
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield done
    thread.join()


def test_no_wait_is_of_our_connection(server: SqlServer) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS made")
    with (
        closing(Connection(Login(user="root", socket=str(server.socket)))) as connection,
        reading(server) as probe,
    ):
        connection.open(PATIENCE)
        wait_until(lambda: probe.line() and probe.tids, "our thread is known")
        (ours,) = probe.tids
        with working([lambda: connection.ask(ask_much, PATIENCE)] * ASKED) as done:
            lines = probe.lines_until(done)
        assert ours not in {event.tid for line in lines for event in line.events}
        named = {key.name for line in lines for key in line.keys if key.count and key.name}
        assert not [name for name in named if "#sql" in name]

        with working([lambda: server.execute(*TEMPORARY)] * 3) as done:
            lines = probe.lines_until(done)
        named = {key.name for line in lines for key in line.keys if key.count and key.name}
        assert [name for name in named if "#sql" in name]


TRIGGER = """\
defaults = false
[[trigger]]
name = "many"
variable = "Threads_connected"
threshold = 20
cycles = 1
clear = 20
clear-cycles = 1
sleep = 1
run-time = 1
"""
MANY = 20
QUIET_LINES = 20


def temporary_files(line: WaitLine) -> list[str]:
    return [key.name for key in line.keys if key.count and key.name and "#sql" in key.name]


def stored_files(incident: StoredIncident, since_ns: int) -> list[str]:
    found = (line for line in incident.waits() if isinstance(line, WaitLine))
    lines = [line for line in found if line.ts * 1e9 >= since_ns]
    assert lines
    return [name for line in lines for name in temporary_files(line)]


def make_incident(server: SqlServer, watch: AgentProcess) -> None:
    """Have the agent keep an incident: it asks for all connections then."""
    ended = len(watch.of("end"))
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(closing(server.connect()))
        watch.wait(lambda: len(watch.of("stall")) > ended, "incident")
    watch.wait(lambda: len(watch.of("end")) > ended, "end of the incident")


def test_nothing_of_the_agent_is_in_its_incidents_or_in_waits(
    server: SqlServer, tmp_path: Path
) -> None:
    triggers = tmp_path / "triggers.toml"
    triggers.write_text(TRIGGER)
    server.execute("CREATE DATABASE IF NOT EXISTS made")
    options = ("--always-on", "--triggers", triggers, "--poll-interval", 0.2)
    with agent(server, tmp_path / "store", *options) as watch:
        make_incident(server, watch)
        with closing(waits.watch((server.pid,), waits.Options(0.2, top=1000), print)) as lines:
            for _ in range(QUIET_LINES):
                next(lines)
            make_incident(server, watch)
            for _ in range(QUIET_LINES):
                assert not temporary_files(next(lines)[0])
            server.execute(*TEMPORARY)
            wait_until(lambda: temporary_files(next(lines)[0]), "line with the others' table")
        make_incident(server, watch)
    kept = [read_incident(folder) for folder in sorted((tmp_path / "store/incidents").iterdir())]
    # In the first its connections may be too young to be known; each has the minute before, too.
    since_ns = kept[1].incident.start_ns
    assert [bool(stored_files(incident, since_ns)) for incident in kept[1:]] == [False, True]


def test_the_doctor_counts_our_connections(server: SqlServer, tmp_path: Path) -> None:
    def counted() -> str:
        words = ("doctor", "-p", str(server.pid), "--json")
        argv = [sys.executable, "-m", "stallscope", *words]
        done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, timeout=PATIENCE)
        checks = json.loads(done.stdout)["checks"]
        (found,) = [check for check in checks if check["name"] == "own-connections"]
        assert found["status"] == "ok"
        return str(found["what"])

    assert counted().startswith("stallscope has 1 connection, this one:")
    with agent(server, tmp_path / "store"):  # it has two: one is for the heartbeat
        wait_until(
            lambda: counted().startswith("stallscope has 3 connections, with this one:"),
            "both connections of the agent are counted",
        )


def test_top_does_not_show_what_it_makes_the_server_do(server: SqlServer) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS made")
    asking = Asking(Login(user="root", socket=str(server.socket)), 1.0)
    pids, servers = processes.resolve([str(server.pid)], processes.Selector())
    options = LiveOptions(interval=0.2, captures=0.5)
    seen: list[Event] = []
    with closing(LiveSource(pids, servers, catalog.load([]), options, asking)) as source:
        source.start(seen.append)

        def captures() -> int:
            return sum(isinstance(event, Analyzed) for event in seen)

        def files(begin: int) -> list[str]:
            lines = [event.line for event in seen[begin:] if isinstance(event, WaitsSeen)]
            return [name for line in lines for name in temporary_files(line)]

        wait_until(lambda: captures() > 1, "its connection is known")
        begin, before = len(seen), captures()
        wait_until(lambda: captures() > before + 4, "four more captures, with all connections")
        assert not files(begin)
        server.execute(*TEMPORARY)
        wait_until(lambda: files(begin), "line with the others' table")
