# SPDX-License-Identifier: Apache-2.0
"""Real stalls get their names, and their blockers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import MariaDB, MySQL55, MySQL97, SqlServer
from stalls import (
    INDEX_LOCK_OPTIONS,
    REDO_SYNC_OPTIONS,
    TABLE_STORM_OPTIONS,
    deadlock_check_storm,
    global_read_lock,
    index_lock,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
    table_open_storm,
    template_of_tables,
)

from stallscope import capturefile, probe
from stallscope.analyzers import catalog, engine
from stallscope.model import Label
from tests.live.shots import Shot, take, threads_with, unharmed

pytestmark = pytest.mark.needs("root", "bpf")

TRIES = 60
"""Captures at most, until one catches a moment that comes and goes."""

STORM_TRIES = 600
STORM_SHOTS = 8

ENOUGH = 5
"""Captures that are to name the stall before its test is content."""

SERVERS = ["mariadb", "mysql55", "mysql97"]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> SqlServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SqlServer)
    return found


def shots(server: SqlServer, folder: Path, tries: int = TRIES) -> Iterator[Shot]:
    for _ in range(tries):
        yield take(folder, "-p", server.pid, "--backend", "bpf")


@pytest.mark.parametrize("kind", ["mysql55", "mysql97"])
def test_row_lock_convoy(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: SqlServer = request.getfixturevalue(kind)
    with row_lock_convoy(server, 30), unharmed(server):
        shot = take(tmp_path, "-p", server.pid)
    assert shot.signatures[0] == "innodb-row-lock"
    assert shot.analysis["findings"][0]["threads"] >= 30


def test_stall_without_names(mariadb: MariaDB, tmp_path: Path) -> None:
    """Debian's MariaDB hides InnoDB's functions: a stall is seen, and no name is made up."""
    with row_lock_convoy(mariadb, 30), unharmed(mariadb):
        shot = take(tmp_path, "-p", mariadb.pid)
    assert shot.signatures[0] in (None, "innodb-row-lock")
    assert shot.analysis["findings"][0]["threads"] >= 30


def test_global_read_lock(server: SqlServer, tmp_path: Path) -> None:
    with global_read_lock(server, 20), unharmed(server):
        shot = take(tmp_path, "-p", server.pid)
    assert shot.signatures[0] == "global-read-lock"


def test_metadata_lock(server: SqlServer, tmp_path: Path) -> None:
    with metadata_lock_pileup(server, 20), unharmed(server):
        shot = take(tmp_path, "-p", server.pid)
    assert shot.signatures[0] == "metadata-lock"


def served(pid: int, folder: Path, count: int) -> Iterator[Path]:
    """Yield capture files that a serving probe writes, one each some ten milliseconds."""
    command = [str(probe.find()), "serve", "--pid", str(pid), "--read-string", "server_version"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["type"] == "ready"
            for number in range(count):
                file = folder / f"{number}.jsonl"
                print(f"snap {file}", file=process.stdin, flush=True)
                answer = json.loads(process.stdout.readline())
                assert answer["type"] == "written", answer
                yield file
                file.unlink()
        finally:
            process.kill()


def test_deadlock_check(mysql55: MySQL55, tmp_path: Path) -> None:
    """The checker holds the kernel mutex: it is the blocker of each capture that catches it."""
    signatures = catalog.load()
    caught = 0
    with deadlock_check_storm(mysql55, 190), unharmed(mysql55):
        for file in served(mysql55.pid, tmp_path, STORM_TRIES):
            if b'"lock_deadlock_recursive' not in file.read_bytes():
                continue
            capture = capturefile.read(file)
            checkers = threads_with(capture, "lock_deadlock_recursive")
            if not any(thread.label is Label.VERIFIED for thread in checkers):
                continue  # its frames may be mixed
            findings = engine.analyze(capture, signatures).findings
            named = {finding.signature: finding for finding in findings}
            checked = named.get("innodb-deadlock-check")
            if checked is None or checked.threads < 40:
                continue  # the storm pauses: nobody waits for the search
            assert findings[0].signature == "innodb-deadlock-check"
            assert checked.blocker is not None
            assert checked.blocker.tid in {thread.tid for thread in checkers}
            assert any("lock_deadlock_recursive" in frame for frame in checked.blocker.frames)
            caught += 1
            if caught == ENOUGH:
                return
    pytest.fail(f"{caught} of {STORM_TRIES} captures caught the deadlock checker at work")


def test_the_storm_on_a_row_has_a_name(mysql55: MySQL55, tmp_path: Path) -> None:
    """Between two rounds its threads want the row's page, or start their transactions."""
    expected = {"innodb-deadlock-check", "innodb-row-lock"}
    with deadlock_check_storm(mysql55, 190), unharmed(mysql55):
        seen = [shot.signatures[:1] for shot in shots(mysql55, tmp_path, STORM_SHOTS)]
    named = [first for first in seen if expected.intersection(first)]
    assert len(named) > STORM_SHOTS // 2, seen


