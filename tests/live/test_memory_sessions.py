# SPDX-License-Identifier: Apache-2.0
"""Connections from the memory of real servers, where SQL is not asked or does not answer."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from stallscope.collectors import probe
from stallscope.collectors.calibration import calibrating, stored
from stallscope.model.capture import Capture, Thread
from tests.live.shots import ON_ONE_SERVER, Captured, run, take, unharmed
from tests.live.test_sql_connection import stopped
from tests.support.agents import agent, incidents
from tests.support.servers import (
    MEMORY,
    PATIENCE,
    MariaDB,
    MariaDB114,
    MySQL55,
    MySQL97,
    SqlServer,
    wait_until,
)
from tests.support.servers.clients import (
    connection_id,
    idle_connections,
    running_statements,
    socket_of,
)
from tests.support.stalls import metadata_lock_pileup, row_lock_convoy

__all__: list[str] = []

pytestmark = [pytest.mark.needs("bpf", "root"), pytest.mark.usefixtures("private_umask")]

HOLDS = "UPDATE t1 SET b = b + ? WHERE a = ?"
READS = "SELECT SUM(total) FROM orders"
_calibrations: dict[str, tuple[str, bytes]] = {}
SAYS = "SELECT id, user, db, command, info FROM information_schema.processlist"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the test's own folder of calibrations."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stored, "SYSTEM", tmp_path / "none")
    return tmp_path / "state" / "stallscope" / "calibrations"


def calibrate(server: SqlServer) -> dict[str, Any]:
    """Calibrate as a user does; return what that printed."""
    done = run("calibrate", "-p", server.pid, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def calibrated(server: SqlServer) -> None:
    """Use what an earlier test found for this build, or calibrate."""
    folder = stored.folders()[0]
    known = _calibrations.get(server.name)
    if known is None:
        calibrate(server)
        (file,) = folder.iterdir()
        _calibrations[server.name] = (file.name, file.read_bytes())
        return
    folder.mkdir(parents=True, mode=0o700)
    (folder / known[0]).write_bytes(known[1])
    (folder / known[0]).chmod(0o600)


def without_sql(server: SqlServer, folder: Path, *options: object) -> Captured:
    shot = take(folder, "-p", server.pid, "--no-sql", *options)
    assert {note.code for note in shot.capture.notes} <= {"sandbox-incomplete"}
    return shot


def of(capture: Capture, connection: int) -> Thread:
    (thread,) = [thread for thread in capture.threads if thread.connection == connection]
    return thread


def check_connections(server: SqlServer, capture: Capture) -> None:
    """What is said of each connection is what the server says, or nothing."""
    listed = {row[0]: row[1:] for row in server.query(SAYS)}
    seen = [thread for thread in capture.threads if thread.connection is not None]
    assert len({thread.connection for thread in seen}) == len(seen)
    for thread in seen:
        assert thread.source == "memory"
        if thread.user is None:  # a thread of the server itself
            assert (thread.command, thread.query) == ("Daemon", None)
        elif thread.connection == connection_id(server.control()):  # it lists them
            assert (thread.user, thread.command) == ("root", "Sleep")
        else:
            user, database, command, info = listed[thread.connection]
            assert (thread.user, thread.database, thread.command) == (user, database, command)
            assert (thread.query is not None) or info is None


def check_blocker(shot: Captured, signature: str, holder: int, statement: str | None) -> None:
    first = shot.analysis["findings"][0]
    assert first["signature"] == signature
    assert first["blocker"]["connection"] == holder
    assert first["blocker"]["user"] == "root"
    if statement is not None:
        assert first["blocker"]["sql"] == statement


def test_all_is_found_and_is_what_sql_says(server: SqlServer, kept: Path) -> None:
    with row_lock_convoy(server, 5), unharmed(server):
        found = calibrate(server)
    assert set(found["unknown"]) <= {"transaction_id"}  # in few builds of MariaDB
    assert found["compared"] >= 9
    assert [path.name for path in kept.iterdir()] == [f"{found['build']}.json"]
    assert "stallscope" not in json.dumps(found["layout"])
    done = run("calibrate", "-p", server.pid)
    assert done.returncode == 0
    for field in ("connection", "user", "host", "database", "command", "state", "statement"):
        assert field in done.stdout
    assert found["version"].split("-")[0] in done.stdout


@pytest.mark.needs("mariadb114")
def test_mariadb_with_another_build(tmp_path: Path) -> None:
    with MariaDB114(parent=MEMORY) as server:
        assert set(calibrate(server)["unknown"]) <= {"transaction_id"}
        with metadata_lock_pileup(server, 5) as holder, unharmed(server):
            shot = without_sql(server, tmp_path)
            check_connections(server, shot.capture)
    check_blocker(shot, "metadata-lock", holder, READS)


def test_the_holder_of_a_metadata_lock(server: SqlServer, tmp_path: Path) -> None:
    calibrated(server)
    with metadata_lock_pileup(server) as holder, unharmed(server):
        shot = without_sql(server, tmp_path)
        check_connections(server, shot.capture)
    check_blocker(shot, "metadata-lock", holder, READS)
    assert sum(thread.query == READS for thread in shot.capture.threads) == 21
    held = of(shot.capture, holder)
    assert (held.command, held.transaction, held.database) == ("Sleep", True, "shop")
    assert held.age_ns is not None
    assert 0 <= held.age_ns < PATIENCE * 1e9


def test_the_holder_of_a_row_lock(server: SqlServer, tmp_path: Path) -> None:
    calibrated(server)
    with row_lock_convoy(server, 12) as holder, unharmed(server):
        shot = without_sql(server, tmp_path)
        check_connections(server, shot.capture)
    held = of(shot.capture, holder)
    assert (held.user, held.query, held.transaction) == ("root", HOLDS, True)
    assert sum(thread.query == HOLDS for thread in shot.capture.threads) == 13
    if not isinstance(server, MariaDB):  # whose frames have no names in Debian's build
        check_blocker(shot, "innodb-row-lock", holder, HOLDS)


@ON_ONE_SERVER
def test_a_server_that_takes_no_more_connections(server: SqlServer, tmp_path: Path) -> None:
    calibrated(server)
    before = server.number("SELECT @@max_connections")
    with row_lock_convoy(server, 5) as holder, ExitStack() as stack:
        server.execute(f"SET GLOBAL max_connections = {len(server.connection_ids()) + 3}")
        stack.callback(server.execute, f"SET GLOBAL max_connections = {before}")
        with suppress(pymysql.err.OperationalError):
            while True:  # root has one more than others
                stack.enter_context(closing(server.connect()))
        shot = take(tmp_path, "-p", server.pid)
        check_connections(server, shot.capture)
    (note,) = shot.capture.notes
    assert note.message.startswith("connections and statements are from the server's memory: ")
    assert "Too many connections" in note.message
    assert of(shot.capture, holder).query == HOLDS
    assert server.answers()


@contextmanager
def lock_open_held(server: MySQL55) -> Iterator[int]:
    """Let MySQL 5.5 open a table whose definition is a pipe that nobody writes; yield the
    connection that does."""
    server.execute("CREATE DATABASE IF NOT EXISTS pipe")
    pipe = server.data / "pipe" / "t1.frm"
    os.mkfifo(pipe)
    server.give_to_server(pipe)
    try:
        with running_statements(server, "pipe", ["SELECT * FROM t1 WHERE a = 4711"]) as (opening,):
            wait_until(
                lambda: server.in_state("Opening tables"), "the table is being opened", PATIENCE
            )
            try:
                yield opening
            finally:
                os.close(os.open(pipe, os.O_WRONLY))
                server.wait_until_asleep(opening)
    finally:
        pipe.unlink()


def test_who_holds_lock_open(mysql55: MySQL55, tmp_path: Path) -> None:
    """New statements wait for it, also those of a client that looks what happens."""
    calibrated(mysql55)
    with lock_open_held(mysql55) as holder:
        done = run("calibrate", "-p", mysql55.pid)
        assert done.returncode == 1
        with running_statements(mysql55, "mysql", ["SELECT host FROM user"] * 5):
            shot = without_sql(mysql55, tmp_path)
    check_blocker(shot, "table-open-lock", holder, "SELECT * FROM t1 WHERE a = ?")


@ON_ONE_SERVER
def test_each_capture_of_a_burst_has_its_own_statement(server: SqlServer, tmp_path: Path) -> None:
    calibrated(server)
    ends: list[bool] = []
    statements = ("SELECT SLEEP(0.11), 'first'", "DO SLEEP(0.07)")
    normalized = {"SELECT SLEEP(?), ?", "DO SLEEP(?)"}

    with idle_connections(server, 1) as (connection,), unharmed(server):
        number = connection_id(connection)

        def alternate() -> None:
            with connection.cursor() as cursor:
                while not ends:
                    for statement in statements:
                        cursor.execute(statement)

        thread = threading.Thread(target=alternate)
        thread.start()
        try:
            shot = without_sql(server, tmp_path, "--for", "2", "--interval", "100")
        finally:
            ends.append(True)
            thread.join(PATIENCE)
    assert len(shot.capture.moments) >= 10
    seen = [of(moment, number).query for moment in shot.capture.moments]
    assert normalized <= set(seen) <= {*normalized, None}
    changes = sum(before != after for before, after in itertools.pairwise(seen))
    assert changes >= 3
    ages = [of(moment, number).age_ns for moment in shot.capture.moments]
    assert max(age for age in ages if age is not None) < 2e9


@ON_ONE_SERVER
def test_a_calibration_that_does_not_fit_is_not_used(
    server: SqlServer, tmp_path: Path, kept: Path
) -> None:
    found = calibrate(server)
    (path,) = kept.iterdir()
    for key in ("thd.self", "thd.id", "thd.tls"):
        offsets = dict(found["layout"])
        if key == "thd.self":  # one of them is enough
            offsets = {name: at for name, at in offsets.items() if not name.startswith("thd.self.")}
        offsets[key] += 40
        path.write_text(json.dumps(found | {"layout": offsets}))
        with idle_connections(server, 3):
            shot = take(tmp_path, "-p", server.pid, "--no-sql")
        assert not [t for t in shot.capture.threads if t.connection is not None]
        if key != "thd.tls":  # there is nothing at all
            (note,) = shot.capture.notes
            assert "the calibration of this build does not fit" in note.message
            assert "run `stallscope calibrate` again" in note.message
    calibrate(server)
    with idle_connections(server, 3) as idle:
        shot = without_sql(server, tmp_path)
        ids = {connection_id(connection) for connection in idle}
    assert ids <= {thread.connection for thread in shot.capture.threads}


@ON_ONE_SERVER
def test_a_program_that_cannot_be_identified_is_said(
    server: SqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that a capture would have no connections, and no word of why."""
    calibrated(server)
    failing = tmp_path / "probe"
    failing.write_text(f'#!/bin/sh\ntest "$1" != memory || exit 1\nexec {probe.find()} "$@"\n')
    failing.chmod(0o755)
    monkeypatch.setenv("STALLSCOPE_PROBE", str(failing))
    with idle_connections(server, 1):
        shot = take(tmp_path, "-p", server.pid, "--no-sql")
    assert not [t for t in shot.capture.threads if t.connection is not None]
    (note,) = shot.capture.notes
    assert note.code == "sessions"
    assert note.message.startswith("no connections from memory: ")


