# SPDX-License-Identifier: Apache-2.0
"""Commands with the real probe on a small program: snap, symbolize, doctor, core files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.live.shots import run, take
from tests.root import twins
from tests.support.targets import Target, own_frames, target_path, trouble_left

pytestmark = [pytest.mark.needs("proc"), pytest.mark.small]

WAITERS = 8
THREADS = WAITERS + 2
"""The main thread, which holds the mutex, and the heartbeat."""


@pytest.fixture(scope="module")
def debug_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("target") / "debug"


@pytest.fixture(scope="module")
def target(debug_dir: Path) -> Iterator[Target]:
    """A stripped program with its debug file elsewhere: eight threads wait for one mutex."""
    program = debug_dir.with_name("holder")
    twins.separate(target_path("threads"), program, debug_dir)
    with Target("threads", str(WAITERS), "3", "--wait", "mutex", executable=program) as target:
        yield target
        assert not trouble_left(target.pid)


def named(capture: Capture, target: Target) -> int:
    """Return how many threads have exactly their known frames, by name."""
    frames = {thread.tid: own_frames(thread, "holder") for thread in capture.threads}
    waiting = [fact for fact in target.threads if fact.wait == "mutex"]
    return sum(frames[fact.tid] == fact.expected() for fact in waiting)


def test_the_owner_of_the_lock_is_named(target: Target, tmp_path: Path) -> None:
    shot = take(tmp_path, "-p", target.pid)
    assert target.beats_on()
    assert len(shot.capture.threads) == THREADS
    (lock,) = shot.capture.locks
    assert (lock.owner_tid, lock.waiters) == (target.pid, WAITERS)
    assert shot.analysis["findings"][0]["blocker"]["tid"] == target.pid
    done = run("snap", "-p", target.pid, "--top", 10)
    _, _, tree = done.stdout.partition("Who waits on what\n")
    assert tree.lstrip().startswith(f"thread {target.pid}")
    assert "0 threads stopped (stopped_ns 0)" in done.stdout
    # Read and written again, a capture of the probe loses nothing.
    again = capturefile.loads(capturefile.dumps(shot.capture), str(shot.capture.path))
    assert again == shot.capture


def test_a_stripped_program_is_named_elsewhere(
    target: Target, debug_dir: Path, tmp_path: Path
) -> None:
    """Later, or at once where the folder is known."""
    shot = take(tmp_path, "-p", target.pid)
    assert named(shot.capture, target) == 0
    file = tmp_path / "named.jsonl.zst"
    done = run("symbolize", shot.capture.path, "--debug-dir", debug_dir, "-o", file)
    assert done.returncode in (0, 3), done.stderr
    capture = capturefile.read(file)
    assert named(capture, target) == WAITERS
    assert [t.tid for t in capture.threads] == [t.tid for t in shot.capture.threads]
    (debug_file,) = debug_dir.rglob("*.debug")
    debug_files = {m.debug_file for m in capture.modules if m.path.endswith("/holder")}
    assert debug_files == {str(debug_file)}
    assert run("analyze", file).returncode in (0, 3)
    at_once = take(tmp_path, "-p", target.pid, "--debug-dir", debug_dir)
    assert named(at_once.capture, target) == WAITERS


def test_doctor_sees_the_process_and_its_symbols(target: Target) -> None:
    done = run("doctor", "-p", target.pid, "--json")
    checks = json.loads(done.stdout)["checks"]
    access = next(check for check in checks if check["name"] == "access")
    assert access["status"] == "ok"
    assert access["what"].startswith(f"{THREADS} threads by ")
    assert any("/holder: " in check["what"] for check in checks if check["name"] == "symbols")
    assert done.returncode == 3  # symbols are missing


@pytest.mark.large
@pytest.mark.needs("gdb")
def test_a_core_file_has_the_same_verdict(target: Target, debug_dir: Path, tmp_path: Path) -> None:
    core = tmp_path / "core"
    gdb = ["gdb", "-nx", "-batch", "-p", str(target.pid), "-ex", f"generate-core-file {core}"]
    subprocess.run(gdb, check=True, capture_output=True)
    assert target.beats_on()
    program = f"/proc/{target.pid}/exe"
    shot = take(tmp_path, "--core", core, "--exe", program, "--debug-dir", debug_dir)
    assert shot.analysis["backend"] == "core"
    assert shot.analysis["inputs"] == [{"path": str(core), "format": "core", "captures": 1}]
    assert len(shot.capture.threads) == THREADS
    assert named(shot.capture, target) == WAITERS
    (lock,) = shot.capture.locks
    assert (lock.owner_tid, lock.waiters) == (target.pid, WAITERS)
    assert shot.analysis["stopped_ns"] == 0


def test_a_torn_core_file_is_one_line(tmp_path: Path) -> None:
    core = tmp_path / "core"
    core.write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 57)
    done = run("snap", "--core", core)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("stallscope: ")
    assert str(core) in done.stderr
    assert done.stderr.count("\n") == 1