@pytest.mark.needs("mysql55")
def test_table_open(tmp_path: Path) -> None:
    many = MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables())
    with many as server, table_open_storm(server), unharmed(server):
        named = owned = 0
        for shot in shots(server, tmp_path, TRIES):
            assert shot.analysis["cycles"] == []
            if shot.signatures[0] != "table-open-lock":
                continue
            named += 1
            (lock,) = [lock for lock in shot.capture.locks if lock.symbol == "LOCK_open"]
            assert lock.waiters > 1
            blocker = shot.analysis["findings"][0]["blocker"]
            if lock.owner_tid is None or blocker is None or not lock.stable:
                continue  # between two owners
            assert lock.owner_tid in {thread.tid for thread in shot.capture.threads}
            owned += blocker["tid"] == lock.owner_tid
            if owned and named >= ENOUGH:
                return
    pytest.fail(f"{named} of {TRIES} named table-open-lock first, {owned} its owner")


@pytest.mark.needs("mysql55")
def test_index_lock(tmp_path: Path) -> None:
    with MySQL55(*INDEX_LOCK_OPTIONS) as server, index_lock(server), unharmed(server):
        for shot in shots(server, tmp_path, 10):
            if "innodb-index-lock" in shot.named:
                return
    pytest.fail("no capture named innodb-index-lock")


@pytest.mark.needs("freeze")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MariaDB, marks=pytest.mark.needs("mariadb")),
        pytest.param(MySQL55, marks=pytest.mark.needs("mysql55")),
    ],
)
def test_redo_sync(kind: type[MariaDB | MySQL55], tmp_path: Path) -> None:
    """A thread that the kernel lets nobody stop is no obstacle."""
    with loop_device() as device, kind(*REDO_SYNC_OPTIONS, parent=device.folder) as server:
        with redo_sync(server, device, 20), unharmed(server):
            shot = take(tmp_path, "-p", server.pid)
        assert "D" in {thread.state for thread in shot.capture.threads}
        assert shot.analysis["findings"][0]["threads"] >= 15
        if kind is MySQL55:  # the other one's function names are hidden
            assert shot.signatures[0] == "innodb-redo-sync"
            assert shot.analysis["findings"][0]["blocker"]["frames"][0] == "fsync"


def test_mysql97_is_named_though_its_files_are_elsewhere(mysql97: MySQL97, tmp_path: Path) -> None:
    """It has a root of its own: outside, the paths of its maps are other files, or none."""
    with row_lock_convoy(mysql97, 10):
        capture = take(tmp_path, "-p", mysql97.pid).capture
    (module,) = {m for m in capture.modules if m.path == "/usr/sbin/mysqld"}
    assert module.error is None
    assert module.symbols == ".dynsym"
    assert len(threads_with(capture, "lock_wait_suspend_thread", "do_command")) == 10