@ON_ONE_SERVER
def test_a_stalled_server_cannot_be_calibrated(server: SqlServer, kept: Path) -> None:
    begun = time.monotonic()
    with stopped(server):
        done = run("calibrate", "-p", server.pid)
    assert done.returncode == 1
    assert time.monotonic() - begun < 4 * calibrating.SECONDS
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("stallscope: ")
    assert done.stdout == ""
    assert not kept.exists()


@ON_ONE_SERVER
@pytest.mark.needs("waits")
@pytest.mark.parametrize("sql", [True, False])
def test_the_agent_keeps_what_memory_says(server: SqlServer, tmp_path: Path, sql: bool) -> None:
    """Without SQL it uses the calibration that is kept."""
    if not sql:
        calibrated(server)
    triggers = tmp_path / "triggers.toml"
    variable = "Threads_running" if sql else "process.threads"
    triggers.write_text(
        f'defaults = false\n[[trigger]]\nname = "many"\nvariable = "{variable}"\nthreshold = 5\n'
    )
    dest = tmp_path / "store"
    options = ("--triggers", triggers, *(() if sql else ("--no-sql",)))
    with agent(server, dest, *options) as watch, row_lock_convoy(server, 12) as holder:
        wait_until(lambda: incidents(dest) and incidents(dest)[0].captures, "an incident")
        watch.wait(lambda: watch.of("stall"), "a verdict")
        watch.stop()
    (incident, *_) = incidents(dest)
    folder = dest / "incidents" / incident.id
    said = json.loads((folder / "captures" / "0001.sessions.json").read_text())["sessions"]
    seen = {s["connection"]: s for s in said["memory"][0]["sessions"]}
    assert seen[holder]["statement"] == HOLDS
    assert sum(s.get("statement") == HOLDS for s in seen.values()) >= 12
    texts = [path.read_text() for path in folder.glob("**/*.json")]
    assert not any("b + 1" in text for text in texts)


