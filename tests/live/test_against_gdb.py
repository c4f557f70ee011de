# SPDX-License-Identifier: Apache-2.0
"""A verified stack of a thread that is still blocked is what gdb shows right after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.model.capture import Thread
from tests.live.shots import take, unharmed
from tests.support.servers import MySQL97, SqlServer
from tests.support.servers.mysql97 import root_folder
from tests.support.stalls import metadata_lock_pileup, row_lock_convoy
from tests.support.targets import trouble
from tests.support.unwinders import Seen, counters, gdb_threads

pytestmark = pytest.mark.needs("root", "bpf", "gdb")

WAITERS = 30
STALLS = {"metadata-lock": metadata_lock_pileup, "row-lock": row_lock_convoy}


def is_where(seen: Seen, thread: Thread) -> bool:
    """Return whether it is in the same system call as in the capture."""
    if thread.syscall is None or thread.syscall.nr != seen.syscall or not seen.counters:
        return False
    return thread.syscall.args[:1] == (seen.argument,) and thread.frames[0].pc == (seen.counters[0])


def seen_by_gdb(server: SqlServer) -> dict[int, Seen]:
    if not isinstance(server, MySQL97):
        return gdb_threads("-p", str(server.pid))
    root = root_folder()  # gdb opens the server's files by their names outside
    return gdb_threads(root / "usr/sbin/mysqld", "-p", str(server.pid), sysroot=root)


def switches(pid: int, tid: int) -> int | None:
    """Return the context switches of a thread so far, None where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if "_ctxt_switches:" in line)


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("kind", ["mariadb", "mysql55", "mysql97"])
def test_same_frames(
    kind: str,
    stall: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    require: Callable[..., None],
) -> None:
    require(kind)
    server: SqlServer = request.getfixturevalue(kind)
    with STALLS[stall](server, WAITERS), unharmed(server):
        different = compare(server, tmp_path / "first")
        for again in ("second", "third"):
            if not different:
                break
            # A background thread can wake up while gdb starts, and wait elsewhere then. What is
            # unwound wrongly is so each time.
            still = compare(server, tmp_path / again)
            different = {tid: still[tid] for tid in different if tid in still}
    assert not different, f"{len(different)}:\n" + "\n".join(list(different.values())[:3])


def compare(server: SqlServer, folder: Path) -> dict[int, str]:
    """Return the threads that slept all the time and have another stack in gdb, and both stacks."""
    folder.mkdir()
    shot = take(folder, "-p", server.pid, "--backend", "bpf")
    # Some wake up at times, and go back to the same wait with the same stack, or another.
    slept = {t.tid for t in shot.verified() if switches(server.pid, t.tid) == t.switches}
    theirs = seen_by_gdb(server)
    assert trouble(server.pid) == []
    compared = [t for t in shot.verified() if t.tid in theirs and is_where(theirs[t.tid], t)]
    assert len(compared) >= max(WAITERS, len(shot.verified()) * 3 // 4)
    assert sum(counters(t) == theirs[t.tid].counters for t in compared) >= WAITERS
    return {
        t.tid: f"thread {t.tid} {t.name}:\n  ours {describe(t)}"
        f"\n  gdb  {', '.join(map(hex, theirs[t.tid].counters))}"
        for t in compared
        if t.tid in slept and counters(t) != theirs[t.tid].counters
    }


def describe(thread: Thread) -> str:
    return ", ".join(f"{frame.pc or 0:#x} {frame}" for frame in thread.frames)
