# SPDX-License-Identifier: Apache-2.0
"""Commands with the real probe on a small program: every backend, doctor, symbolize."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.live.shots import run, take
from tests.support.servers import wait_until
from tests.support.servers.tasks import at_rest

pytestmark = pytest.mark.needs("probe", "root")

_SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void take_the_lock(void)
{
	pthread_mutex_lock(&the_lock);
	puts("never");
}

__attribute__((noinline)) static void *wait_for_it(void *arg)
{
	take_the_lock();
	return arg;
}

__attribute__((noinline)) static void hold_it(void)
{
	char byte;

	pthread_mutex_lock(&the_lock);
	for (int i = 0; i < 8; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, wait_for_it, NULL))
			abort();
	}
	puts("ready");
	fflush(stdout);
	// Echoes, so that a test sees that it runs on.
	while (read(0, &byte, 1) == 1)
		if (write(1, &byte, 1) != 1)
			abort();
}

int main(void)
{
	hold_it();
	_exit(0);
}
"""


class Target(NamedTuple):
    process: subprocess.Popen[bytes]
    debug_dir: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def runs_on(self) -> bool:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"x")
        self.process.stdin.flush()
        return self.process.stdout.read(1) == b"x"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A stripped program with its debug file elsewhere: eight threads wait for one mutex."""
    if shutil.which("gcc") is None or shutil.which("objcopy") is None:
        pytest.skip("no gcc and binutils here: run scripts/setup")
    folder = tmp_path_factory.mktemp("target")
    source, program, debug = folder / "holder.c", folder / "holder", folder / "holder.debug"
    source.write_text(_SOURCE)
    build = ["gcc", "-O1", "-g", "-pthread", "-Wl,--build-id=0xabcdef0123456789", "-o"]
    subprocess.run([*build, program, source], check=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["strip", program], check=True)
    link = folder / "debug" / ".build-id" / "ab" / "cdef0123456789.debug"
    link.parent.mkdir(parents=True)
    debug.rename(link)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: at_rest(process.pid), "all threads wait")
        yield Target(process, folder / "debug")
        process.kill()


def functions(capture: Capture) -> set[str]:
    return {str(frame).partition("(")[0] for t in capture.threads for frame in t.frames}


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("bpf", marks=pytest.mark.needs("bpf")),
        "proc",
        pytest.param("ptrace", marks=pytest.mark.needs("ptrace")),
        pytest.param("gdb", marks=pytest.mark.needs("gdb")),
    ],
)
def test_backends_agree(target: Target, backend: str, tmp_path: Path) -> None:
    shot = take(tmp_path, "-p", target.pid, "--backend", backend)
    assert target.runs_on()
    assert shot.analysis["backend"] == backend
    assert len(shot.capture.threads) == 9
    waiting = [t for t in shot.capture.threads if any("lock" in str(f) for f in t.frames)]
    assert len(waiting) == 8
    stops = backend in ("ptrace", "gdb")
    assert (shot.analysis["stopped_ns"] > 0) == stops
    assert (shot.analysis["threads"]["stopped"] > 0) == stops


@pytest.mark.needs("bpf")
def test_the_owner_of_the_lock_is_named(target: Target, tmp_path: Path) -> None:
    shot = take(tmp_path, "-p", target.pid)
    (lock,) = shot.capture.locks
    assert (lock.owner_tid, lock.waiters) == (target.pid, 8)
    assert shot.analysis["findings"][0]["blocker"]["tid"] == target.pid
    done = run("snap", "-p", target.pid, "--top", 10)
    _, _, tree = done.stdout.partition("Who waits on what\n")
    assert tree.lstrip().startswith(f"thread {target.pid}")
    assert "0 threads stopped (stopped_ns 0)" in done.stdout
    assert "9 verified" in done.stdout


@pytest.mark.needs("bpf")
def test_file_says_what_the_probe_said(target: Target, tmp_path: Path) -> None:
    """Read and written again, a capture of the probe loses nothing."""
    shot = take(tmp_path, "-p", target.pid)
    again = capturefile.loads(capturefile.dumps(shot.capture), str(shot.capture.path))
    assert again == shot.capture


def test_a_stripped_program_is_named_elsewhere(target: Target, tmp_path: Path) -> None:
    shot = take(tmp_path, "-p", target.pid)
    ours = {"hold_it", "take_the_lock", "wait_for_it", "main"}
    assert not functions(shot.capture) & ours
    named = tmp_path / "named.jsonl.zst"
    done = run("symbolize", shot.capture.path, "--debug-dir", target.debug_dir, "-o", named)
    assert done.returncode in (0, 3), done.stderr
    capture = capturefile.read(named)
    assert ours - {"main"} <= functions(capture)
    assert [t.tid for t in capture.threads] == [t.tid for t in shot.capture.threads]
    debug_files = {m.debug_file for m in capture.modules if m.path.endswith("/holder")}
    assert debug_files == {str(target.debug_dir / ".build-id" / "ab" / "cdef0123456789.debug")}
    assert run("analyze", named).returncode in (0, 3)


def test_debug_dir_names_at_once(target: Target, tmp_path: Path) -> None:
    shot = take(tmp_path, "-p", target.pid, "--debug-dir", target.debug_dir)
    assert {"hold_it", "take_the_lock", "wait_for_it"} <= functions(shot.capture)


def test_doctor_sees_the_process_and_its_symbols(target: Target) -> None:
    done = run("doctor", "-p", target.pid, "--json")
    checks = json.loads(done.stdout)["checks"]
    access = next(check for check in checks if check["name"] == "access")
    assert access["status"] == "ok"
    assert access["what"].startswith("9 threads by ")
    assert any("/holder: " in check["what"] for check in checks if check["name"] == "symbols")
    assert done.returncode == 3  # symbols are missing


@pytest.mark.needs("gdb")
def test_a_core_file_has_the_same_verdict(target: Target, tmp_path: Path) -> None:
    core = tmp_path / "core"
    gdb = ["gdb", "-nx", "-batch", "-p", str(target.pid), "-ex", f"generate-core-file {core}"]
    subprocess.run(gdb, check=True, capture_output=True)
    assert target.runs_on()
    program = f"/proc/{target.pid}/exe"
    shot = take(tmp_path, "--core", core, "--exe", program, "--debug-dir", target.debug_dir)
    assert shot.analysis["backend"] == "core"
    assert shot.analysis["inputs"] == [{"path": str(core), "format": "core", "captures": 1}]
    assert len(shot.capture.threads) == 9
    assert {"hold_it", "take_the_lock", "wait_for_it"} <= functions(shot.capture)
    (lock,) = shot.capture.locks
    assert (lock.owner_tid, lock.waiters) == (target.pid, 8)
    assert shot.analysis["stopped_ns"] == 0


@pytest.mark.parametrize("size", [0, 1, 64, 4096])
def test_torn_core_files_are_one_line(tmp_path: Path, size: int) -> None:
    core = tmp_path / "core"
    core.write_bytes((b"\x7fELF\x02\x01\x01" + b"\0" * 5000)[:size])
    done = run("snap", "--core", core)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("stallscope: ")
    assert str(core) in done.stderr
    assert done.stderr.count("\n") == 1