STATEMENTS = {
    "binary": b"SELECT SLEEP(600), '\x00\x01secret\xff\xfe\\'\x1b[2J'",
    "latin1": "SELECT SLEEP(600), 'secrét'".encode("latin1"),
    "gbk": b"SELECT SLEEP(600), 'secret\xbf\x5c', 'secret'",
    "utf8": "SELECT SLEEP(600), 'secr\N{SNOWMAN}t', 'secret'".encode(),
    "large": b"SELECT SLEEP(600), '" + b"secret " * ((16 << 20) // 7 - 5) + b"'",
}


def test_statements_of_any_kind_do_no_harm(server: SqlServer, tmp_path: Path) -> None:
    calibrated(server)
    server.execute("SET GLOBAL max_allowed_packet = 64 << 20")
    # MySQL 9.7 cannot list processes while one runs binary data.
    other = "latin1" if isinstance(server, MySQL97) else "binary"
    with idle_connections(server, len(STATEMENTS)) as connections:
        running = dict(zip(STATEMENTS, connections, strict=True))
        for kind, connection in running.items():
            with connection.cursor() as cursor:
                cursor.execute(f"SET NAMES {kind if kind in ('gbk', 'latin1', 'utf8') else other}")
            connection._execute_command(3, STATEMENTS[kind])  # type: ignore[attr-defined]
        wait_until(lambda: server.in_state("User sleep") == len(running), "all of them sleep")
        with unharmed(server):
            shot = without_sql(server, tmp_path)
        for connection in connections:
            server.execute(f"KILL {connection_id(connection)}")
            socket_of(connection).close()
    for kind, connection in running.items():
        thread = of(shot.capture, connection_id(connection))
        assert (thread.command, thread.activity) == ("Query", "User sleep"), kind
        assert thread.query is not None
        if kind in ("latin1", "utf8"):
            assert thread.query.startswith("SELECT SLEEP(?), ?")
    assert "secr" not in json.dumps(shot.analysis) + repr(shot.capture)


@pytest.mark.parametrize("kept_of", ["pool", "threads"])
def test_a_thread_pool(require: Callable[..., None], tmp_path: Path, kept_of: str) -> None:
    """An idle connection has no thread: of those that run nothing is wrong."""
    require("mariadb")
    if kept_of == "threads":  # the same build
        with MariaDB(parent=MEMORY) as other:
            calibrate(other)
    with MariaDB("--thread-handling=pool-of-threads", parent=MEMORY) as server:
        if kept_of == "pool":
            assert {"user", "query"}.isdisjoint(calibrate(server)["unknown"])
        with row_lock_convoy(server, 12) as holder, unharmed(server):
            shot = take(tmp_path, "-p", server.pid, "--no-sql")
            check_connections(server, shot.capture)
    waiting = [t for t in shot.capture.threads if t.query == HOLDS and t.command == "Query"]
    assert len(waiting) == 12
    assert not [t for t in shot.capture.threads if t.connection == holder and t.command == "Query"]
