# SPDX-License-Identifier: Apache-2.0
"""A verified stack of a thread that is still blocked is what gdb shows right after."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import MySQL97, SqlServer
from servers.mysql97 import root_folder
from stalls import metadata_lock_pileup, row_lock_convoy
from targets import trouble

from stallscope.model import Thread
from tests.live.shots import CHECKOUT, take, unharmed

pytestmark = pytest.mark.needs("root", "bpf", "gdb")

WAITERS = 30
SCRIPT = CHECKOUT / "tests/live/frames.gdb"
STALLS = {"metadata-lock": metadata_lock_pileup, "row-lock": row_lock_convoy}
FULL_SPEED_SECONDS = 90


def gdb_frames(server: SqlServer) -> dict[int, list[int]]:
    """Return the program counters of each thread as gdb unwinds them."""
    command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off"]
    if isinstance(server, MySQL97):
        command += ["-iex", f"set sysroot {root_folder()}"]
    command += ["-p", str(server.pid), "-x", str(SCRIPT)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FULL_SPEED_SECONDS, check=True
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FRAMES ")]
    return {int(tid): frames for tid, frames in json.loads(line.removeprefix("FRAMES ")).items()}


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
        shot = take(tmp_path, "-p", server.pid, "--backend", "bpf")
        blocked = [t for t in shot.verified() if switches(server.pid, t.tid) == t.switches]
        theirs = gdb_frames(server)
        assert trouble(server.pid) == []
    # A thread that ran in the moment before gdb stopped it is elsewhere, or back with other depth.
    compared = [t for t in blocked if theirs.get(t.tid, [])[:1] == counters(t)[:1]]
    assert len(compared) >= max(WAITERS, len(shot.verified()) * 3 // 4)
    different = [
        f"thread {t.tid} {t.name}:\n  ours {describe(t)}\n  gdb  {list(map(hex, theirs[t.tid]))}"
        for t in compared
        if counters(t) != theirs[t.tid]
    ]
    assert not different, "\n".join(different)


def counters(thread: Thread) -> list[int | None]:
    return [frame.pc for frame in thread.frames]


def describe(thread: Thread) -> str:
    return ", ".join(f"{frame.pc or 0:#x} {frame}" for frame in thread.frames)
