# SPDX-License-Identifier: Apache-2.0
"""Every backend makes the same Capture of the same stall, and harms nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.model import capturefile
from stallscope.model.capture import Label, LockKind
from tests.live.shots import run, take, threads_with, unharmed
from tests.needs import why_not
from tests.support.servers import MariaDB
from tests.support.stalls import metadata_lock_pileup, row_lock_convoy

WAITERS = 20
SMALL = pytest.mark.small
BACKENDS = [
    pytest.param("bpf", marks=[pytest.mark.needs("root", "bpf"), SMALL]),
    pytest.param("ptrace", marks=pytest.mark.needs("root", "ptrace")),
    pytest.param("proc", marks=[pytest.mark.needs("proc"), SMALL]),
    pytest.param("gdb", marks=pytest.mark.needs("root", "gdb")),
]
WITHOUT_STOPPING = {"bpf", "proc"}


@pytest.fixture
def stalled(mariadb: MariaDB) -> Iterator[MariaDB]:
    with metadata_lock_pileup(mariadb, WAITERS):
        yield mariadb


def tids(server: MariaDB) -> set[int]:
    """Return its threads without the kernel's own for io_uring, which debuggers do not see."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    return {int(t.name) for t in tasks if not (t / "comm").read_text().startswith("iou-")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_the_stall_and_sees_every_thread(
    backend: str, stalled: MariaDB, tmp_path: Path
) -> None:
    before = tids(stalled)
    with unharmed(stalled):
        shot = take(tmp_path, "-p", stalled.pid, "--backend", backend)
    capture = shot.capture
    assert capture.backend == shot.analysis["backend"] == backend
    assert shot.signatures[0] == "metadata-lock"
    assert shot.analysis["findings"][0]["threads"] >= WAITERS
    waiters = threads_with(capture, "MDL_context::acquire_lock")
    # The ALTER TABLE waits too.
    assert len(waiters) == WAITERS + 1
    served = threads_with(capture, "handle_one_connection", "do_command")
    for thread in waiters:
        assert thread in served
        assert thread.unwind == "complete"
    # What lived through the capture is in it, and nothing that never was.
    seen = {thread.tid for thread in capture.threads if not thread.name.startswith("iou-")}
    assert before & tids(stalled) <= seen
    assert len(seen - before - tids(stalled)) <= 3
    if backend in WITHOUT_STOPPING:
        assert capture.stopped_ns == 0
        assert {thread.stopped_ns for thread in capture.threads} == {0}
    else:
        assert capture.stopped_ns > 0
        assert capture.stopped_ns >= max(thread.stopped_ns for thread in capture.threads)
        assert shot.analysis["threads"]["stopped"] > 0
    if backend == "bpf":
        for thread in waiters:
            assert (thread.label, thread.on_cpu) == (Label.VERIFIED, False)
            assert thread.syscall is not None
            assert thread.syscall.name == "futex"
            assert thread.lock is not None
            assert capture.locks[thread.lock].kind is LockKind.COND


@pytest.mark.small
@pytest.mark.needs("proc")
def test_auto_takes_what_does_not_stop_and_prints_the_verdict(
    stalled: MariaDB, tmp_path: Path
) -> None:
    file = tmp_path / "shot.jsonl"
    done = run("snap", "-p", stalled.pid, "--fail-on-stall", "--output", file)
    assert done.returncode == 4, done.stderr
    assert "[metadata-lock]" in done.stdout
    assert "Traceback" not in done.stderr
    capture = capturefile.read(file)
    best = "proc" if why_not("bpf") else "bpf"
    assert (capture.backend, capture.stopped_ns) == (best, 0)
    assert capture.backend_reason


@pytest.mark.small
@pytest.mark.needs("proc")
def test_a_row_lock_has_the_name_that_the_server_knows(mariadb: MariaDB, tmp_path: Path) -> None:
    """Debian's MariaDB hides InnoDB's functions; the file says the same again."""
    with row_lock_convoy(mariadb, WAITERS) as holder, unharmed(mariadb):
        shot = take(tmp_path, "-p", mariadb.pid)
    assert shot.signatures[0] == "innodb-row-lock"
    again = run("analyze", shot.analysis["capture"], "--json")
    assert again.returncode == 0, again.stderr
    for analysis in (shot.analysis, json.loads(again.stdout)):
        first = analysis["findings"][0]
        assert (first["signature"], first["blocker"]["connection"]) == ("innodb-row-lock", holder)
        assert first["threads"] >= WAITERS
