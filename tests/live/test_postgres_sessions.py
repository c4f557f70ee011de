# SPDX-License-Identifier: Apache-2.0
"""What backends of PostgreSQL run, and whom they wait for, from memory: as SQL says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile, memorysessions
from stallscope.model.capture import Capture, LockKind
from tests.live.shots import take, threads_with
from tests.support.servers import MEMORY, Child, Postgres, Postgres17, wait_until
from tests.support.servers.pgclients import HOLD
from tests.support.servers.postgres import ASKING
from tests.support.targets import trouble

pytestmark = pytest.mark.needs("root", "bpf")

ACTIVITY = (
    "SELECT json_agg(row_to_json(a)) FROM (SELECT pid, usename, datname, state, query, xact_start,"
    " application_name, wait_event_type, backend_type,"
    " pg_blocking_pids(pid) AS blockers"
    f" FROM pg_stat_activity WHERE coalesce(application_name, '') <> '{ASKING}') a"
)
WAITING = (
    "SELECT coalesce(json_agg(query), '[]') FROM pg_stat_activity"
    f" WHERE backend_type = 'client backend' AND application_name <> '{ASKING}'"
    " AND wait_event IS NOT NULL"
)
UNTRACKED = "SET track_activities = off"
OTHER_NAMES = frozenset({"logical replication launcher"})
"""Background workers have a name of their own, which only SQL says."""
LONGEST = 1024
"""The default of track_activity_query_size."""


@pytest.fixture(
    scope="module", params=[Postgres, pytest.param(Postgres17, marks=pytest.mark.nightly)]
)
def server(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[Postgres]:
    require(request.param.name)
    with request.param(parent=MEMORY) as started:
        started.execute(
            "CREATE ROLE anna SUPERUSER LOGIN",
            "CREATE ROLE bert SUPERUSER LOGIN",
            "CREATE DATABASE shop",
            "CREATE TABLE t (id int PRIMARY KEY, v int)",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
        )
        yield started


class Clients:
    """Connections of a test, with users, databases and names of their own."""

    def __init__(self, server: Postgres, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self._last: list[str] = []

    def run(self, *statements: str, user: str = "postgres", database: str = "postgres") -> None:
        """Run statements on a connection, which stays in the last one, or idle with HOLD."""
        command = self._server.psql(statements[0])
        command[command.index("-U") + 1] = user
        command[command.index("-d") + 1] = database
        del command[command.index("-v") : command.index("-v") + 2]  # stay after an error
        for statement in statements[1:]:
            command += ["-c", statement]
        child = Child(command, self._server.folder / "clients.log")
        self._stack.callback(child.end)
        last = next(one for one in reversed(statements) if one != HOLD)
        self._last.append("" if last == UNTRACKED else last[: LONGEST - 1])

    def wait(self) -> None:
        """Wait until all do nothing but wait, in or after their last statement."""
        wait_until(lambda: self._waiting() == sorted(self._last), "all connections wait")

    def forget(self) -> None:
        """Forget those of before: the server ended them."""
        self._last.clear()

    def _waiting(self) -> list[str]:
        return sorted(json.loads(self._server.query(WAITING)))


@pytest.fixture
def clients(server: Postgres) -> Iterator[Clients]:
    before = set(server.backends())
    with ExitStack() as stack:
        yield Clients(server, stack)
    for pid in set(server.backends()) - before:
        server.query(f"SELECT pg_terminate_backend({pid})")
    wait_until(lambda: set(server.backends()) <= before, "the clients are gone")


def activity(server: Postgres) -> dict[int, dict[str, Any]]:
    return {row["pid"]: row for row in json.loads(server.query(ACTIVITY))}


def snap(
    server: Postgres, backends: Iterable[int], *arguments: str
) -> tuple[Capture, list[dict[str, Any]]]:
    """Return a capture of the postmaster and these, and the lines of sessions."""
    command = [str(probe.find()), "snap", *arguments]
    for pid in (server.pid, *backends):
        command += ["--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr, done.stdout[-2000:])
    data, moments = memorysessions.split(done.stdout)
    lines = [json.loads(line) for line in done.stdout[len(data) :].splitlines()]
    assert len(lines) == len(moments)
    return capturefile.loads(data, "test"), lines


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def sessions_of(line: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {session["connection"]: session for session in line["sessions"]}


def test_sessions_are_those_of_sql(server: Postgres, clients: Clients) -> None:
    clients.run("SELECT 'idle one'", HOLD, user="anna")
    clients.run("SELECT pg_sleep(3600)", user="bert", database="shop")
    clients.run("BEGIN", "SELECT 'in transaction'", HOLD)
    clients.run("BEGIN", "SELECT 1 / 0", HOLD, user="anna", database="shop")
    clients.run(UNTRACKED, HOLD)
    clients.run(f"SELECT '{'x' * 3 * LONGEST}'", HOLD)
    clients.run("SELECT 'größer', $$\n\t\"quoted\" \\ $$", HOLD)
    clients.wait()
    expected = activity(server)
    _, (line,) = snap(server, expected)
    found = sessions_of(line)
    assert line["rejected"] == 0
    assert set(found) == set(expected)
    for pid, row in expected.items():
        session = found[pid]
        assert session["tid"] == pid
        assert session["user"] == row["usename"], row
        assert session["database"] == row["datname"], row
        assert session["state"] == row["state"], row
        assert session.get("wait_class") == row["wait_event_type"], row
        if row["backend_type"] not in OTHER_NAMES:
            assert session["command_name"] == row["backend_type"]
        if row["backend_type"] != "client backend":
            continue
        assert session["application"] == row["application_name"]
        assert session["host"] == "[local]"
        if row["state"] == "disabled":
            assert "statement" not in session
            assert "transaction" not in session
            continue
        assert session["statement"] == row["query"]
        assert session["transaction"] is (row["xact_start"] is not None)
        assert session["cut"] is (len(row["query"]) == LONGEST - 1)
        assert session["last"] is (row["state"] != "active")
    assert [trouble(pid) for pid in found] == [[]] * len(found)
    wait_until(lambda: set(activity(server)) == set(expected), "the same backends")


def test_blockers_are_those_of_sql(server: Postgres, clients: Clients) -> None:
    clients.run("BEGIN", "UPDATE t SET v = 5 WHERE id = 1", HOLD)
    clients.wait()
    clients.run("UPDATE t SET v = 6 WHERE id = 1", user="anna")
    clients.run("BEGIN", "LOCK TABLE t IN ACCESS SHARE MODE", HOLD)
    clients.run("SELECT pg_advisory_lock(42)", HOLD)
    clients.wait()
    clients.run("UPDATE t SET v = 7 WHERE id = 1", user="bert")
    clients.run("SELECT pg_advisory_lock(42)", user="bert")
    clients.wait()
    clients.run("BEGIN", "LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    clients.wait()
    clients.run("SELECT * FROM t")
    clients.wait()
    rows = activity(server)
    expected = {pid: row["blockers"] for pid, row in rows.items() if row["blockers"]}
    capture, _ = snap(server, rows)
    waits = {thread.tid: capture.lock_at(thread.lock) for thread in capture.threads}
    found = {tid: lock for tid, lock in waits.items() if lock and lock.source == "memory"}
    assert set(found) == set(expected)
    assert all(lock.owner_tid in expected[tid] for tid, lock in found.items())
    kinds = sorted(lock.kind for lock in found.values())
    assert kinds == ["metadata", "row", "row", "table", "table"]
    relation = server.number("SELECT 't'::regclass::oid")
    database = server.number("SELECT oid FROM pg_database WHERE datname = 'postgres'")
    tables = {lock.symbol for lock in found.values() if lock.kind is LockKind.TABLE}
    assert tables == {f"relation {relation} of database {database}"}
    modes = {lock.mode for lock in found.values() if lock.kind is LockKind.TABLE}
    assert modes == {"AccessExclusiveLock", "AccessShareLock"}


def test_snap_names_the_blocker_without_sql(
    server: Postgres, clients: Clients, tmp_path: Path
) -> None:
    clients.run("BEGIN", "UPDATE t SET v = 5 WHERE id = 2", HOLD, user="anna")
    clients.wait()
    (holder,) = server.backends()
    for _ in range(4):
        clients.run("UPDATE t SET v = 6 WHERE id = 2", user="bert")
    clients.wait()
    backends = server.backends()
    shot = take(tmp_path, "-p", server.pid, "--no-sql")
    # A process per connection is one capture.
    assert {server.pid, *backends} <= {process.pid for process in shot.capture.processes}
    assert {server.pid, *backends} <= {thread.tid for thread in shot.capture.threads}
    assert len(threads_with(shot.capture, "ProcSleep", "PostgresMain")) == 4
    assert [trouble(pid) for pid in backends] == [[]] * len(backends)
    wait_until(lambda: set(server.backends()) == set(backends), "the same backends")
    verdict = shot.analysis["findings"][0]
    assert verdict["signature"] == "postgres-heavyweight-lock"
    assert verdict["blocker"]["tid"] == holder
    threads = {thread.tid: thread for thread in shot.capture.threads}
    assert threads[holder].user == "anna"
    assert threads[holder].query == "UPDATE t SET v = ? WHERE id = ?"
    assert threads[holder].transaction is True
    assert "v = 5" not in msgspec.json.encode(shot.analysis).decode()


def test_each_capture_of_a_burst_has_its_own(server: Postgres, clients: Clients) -> None:
    clients.run("SELECT pg_sleep(3600)")
    clients.wait()
    (sleeper,) = server.backends()
    _, lines = snap(server, [sleeper], "--burst", "3")
    assert [line["moment"] for line in lines] == [0, 1, 2]
    assert sessions_of(lines[0])[sleeper]["statement"] == "SELECT pg_sleep(3600)"
    # It did not run since.
    assert all(sleeper not in sessions_of(line) for line in lines[1:])


def test_a_server_that_restarted_its_backends(server: Postgres, clients: Clients) -> None:
    clients.run("SELECT pg_sleep(3600)", user="anna")
    clients.wait()
    (killed,) = server.backends()
    before = set(activity(server))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not any(map(is_there, before)), "all backends are gone")
    wait_until(server.answers, "it answers again")
    clients.forget()
    clients.run("SELECT 'after'", HOLD, user="bert")
    clients.wait()
    expected = activity(server)
    _, (line,) = snap(server, expected)
    found = sessions_of(line)
    assert killed not in found
    assert {pid: s["statement"] for pid, s in found.items() if s.get("statement")} == {
        pid: row["query"] for pid, row in expected.items() if row["query"]
    }
