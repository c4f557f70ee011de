# SPDX-License-Identifier: Apache-2.0
"""``stallscope waits`` on real servers, the way a user runs it."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.model.waitlines import WaitLine, loads
from tests.live.shots import CHECKOUT, run, unharmed
from tests.support.servers import PATIENCE, MariaDB, MySQL55, SqlServer
from tests.support.stalls import metadata_lock_pileup, row_lock_convoy

pytestmark = pytest.mark.needs("root", "waits")

DURATIONS = (2, 8, 32)
"""Seconds to run for: where the machine is slow, the first are not enough."""
LINES = 200
"""Lines at most, until one shows what is to be seen."""


class Watch:
    """A running ``stallscope waits --json``."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stallscope", "waits", *map(str, words), "--json"],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._number = 0

    def line(self) -> WaitLine:
        assert self.process.stdout is not None
        self._number += 1
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready, f"no line within {PATIENCE:g} s"
        data = self.process.stdout.readline()
        assert data, self.errors()
        line = loads(data, "stallscope waits", self._number)
        assert isinstance(line, WaitLine)
        return line

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def end(self) -> WaitLine:
        """End it by a signal; return the totals."""
        self.process.send_signal(signal.SIGINT)
        line = self.line()
        while not line.final:
            line = self.line()
        return line


@contextmanager
def watching(*words: object) -> Iterator[Watch]:
    watch = Watch(*words)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.communicate()


@pytest.mark.parametrize("server", ["mariadb", "mysql55"], indirect=True)
def test_metadata_locks_are_seen_in_flight(server: SqlServer) -> None:
    waiters = 20
    with (
        metadata_lock_pileup(server, waiters),
        unharmed(server),
        watching("-p", server.pid, "--interval", "0.5", "--top", "100") as watch,
    ):
        # The ALTER waits in pieces of a second: each is reported when it has been long enough.
        for _ in range(LINES):
            line = watch.line()
            in_flight = line.kinds["metadata-lock"].in_flight
            if in_flight == waiters + 1 and waits_in(line, "mysql_alter_table"):
                break
        else:
            pytest.fail(f"never {waiters + 1} waits for metadata locks at a time, with the ALTER")
        final = watch.end()
        assert watch.process.wait(PATIENCE) in (0, 3)
    assert waits_in(final, "MDL_wait::timed_wait")
    assert waits_in(final, "mysql_alter_table")
    assert [target.pid for target in final.targets] == [server.pid]


def waits_in(line: WaitLine, function: str) -> bool:
    """Return whether a wait for a metadata lock has the function in its stack."""
    return any(
        function in frame
        for key in line.keys
        if key.kind == "metadata-lock"
        for stack in key.waiters
        for frame in stack.frames
    )


def test_people_read_who_waits_for_what(mysql55: MySQL55) -> None:
    with row_lock_convoy(mysql55, 20), unharmed(mysql55):
        for seconds in DURATIONS:
            done = run("waits", "-p", mysql55.pid, "--duration", seconds, "--interval", 1)
            assert done.returncode in (0, 3), done.stderr
            assert done.stderr == ""
            if "20 threads wait for row-lock" in done.stdout:
                break
    assert "20 threads wait for row-lock" in done.stdout
    assert "20 waits in row_mysql_handle_errors" in done.stdout
    assert "totals of" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_only_what_was_asked_for() -> None:
    """Each commit of a lone client syncs the redo log; what is not asked for is not there."""
    syncs = ("fsync", "fdatasync")
    commits = 23
    # On the disk: a log in memory is mapped, and not synced.
    with MariaDB("--innodb-flush-log-at-trx-commit=1") as server:
        server.execute(
            "CREATE DATABASE few",
            "CREATE TABLE few.t (a INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB",
        )
        with watching("-p", server.pid, "--interval", "0.2", "--kind", "sync") as watch:
            watch.line()
            for _ in range(commits):
                server.execute("INSERT INTO few.t VALUES ()")
            final = watch.end()
    assert sum(final.kinds[kind].count for kind in syncs if kind in final.kinds) >= commits
    assert "read" not in final.kinds
    assert {key.kind for key in final.keys} <= {*syncs, "sync_file_range", "msync", "syncfs"}
    redo = [key for key in final.keys if key.file_class == "redo"]
    assert sum(key.count for key in redo) >= commits
    assert {Path(key.name).name for key in redo} == {"ib_logfile0"}
