# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to the server, the disk or the agent: nothing is torn, nothing is harmed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pymysql
import pytest

from stallscope.agent.incident import NOT_ANALYZED
from stallscope.collectors import processes
from stallscope.model import capturefile
from stallscope.model.incident import Incident
from stallscope.store import listing, read_incident
from tests.live.shots import unharmed
from tests.support.agents import AgentProcess, agent, incidents
from tests.support.chance import SEED
from tests.support.servers import MEMORY, MariaDB, SqlServer, program, wait_until
from tests.support.stalls import global_read_lock, metadata_lock_pileup
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits", "mariadb")]

KILLS = int(os.environ.get("STALLSCOPE_KILLS", "24"))
"""Each moment of a writer is tried without processes in test_store_power."""
AT_ONCE = 2
"""Agents, each with a store of its own: much of a life is waiting for the server and the kernel."""
NOTIFIED_FIRST = 4
"""One of so many is killed right after it has notified of an incident."""
LATE_SESSIONS = ("no answer", "does not answer", NOT_ANALYZED)
TOO_MANY_CONNECTIONS = 1040  # ER_CON_COUNT_ERROR
LONGEST_LIFE = 0.4
"""Seconds from when the agent is ready: a burst lasts half as long."""
ALWAYS = """\
defaults = false
poll-interval = 0.05
captures-an-hour = 100000
disk-bytes-free = 0
disk-pct-free = 0
[burst]
captures = 20
interval = 0.01
[[trigger]]
name = "always"
variable = "heartbeat.ms"
threshold = 0
cycles = 1
sleep = 0
run-time = 0
"""


@pytest.fixture
def server(mariadb: MariaDB) -> SqlServer:
    return mariadb


def wait_beats(server: SqlServer) -> None:
    """Wait until a heartbeat of the agent was answered: another was sent after it."""
    before = server.status("Com_do")  # other agents may have been there
    wait_until(lambda: server.status("Com_do") >= before + 2, "the agent has its answers")


def verdicts(watch: AgentProcess) -> list[str | None]:
    """Return the signatures of the stalls that it has notified of."""
    return [(one.get("verdict") or {}).get("signature") for one in watch.of("stall")]


def test_a_server_that_hangs_is_captured_though_sql_never_answers(
    server: SqlServer, tmp_path: Path
) -> None:
    with unharmed(server), agent(server, tmp_path) as watch:
        wait_beats(server)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            watch.wait(lambda: watch.of("stall"), "stall")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        watch.wait_said("works again")
        # The server counts a client that ends before its late answers have come.
        wait_beats(server)
        assert watch.stop() == 0
    (incident,) = incidents(tmp_path)
    assert incident.triggers[0].trigger == "no-answer"
    assert incident.captures
    # It says why, also where the connections are from the server's memory.
    noted = any("from the server's memory" in note.message for note in incident.notes)
    assert noted or all(entry.sessions for entry in incident.captures)


def test_all_connections_are_taken_and_writes_are_locked(tmp_path: Path) -> None:
    with (
        MariaDB("--max-connections=30", parent=MEMORY) as server,
        agent(server, tmp_path) as watch,
    ):
        wait_beats(server)
        with global_read_lock(server, 20), all_connections(server):
            watch.wait(lambda: "global-read-lock" in verdicts(watch), "global-read-lock")
        assert watch.stop() == 0
        assert trouble(server.pid) == []
        wait_until(server.answers, "connections that were closed are free")
    (incident,) = incidents(tmp_path)
    complete = [entry for entry in incident.captures if entry.sessions is None]
    assert complete, [entry.sessions for entry in incident.captures]
    capture = capturefile.read(folder_of(tmp_path, incident) / complete[0].file)
    assert any(thread.query for thread in capture.threads)


@contextmanager
def all_connections(server: SqlServer) -> Iterator[None]:
    """Take every connection that is free, with the one that is for SUPER."""
    with ExitStack() as stack:
        try:
            while True:
                stack.enter_context(closing(server.connect()))
        except pymysql.err.OperationalError as error:
            if error.args[0] != TOO_MANY_CONNECTIONS:
                raise
        yield


def folder_of(dest: Path, incident: Incident) -> Path:
    return dest / "incidents" / incident.id


def test_an_upgrade_is_followed(tmp_path: Path) -> None:
    """The program file is replaced while it runs, then the server is started again."""
    copy = tmp_path / "bin" / "mariadbd"
    copy.parent.mkdir()
    tmp_path.chmod(0o755)
    shutil.copy(str(program("mariadbd")), copy)
    with (
        # In memory: a disk that is slow is a stall of its own.
        MariaDB(executable=str(copy), parent=MEMORY) as server,
        agent(server, tmp_path / "store", "--datadir", server.data) as watch,
    ):
        before = server.pid
        newer = copy.with_suffix(".new")
        shutil.copy(copy, newer)
        newer.rename(copy)
        with metadata_lock_pileup(server):
            watch.wait(lambda: "metadata-lock" in verdicts(watch), "metadata-lock")
        server.shut_down()
        watch.wait_said("; waiting for it")
        server.start()
        watch.wait_said(f"watching mariadbd (pid {server.pid}, another program file)")
        with global_read_lock(server):
            watch.wait(lambda: "global-read-lock" in verdicts(watch), "global-read-lock")
        assert trouble(server.pid) == []
        assert watch.stop() == 0
        found = incidents(tmp_path / "store")
        assert [one.target.pid for one in found] == [before, before, server.pid]
        assert found[1].triggers[0].why == "it ended: it shut down, exit code 0"


