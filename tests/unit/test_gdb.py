# SPDX-License-Identifier: Apache-2.0
"""The gdb backend on real processes: they run on afterwards, whatever happens to gdb."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors import gdb
from stallscope.model import capturefile
from tests.support.chance import SEED
from tests.support.servers import PATIENCE, wait_until
from tests.unit.programs import python_program

pytestmark = [pytest.mark.needs("gdb"), pytest.mark.large]

KILLS = 12
_THREADS = 4
_TARGET = f"""
import sys, threading
for _ in range({_THREADS}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print("echo", flush=True)
"""


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def answers(process: subprocess.Popen[str]) -> bool:
    """Return whether the process runs on; the test's timeout ends the wait for one that does
    not."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("x\n")
    process.stdin.flush()
    return process.stdout.readline() == "echo\n"


def fake_gdb(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    python_program(folder / "gdb", code)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_capture_of_a_running_process(target: subprocess.Popen[str]) -> None:
    capture = gdb.capture([target.pid], seconds=PATIENCE, reason="requested by name")
    assert answers(target)
    assert len(capture.threads) == _THREADS + 1
    assert target.pid in {thread.tid for thread in capture.threads}
    assert all(thread.frames for thread in capture.threads)
    assert any("wait" in str(frame) for frame in capture.threads[0].frames)
    assert capture.processes[0].pid == target.pid
    assert capture.processes[0].exe == os.path.realpath(sys.executable)
    assert capture.notes == ()


def test_the_stop_is_measured_not_assumed(target: subprocess.Popen[str]) -> None:
    capture = gdb.capture([target.pid], seconds=PATIENCE)
    assert capture.elapsed_ns is not None
    assert 0 < capture.stopped_ns < capture.elapsed_ns
    assert {thread.stopped_ns for thread in capture.threads} == {capture.stopped_ns}


def test_a_stop_that_nobody_saw_has_a_bound(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the processor was somebody else's meanwhile."""
    monkeypatch.setattr(gdb._Target, "is_traced", lambda target: False)
    capture = gdb.capture([target.pid], seconds=PATIENCE)
    assert capture.elapsed_ns is not None
    assert 0 < capture.stopped_ns < capture.elapsed_ns


def test_several_processes_are_one_capture(target: subprocess.Popen[str]) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            capture = gdb.capture([target.pid, other.pid], seconds=PATIENCE)
        finally:
            other.kill()
    assert [process.pid for process in capture.processes] == [target.pid, other.pid]
    assert [thread.process for thread in capture.threads] == [0] * (_THREADS + 1) + [1]
    assert capture.threads[-1].tid == other.pid
    assert {frame.process for frame in capture.threads[-1].frames} == {1}
    again = capturefile.loads(capturefile.dumps(capture), "x")
    assert msgspec.structs.replace(again, path=None) == capture


def test_one_of_several_that_ended_is_a_note(target: subprocess.Popen[str]) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    capture = gdb.capture([ended.pid, target.pid], seconds=PATIENCE)
    assert [process.pid for process in capture.processes] == [target.pid]
    assert [note.code for note in capture.notes] == ["process-ended"]
    with pytest.raises(StallscopeError, match="all 2 processes ended"):
        gdb.capture([ended.pid, ended.pid], seconds=PATIENCE)


def test_a_stopped_process_stays_stopped() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            gdb.capture([process.pid], seconds=PATIENCE)
            # gdb releases it with a SIGSTOP, which it takes when it gets a processor.
            status = Path(f"/proc/{process.pid}/status")
            wait_until(lambda: "T (stopped)" in status.read_text(), "it is stopped again")
        finally:
            process.kill()


_ATTACH_AND_HANG = """\
import ctypes, os, signal, sys
pid = int([word for word in sys.argv if word.startswith("attach ")][0].split()[1])
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for tid in os.listdir(f"/proc/{pid}/task"):
    libc.ptrace(16, int(tid), None, None)  # PTRACE_ATTACH
    os.waitpid(int(tid), 0x40000000)  # __WALL
while True:
    signal.pause()
"""


def test_a_killed_gdb_does_not_leave_the_target_stopped(
    target: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gdb(tmp_path, _ATTACH_AND_HANG, monkeypatch)
    with pytest.raises(StallscopeError, match=r"it was stopped for [0-9.]+ s") as error:
        gdb.capture([target.pid], seconds=10)
    assert "stopped for 0.000 s" not in str(error.value)
    assert answers(target)


_FORK_AND_HANG = """\
import os, signal
if os.fork():
    signal.pause()
open({file!r}, "w").write(str(os.getpid()))
signal.pause()
"""


def test_what_a_killed_gdb_had_forked_is_killed_too(
    target: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real one forks when it attaches, to see what ptrace can do."""
    file = tmp_path / "child"
    fake_gdb(tmp_path, _FORK_AND_HANG.format(file=str(file)), monkeypatch)
    poll = gdb._StopWatch.poll

    def interrupt(watch: gdb._StopWatch) -> None:
        poll(watch)
        if file.exists() and file.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(gdb._StopWatch, "poll", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gdb.capture([target.pid], seconds=PATIENCE)
    child = Path("/proc", file.read_text())
    wait_until(lambda: not child.exists(), "it is gone")


def test_ctrl_c_does_not_leave_the_target_stopped(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real gdb, interrupted as soon as it has stopped the target."""
    poll = gdb._StopWatch.poll

    def interrupt(watch: gdb._StopWatch) -> None:
        poll(watch)
        if watch._begin is not None:
            raise KeyboardInterrupt

    def interrupted() -> bool:
        try:
            gdb.capture([target.pid], seconds=PATIENCE)
        except KeyboardInterrupt:
            return True
        return False  # it came and went unseen

    monkeypatch.setattr(gdb._StopWatch, "poll", interrupt)
    wait_until(interrupted, "it was seen stopped")
    assert answers(target)
    assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()


def test_killed_at_any_moment_the_target_runs_on(target: subprocess.Popen[str]) -> None:
    moments = random.Random(SEED)
    late = 0
    for number in range(KILLS):
        moment = 0.05 + 0.65 * (number + moments.random()) / KILLS
        try:
            # The first is too short for gdb on any machine.
            gdb.capture([target.pid], seconds=moment if number else 0.001)
        except StallscopeError:
            late += 1
        assert answers(target)
        assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()
    assert late


def test_no_init_file_and_no_script_is_run(
    target: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / ".gdbinit").write_text(f"shell touch {ran}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    gdb.capture([target.pid], seconds=PATIENCE)
    assert not ran.exists()


def test_a_traced_process_is_refused(
    target: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = python_program(tmp_path / "hang", _ATTACH_AND_HANG + "")
    with subprocess.Popen([hang, f"attach {target.pid}"]) as tracer:
        attached = threading.Event()
        while not attached.is_set():
            if f"TracerPid:\t{tracer.pid}" in Path(f"/proc/{target.pid}/status").read_text():
                attached.set()
        try:
            with pytest.raises(StallscopeError, match="traced already"):
                gdb.capture([target.pid], seconds=PATIENCE)
        finally:
            tracer.kill()
    os.kill(target.pid, signal.SIGCONT)


def test_no_such_process() -> None:
    with pytest.raises(StallscopeError, match="no process"):
        gdb.capture([2**22 + 1], seconds=10)


def test_what_gdb_says_is_the_error(
    target: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.stderr.write('warning: x\\nptrace: Operation not permitted.\\n')"
    fake_gdb(tmp_path, code, monkeypatch)
    with pytest.raises(StallscopeError, match="Operation not permitted"):
        gdb.capture([target.pid], seconds=PATIENCE)


def test_without_gdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(StallscopeError, match="apt-get install gdb"):
        gdb.capture([1], seconds=PATIENCE)
