# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL, a process per connection, is one capture."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.shots import run, take, threads_with
from tests.support.servers import Child, Postgres, wait_until
from tests.support.stalls.postgres_locks import row_lock
from tests.support.targets import trouble

pytestmark = pytest.mark.needs("root", "bpf")

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def test_one_capture_of_all_processes(postgres: Postgres, tmp_path: Path) -> None:
    postgres.query("CREATE TABLE t (id int PRIMARY KEY, v int)")
    postgres.query("INSERT INTO t VALUES (1, 1)")
    with ExitStack() as stack:
        hold = postgres.psql("BEGIN; UPDATE t SET v = 2; SELECT pg_sleep(3600)")
        log = postgres.folder / "clients.log"
        stack.callback(Child(hold, log).end)
        update = "UPDATE t SET v = 3"
        wait_until(lambda: len(postgres.backends()) == 1, "the holder is connected")
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_until(lambda: postgres.query(sleeping) == "1\n", "the holder sleeps")
        for _ in range(5):
            stack.callback(Child(postgres.psql(update), log).end)
        wait_until(lambda: postgres.query(WAITING) == "5\n", "5 backends wait")
        # What asked is in the list until its process has ended.
        wait_until(lambda: len(postgres.backends()) == 6, "the holder and 5 that wait are alone")
        backends = postgres.backends()
        shot = take(tmp_path, "-p", postgres.pid)
        assert {postgres.pid, *backends} <= {p.pid for p in shot.capture.processes}
        assert {postgres.pid, *backends} <= {t.tid for t in shot.capture.threads}
        assert len(threads_with(shot.capture, "ProcSleep", "PostgresMain")) == 5
        assert [trouble(pid) for pid in backends] == [[]] * len(backends)
        wait_until(lambda: set(postgres.backends()) == set(backends), "the same backends")


@pytest.mark.needs("postgres")
def test_the_agent_sees_blocked_backends_without_a_login(tmp_path: Path) -> None:
    """On a server of its own: backends whose clients were killed go on waiting."""
    with Postgres() as server, row_lock(server, 15) as holder:
        done = run("cron", "-p", server.pid, "--dest", tmp_path / "store", "--seconds", 10)
        listed = run("incidents", "--dest", tmp_path / "store", "--json")
    assert done.returncode == 0, done.stderr
    (incident,) = json.loads(listed.stdout)["incidents"]
    assert incident["trigger"] == "backend-locks"
    assert incident["verdict"] == "postgres-heavyweight-lock"
    assert incident["ending"] == f"SELECT pg_terminate_backend({holder});"
