# SPDX-License-Identifier: Apache-2.0
"""Blockers that the server's own structures name, without SQL."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.collectors import probe, versionlayouts
from stallscope.model import capturefile
from stallscope.model.capture import MEMORY, Capture, Lock, LockKind
from tests.live.shots import Captured, take, unharmed
from tests.support.servers import MEMORY as IN_MEMORY
from tests.support.servers import MariaDB114, MySQL55, MySQL97, SqlServer
from tests.support.stalls import (
    INDEX_LOCK_OPTIONS,
    global_read_lock,
    index_lock,
    metadata_lock_pileup,
    row_lock_convoy,
)
from tests.support.stalls.autoinc import autoinc_lock

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")

WAITERS = 20
TRIES = 40
"""Captures at most, until one catches a latch in exclusive mode."""


def memory_locks(capture: Capture, kind: LockKind) -> list[Lock]:
    return [lock for lock in capture.locks if lock.source == MEMORY and lock.kind is kind]


def owner_of(server: SqlServer, connection: int) -> int:
    """Return the thread of a connection, as the server reports it."""
    rows = server.query(
        "SELECT tid FROM information_schema.processlist WHERE id = %s", (connection,)
    )
    return int(rows[0][0])


def unsql(server: SqlServer, folder: Path, *options: object) -> Captured:
    with unharmed(server):
        return take(folder, "-p", server.pid, "--no-sql", *options)


@pytest.fixture(scope="module")
def mariadb114(require: Callable[..., None]) -> Iterator[MariaDB114]:
    require("mariadb114")
    with MariaDB114(parent=IN_MEMORY) as server:
        yield server


@pytest.fixture(params=["mysql55", pytest.param("mariadb114", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SqlServer)
    return found


def check(server: SqlServer, folder: Path, shot: Captured, lock: Lock, connection: int) -> None:
    """The verdict names the owner: the connection that holds the lock, also beside SQL."""
    if isinstance(server, MariaDB114):
        assert lock.owner_tid == owner_of(server, connection)
    blocker = shot.analysis["findings"][0]["blocker"]
    assert blocker["tid"] == lock.owner_tid
    assert blocker["source"] == MEMORY
    asked = take(folder, "-p", server.pid)
    assert asked.analysis["findings"][0]["blocker"]["tid"] == lock.owner_tid
    named = next(t for t in asked.capture.threads if t.tid == lock.owner_tid)
    assert named.connection in (connection, None)  # 5.5 does not report threads of connections


def test_metadata_lock(server: SqlServer, tmp_path: Path) -> None:
    with metadata_lock_pileup(server, WAITERS) as connection:
        shot = unsql(server, tmp_path)
        (lock,) = memory_locks(shot.capture, LockKind.METADATA)
        assert lock.symbol == "shop.orders"
        assert lock.waiters == WAITERS + 1
        assert shot.signatures[0] == "metadata-lock"
        check(server, tmp_path, shot, lock, connection)


def test_metadata_lock_behind_a_long_select(server: SqlServer, tmp_path: Path) -> None:
    with metadata_lock_pileup(server, WAITERS, long_select=True) as connection:
        shot = unsql(server, tmp_path)
        (lock,) = memory_locks(shot.capture, LockKind.METADATA)
        check(server, tmp_path, shot, lock, connection)


def test_global_read_lock(server: SqlServer, tmp_path: Path) -> None:
    with global_read_lock(server, WAITERS) as connection:
        shot = unsql(server, tmp_path)
        (lock,) = memory_locks(shot.capture, LockKind.METADATA)
        assert lock.symbol in ("global", "backup")
        assert shot.signatures[0] == "global-read-lock"
        check(server, tmp_path, shot, lock, connection)


def test_row_lock(server: SqlServer, tmp_path: Path) -> None:
    with row_lock_convoy(server, WAITERS) as connection:
        shot = unsql(server, tmp_path)
        (lock,) = memory_locks(shot.capture, LockKind.ROW)
        assert lock.symbol == "index PRIMARY of rows_.t1"
        assert lock.waiters == WAITERS
        assert shot.signatures[0] == "innodb-row-lock"
        check(server, tmp_path, shot, lock, connection)


def test_autoinc_lock(server: SqlServer, tmp_path: Path) -> None:
    with autoinc_lock(server, WAITERS) as connection:
        shot = unsql(server, tmp_path)
        (lock,) = memory_locks(shot.capture, LockKind.AUTO_INC)
        assert lock.symbol == "bulk.found"
        assert lock.waiters == WAITERS
        check(server, tmp_path, shot, lock, connection)


def test_no_lock_is_invented(server: SqlServer, tmp_path: Path) -> None:
    shot = unsql(server, tmp_path)
    assert not [lock for lock in shot.capture.locks if lock.source == MEMORY and lock.owner_tid]


TLS_HEADER = re.compile(r"^\s*TLS(?:\s+0x[0-9a-f]+){4}\s+(0x[0-9a-f]+)", re.M)
CURRENT_THD = re.compile(r"^\s*\d+: ([0-9a-f]+)\s.* TLS .* current_thd$", re.M)


def place_of_thd(program: str) -> int:
    """Return the offset from fs base to current_thd: the TLS block of a program ends there."""
    headers, symbols = (
        subprocess.run(["readelf", "-W", flag, program], capture_output=True, text=True, check=True)
        for flag in ("-l", "--dyn-syms")
    )
    size, place = TLS_HEADER.search(headers.stdout), CURRENT_THD.search(symbols.stdout)
    assert size
    assert place
    return int(place[1], 16) - (int(size[1], 16) + 15) // 16 * 16


def test_metadata_lock_that_is_only_counted(mysql97: MySQL97, tmp_path: Path) -> None:
    """MySQL keeps a weak lock in no list of the object: connections have it in their own."""
    file = tmp_path / "capture.jsonl"
    place = place_of_thd(f"/proc/{mysql97.pid}/exe")
    command = [probe.find(), "snap", "--pid", mysql97.pid, "--output", file]
    command += versionlayouts.arguments((mysql97.pid,))
    with metadata_lock_pileup(mysql97, WAITERS) as connection, unharmed(mysql97):
        subprocess.run([str(word) for word in command], check=True)
        (unknown,) = memory_locks(capturefile.read(file), LockKind.METADATA)
        assert (unknown.symbol, unknown.owner_tid) == ("shop.orders", None)
        command += ["--layout", f"thd.tls={place}", "--force-overwrite"]
        subprocess.run([str(word) for word in command], check=True)
        (lock,) = memory_locks(capturefile.read(file), LockKind.METADATA)
        rows = mysql97.query(
            "SELECT thread_os_id FROM performance_schema.threads WHERE processlist_id = %s",
            (connection,),
        )
        inside = next(t for t in capturefile.read(file).threads if t.tid == lock.owner_tid)
        assert (inside.ns_tid or inside.tid) == int(rows[0][0])


def test_index_lock(tmp_path: Path) -> None:
    """The stall has its name, and the owner of the index's latch is in a change of the tree, in the
    same capture."""
    with (
        MySQL55(*INDEX_LOCK_OPTIONS) as server,
        index_lock(server),
    ):
        named = False
        for _ in range(TRIES):
            shot = unsql(server, tmp_path, "--once")
            named = named or "innodb-index-lock" in shot.named
            held = [
                lock
                for lock in memory_locks(shot.capture, LockKind.RWLOCK)
                # dict0dict.c makes other latches too: those of the statistics of tables.
                if (lock.created or "").startswith("dict0dict.c:")
                and (lock.symbol or "").startswith("index ")
                and lock.owner_tid
                and lock.stable
            ]
            if not held:
                continue
            (lock,) = held
            assert lock.mode == "exclusive"
            assert lock.symbol == "index PRIMARY of fat.fat"
            owner = next(t for t in shot.capture.threads if t.tid == lock.owner_tid)
            functions = {frame.symbol for frame in owner.frames}
            changing = functions & {"btr_cur_search_to_nth_level", "btr_cur_pessimistic_insert"}
            if named and changing:
                return
        pytest.fail(
            f"no capture shows the owner of the latch in a change of the tree; named: {named}"
        )