def test_a_refused_password_leaves_the_probe(server: SqlServer, tmp_path: Path) -> None:
    server.execute("CREATE OR REPLACE USER known IDENTIFIED BY 'secret'")
    options = tmp_path / "my.cnf"
    options.write_text("[client]\nuser=known\npassword=wrong\n")
    options.chmod(0o600)
    with agent(server, tmp_path / "store", "--defaults-file", options) as watch:
        watch.wait_said("Access denied")
        with metadata_lock_pileup(server), unharmed(server):
            watch.wait(lambda: "metadata-lock" in verdicts(watch), "metadata-lock")
        said = [line for line in watch.said if "Access denied" in line]
        assert watch.stop() == 0
    # Once for each collector, and not at every poll.
    assert len(said) <= 6, said
    assert not any("wrong" in line for line in watch.said)
    (incident,) = incidents(tmp_path / "store")
    reasons = [entry.sessions for entry in incident.captures if entry.sessions]
    # Where they are from memory, a note has the reason.
    reasons += [note.message for note in incident.notes if "connections" in note.message]
    assert any("Access denied" in one for one in reasons), reasons
    # Where the machine is busy the refusal can be late, or the agent ends before it.
    allowed = ("Access denied", *LATE_SESSIONS)
    assert all(any(why in one for why in allowed) for one in reasons), reasons


def whole(dest: Path) -> set[str]:
    """Assert that everything in the store can be read; return the ids of the incidents."""
    found = listing(dest, rebuild=True)
    for summary in found.incidents:
        stored = read_incident(dest / "incidents" / summary.id)
        for entry in stored.incident.captures:
            path = dest / "incidents" / summary.id / entry.file
            assert path.is_file(), entry
        for file in (dest / "incidents" / summary.id / "captures").glob("[0-9]*.jsonl*"):
            capturefile.read(file)
    return {summary.id for summary in found.incidents}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_killed_at_any_moment_during_captures(server: SqlServer, tmp_path: Path) -> None:
    triggers = tmp_path / "triggers.toml"
    triggers.write_text(ALWAYS)
    chances = [random.Random(SEED + number) for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        futures = [
            threads.submit(kill_again_and_again, server, tmp_path / f"store-{n}", triggers, chance)
            for n, chance in enumerate(chances)
        ]
        cut_short = sum(future.result() for future in futures)
    assert server.answers()
    assert cut_short, "no kill met a capture"


def kill_again_and_again(
    server: SqlServer, dest: Path, triggers: Path, chance: random.Random
) -> int:
    """Kill the agents of one store; return how many had a capture half done."""
    announced: set[str] = set()
    members: list[int] = []
    cut_short = 0
    lives = KILLS // AT_ONCE
    for number in range(lives):
        with agent(server, dest, "--triggers", triggers) as watch:
            watch.wait(lambda: list(dest.glob("incidents/2*")) or watch.events, "an incident")
            if number % NOTIFIED_FIRST == 0:
                watch.wait(lambda: watch.of("stall"), "stall")
            else:
                wait_for_life(watch, (number + chance.random()) / lives * LONGEST_LIFE)
            members = watch.members()
            watch.kill()
            announced |= {one["id"] for one in watch.of("stall")}
        cut_short += bool(list((dest / "spool").glob("*/*")))
        assert trouble(server.pid) == [], number
        if number % 10 == 9:
            assert announced <= whole(dest)
    assert announced <= whole(dest)
    # What they have in the spool the next agent removes, but for a capture that is still written.
    wait_until(lambda: not any(map(runs, members)), "its probe has ended")
    leftovers = [i for i in incidents(dest) if i.end_ns is None and not i.interrupted]
    with agent(server, dest, "--triggers", triggers) as watch:
        watch.stop()
    marked = {i.id: i for i in incidents(dest)}
    assert all(marked[i.id].interrupted for i in leftovers)
    assert list((dest / "spool").iterdir()) == []
    print(f"{len(marked)} incidents, {len(announced)} announced, {cut_short} captures cut short")
    assert announced
    return cut_short


def runs(pid: int) -> bool:
    found = processes.read(pid)
    return found is not None and found.state not in "ZX"


def wait_for_life(watch: AgentProcess, seconds: float) -> None:
    """Let it live for a while: the moment of the kill is the point of the test."""
    try:
        watch.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    pytest.fail(f"it ended by itself: {watch.said}")
