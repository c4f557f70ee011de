# SPDX-License-Identifier: Apache-2.0
"""Every backend makes the same Capture of the same stall, and harms nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.shots import run, take, threads_with, unharmed
from tests.support.servers import MariaDB
from tests.support.stalls import metadata_lock_pileup

WAITERS = 20
BACKENDS = [
    pytest.param("bpf", marks=pytest.mark.needs("root", "bpf")),
    pytest.param("ptrace", marks=pytest.mark.needs("root", "ptrace")),
    pytest.param("proc", marks=pytest.mark.needs("root", "probe")),
    pytest.param("gdb", marks=pytest.mark.needs("root", "gdb")),
]
WITHOUT_STOPPING = {"bpf", "proc"}


@pytest.fixture(scope="module")
def stalled(mariadb: MariaDB) -> Iterator[MariaDB]:
    with metadata_lock_pileup(mariadb, WAITERS):
        yield mariadb


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_the_stall(backend: str, stalled: MariaDB, tmp_path: Path) -> None:
    with unharmed(stalled):
        shot = take(tmp_path, "-p", stalled.pid, "--backend", backend)
    assert shot.capture.backend == backend
    assert shot.signatures[0] == "metadata-lock"
    assert shot.analysis["findings"][0]["threads"] >= WAITERS
    waiters = threads_with(shot.capture, "MDL_context::acquire_lock")
    # The ALTER TABLE waits too.
    assert len(waiters) == WAITERS + 1
    served = threads_with(shot.capture, "handle_one_connection", "do_command")
    for thread in waiters:
        assert thread in served
        assert thread.unwind == "complete"


@pytest.mark.parametrize("backend", BACKENDS)
def test_sees_every_thread(backend: str, stalled: MariaDB, tmp_path: Path) -> None:
    def tids() -> set[int]:
        tasks = Path(f"/proc/{stalled.pid}/task").iterdir()
        # The kernel's own threads for io_uring; debuggers do not see them.
        return {int(t.name) for t in tasks if not (t / "comm").read_text().startswith("iou-")}

    before = tids()
    shot = take(tmp_path, "-p", stalled.pid, "--backend", backend)
    seen = {t.tid for t in shot.capture.threads if not t.name.startswith("iou-")}
    # What lived through the capture is in it, and nothing that never was.
    assert before & tids() <= seen
    assert len(seen - before - tids()) <= 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_says_how_long_threads_were_stopped(backend: str, stalled: MariaDB, tmp_path: Path) -> None:
    capture = take(tmp_path, "-p", stalled.pid, "--backend", backend).capture
    if backend in WITHOUT_STOPPING:
        assert capture.stopped_ns == 0
        assert {thread.stopped_ns for thread in capture.threads} == {0}
    else:
        assert capture.stopped_ns > 0
        assert capture.stopped_ns >= max(thread.stopped_ns for thread in capture.threads)


@pytest.mark.needs("root", "bpf")
def test_auto_takes_what_does_not_stop(stalled: MariaDB, tmp_path: Path) -> None:
    capture = take(tmp_path, "-p", stalled.pid).capture
    assert capture.backend == "bpf"
    assert capture.backend_reason
    assert capture.stopped_ns == 0


@pytest.mark.needs("root", "probe")
def test_prints_the_verdict_for_people(stalled: MariaDB) -> None:
    done = run("snap", "-p", stalled.pid)
    assert done.returncode in (0, 3), done.stderr
    assert "metadata-lock" in done.stdout
    assert "Traceback" not in done.stderr
    assert run("snap", "-p", stalled.pid, "--fail-on-stall").returncode == 4
