# SPDX-License-Identifier: Apache-2.0
"""``stallscope waits`` on real servers, the way a user runs it."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallscope.model.waitkinds import FILE_KINDS
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

    def _read(self, stream: Any) -> bytes:
        """Read one line of stdout or stderr, in time."""
        line = bytearray()
        deadline = time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing within {PATIENCE:g} s after {bytes(line)!r}"
            byte = stream.read(1)
            if not byte:
                break
            line += byte
        return bytes(line)

    def line(self) -> WaitLine:
        self._number += 1
        data = self._read(self.process.stdout)
        assert data, self.errors()
        line = loads(data, "stallscope waits", self._number)
        assert isinstance(line, WaitLine)
        return line

    def error(self) -> str:
        return self._read(self.process.stderr).decode()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def end(self, number: int = signal.SIGINT) -> WaitLine:
        """End it by a signal; return the totals."""
        self.process.send_signal(number)
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


def test_it_ends_after_its_time(mariadb: MariaDB) -> None:
    begin = time.monotonic()
    done = run("waits", "-p", mariadb.pid, "--duration", 2, "--interval", 0.5, "--json")
    assert time.monotonic() - begin >= 2
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("final", False) for line in lines] == [False] * (len(lines) - 1) + [True]
    assert len(lines) >= 2
    assert lines[-1]["seconds"] >= 2
    for kind in ("mutex", "fsync", "fallocate"):
        of_all = lines[-1]["kinds"][kind]["count"]
        assert of_all >= sum(line["kinds"][kind]["count"] for line in lines[:-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_with_the_totals(mariadb: MariaDB, number: int) -> None:
    with unharmed(mariadb), watching("-p", mariadb.pid, "--interval", "0.2") as watch:
        first = watch.line()
        assert first.programs
        final = watch.end(number)
        assert watch.process.wait(PATIENCE) in (0, 3)
        assert watch.errors() == ""
    assert final.seconds >= first.seconds


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


def test_a_server_that_restarts_is_followed(tmp_path: Path) -> None:
    metrics = tmp_path / "stalls.prom"
    with MariaDB("--innodb-flush-log-at-trx-commit=1") as server:
        old = server.pid
        words = ("--follow", "mariadbd", "--datadir", server.data, "--interval", "0.2")
        with watching(*words, "--prometheus", metrics) as watch:
            assert [target.pid for target in watch.line().targets] == [old]
            server.shut_down()
            assert watch.error() == (
                f"stallscope: mariadbd (pid {old}) has ended; waiting for it\n"
            )
            server.start()
            assert watch.error() == f"stallscope: watching mariadbd (pid {server.pid})\n"
            server.execute("CREATE DATABASE again", "CREATE TABLE again.t (a INT) ENGINE=InnoDB")
            for _ in range(LINES):
                server.execute("INSERT INTO again.t VALUES (1)")
                if any(key.pid == server.pid for key in watch.line().keys):
                    break
            else:
                pytest.fail("no wait of the new process was reported")
            final = watch.end()
            assert watch.process.wait(PATIENCE) in (0, 3)
            assert watch.errors() == ""
        assert {target.pid for target in final.targets} == {old, server.pid}
        assert server.answers()
    counted = {
        sample.labels["kind"]: sample.value
        for family in text_string_to_metric_families(metrics.read_text())
        for sample in family.samples
        if sample.name == "stallscope_wait_duration_seconds_count"
        and sample.labels["datadir"] == str(server.data)
    }
    for kind in FILE_KINDS:  # a futex gets its kind late, and its counters never go back
        if kind in final.kinds:
            assert counted[kind] == final.kinds[kind].count


def test_the_end_of_the_server_ends_it() -> None:
    with MariaDB() as server:
        pid = server.pid
        with watching("-p", pid, "--interval", "0.2") as watch:
            watch.line()
            server.shut_down()
            line = watch.line()
            while not line.final:
                line = watch.line()
            assert watch.process.wait(PATIENCE) in (0, 3)
            assert watch.errors() == f"stallscope: mariadbd (pid {pid}) has ended\n"
        server.start()


def test_nobody_of_that_name() -> None:
    done = run("waits", "-p", "no-such-server")
    assert done.returncode == 1
    assert done.stderr.startswith("stallscope: no process named no-such-server")
    assert done.stderr.count("\n") == 1
