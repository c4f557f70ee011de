# SPDX-License-Identifier: Apache-2.0
"""Waits of a server for its own locks, reported by uprobes, and that these leave nothing behind."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pymysql
import pytest

from stallscope.model.waitlines import WaitLine
from tests.live.shots import unharmed
from tests.support.servers import MySQL55, SqlServer, wait_until
from tests.support.stalls import deadlock_check_storm, metadata_lock_pileup, row_lock_convoy
from tests.support.watching import Waits

pytestmark = pytest.mark.needs("root", "bpf")

THRESHOLD_MS = 20
WAITERS = 5
DEADLOCK = 1213  # ER_LOCK_DEADLOCK
LOCK_WAITS = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"


def hits(line: WaitLine, function: str) -> int:
    """Return how often a function was called, by a line."""
    return line.server[function].count if function in line.server else 0


def watching(server: SqlServer) -> Waits:
    return Waits("--interval", "100", "--threshold", str(THRESHOLD_MS), pids=(server.pid,))


@pytest.fixture(params=["mysql55", "mysql97"])
def mysql(request: pytest.FixtureRequest) -> SqlServer:
    server: SqlServer = request.getfixturevalue(request.param)
    return server


def deadlock(server: SqlServer) -> int:
    """Have two sessions wait for each other; return how many of them lost."""
    lost = []

    def update(connection: Any, row: int) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE probes.pair SET b = b + 1 WHERE a = {row}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != DEADLOCK:
                raise
            lost.append(row)

    with server.connect() as one, server.connect() as two, one.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS probes")
        cursor.execute("DROP TABLE IF EXISTS probes.pair")
        cursor.execute("CREATE TABLE probes.pair (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        cursor.execute("INSERT INTO probes.pair VALUES (1, 0), (2, 0)")
        for connection in (one, two):
            connection.autocommit(False)
        one.commit()
        update(one, 1)
        update(two, 2)
        waiter = threading.Thread(target=update, args=(one, 2))
        waiter.start()
        wait_until(lambda: server.query(LOCK_WAITS)[0][0] > 0, "the first of the two to wait")
        update(two, 1)
        two.rollback()
        waiter.join()
        one.rollback()
    return len(lost)


def test_row_lock_has_its_name(mysql: SqlServer) -> None:
    """All that wait for one row are under one name, though each has a lock object of its own."""
    with watching(mysql) as waits, row_lock_convoy(mysql, WAITERS), unharmed(mysql):
        key = waits.key(lambda key: key.kind == "row-lock" and key.in_flight == WAITERS)
    assert re.fullmatch(r"rows_\.t1 \(PRIMARY\) page \d+ record \d+", key.name)


@pytest.mark.parametrize("name", ["mysql55", "mysql97", "mariadb"])
def test_metadata_lock_has_its_name(name: str, request: pytest.FixtureRequest) -> None:
    server: SqlServer = request.getfixturevalue(name)
    with watching(server) as waits, metadata_lock_pileup(server, WAITERS), unharmed(server):
        key = waits.key(lambda key: key.kind == "metadata-lock" and "." in key.name)
    assert not key.name.startswith("0x")


def test_deadlock_is_one_event(mysql: SqlServer) -> None:
    function = "trx_weight_ge" if isinstance(mysql, MySQL55) else "lock_notify_about_deadlock"
    with unharmed(mysql), watching(mysql) as waits:
        assert deadlock(mysql) == 1
        assert hits(waits.finish(), function) == 1


def test_latch_says_where_it_was_made(mysql55: MySQL55) -> None:
    with watching(mysql55) as waits, deadlock_check_storm(mysql55), unharmed(mysql55):
        key = waits.key(lambda key: key.kind == "mutex" and key.name.startswith("created at "))
    assert ".c:" in key.name


def code_of(server: SqlServer) -> tuple[bytes, bytes]:
    """Return the code of the server's main program: as it lies in its memory, and in its file."""
    exe = Path(f"/proc/{server.pid}/exe")
    with Path(f"/proc/{server.pid}/maps").open() as lines:
        maps = [line.split() for line in lines if line.rstrip().endswith(exe.readlink().name)]
    in_memory = in_file = b""
    with (
        Path(f"/proc/{server.pid}/mem").open("rb", buffering=0) as memory,
        exe.open("rb") as file,
    ):
        for addresses, rights, offset, *_ in maps:
            if rights != "r-xp":
                continue
            start, end = (int(address, 16) for address in addresses.split("-"))
            memory.seek(start)
            file.seek(int(offset, 16))
            in_file += file.read(end - start).ljust(end - start, b"\0")
            in_memory += memory.read(end - start)
    assert in_file
    assert len(in_memory) == len(in_file)
    return in_memory, in_file


def is_as_in_file(server: SqlServer) -> bool:
    in_memory, in_file = code_of(server)
    return in_memory == in_file


@pytest.mark.parametrize("name", ["mysql55", "mysql97", "mariadb"])
def test_nothing_is_left_in_the_code(name: str, request: pytest.FixtureRequest) -> None:
    server: SqlServer = request.getfixturevalue(name)
    # Of the probe of the test before, which was killed too, its child ends a moment later.
    wait_until(lambda: is_as_in_file(server), "no breakpoints")
    with unharmed(server):
        with watching(server) as waits:
            during, before = code_of(server)
            waits.process.kill()
            waits.process.wait()
        wait_until(lambda: is_as_in_file(server), "the breakpoints to be gone")
    changed = [at for at, (a, b) in enumerate(zip(before, during, strict=True)) if a != b]
    assert changed
    assert {during[at] for at in changed} == {0xCC}


def leaked() -> list[str]:
    """Return what the kernel says of breakpoints that it could not take away."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return [line for line in text.splitlines() if "leaking uprobe" in line]


def test_killed_while_it_takes_breakpoints_away(mysql: SqlServer) -> None:
    """The kernel gives up in a thread that is killed then: see ebpf/uprobes_loader.c."""
    before, pids = len(leaked()), []
    with unharmed(mysql):
        for _ in range(6):
            with watching(mysql) as waits:
                pids.append(waits.process.pid)
                waits.say("quit")
                waits.line(lambda line: line.final)  # `with` kills it after these last words
        wait_until(lambda: is_as_in_file(mysql), "the breakpoints to be gone")
    own = [line for line in leaked()[before:] if any(f":{pid} " in line for pid in pids)]
    assert not own
