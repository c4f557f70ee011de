# SPDX-License-Identifier: Apache-2.0
"""Captures of real Python processes by py-spy, which never stops them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors import pyspy
from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label
from tests.support.servers import PATIENCE, wait_until
from tests.support.servers.tasks import at_rest

PTRACE_SEIZE = 0x4206  # include/uapi/linux/ptrace.h

WAITS = """
import sys, threading
held = threading.Lock()
held.acquire()
def waits_for_the_lock():
    with held:
        pass
def holds_it():
    print("ready", flush=True)
    sys.stdin.read(1)
    held.release()
thread = threading.Thread(target=waits_for_the_lock, name="waiter")
thread.start()
holds_it()
thread.join()
print("done")
"""


@pytest.fixture
def target(require: Callable[..., None]) -> Iterator[subprocess.Popen[bytes]]:
    require("root")
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        wait_until(lambda: at_rest(child.pid), "both threads wait")
        yield child
        assert child.communicate(b"x")[0] == b"done\n"


def _functions(capture: Capture) -> dict[str, list[str]]:
    return {t.name: [frame.symbol or "?" for frame in t.frames] for t in capture.threads}


def test_python_stacks(target: subprocess.Popen[bytes]) -> None:
    assert pyspy.is_python(target.pid)
    found = pyspy.capture(target.pid, seconds=PATIENCE)
    functions = _functions(found)
    assert "waits_for_the_lock" in functions["waiter"]
    assert "holds_it" in functions["MainThread"]
    assert {thread.label for thread in found.threads} == {Label.RACED}
    assert found.processes[0].pid == target.pid
    assert found.stopped_ns == 0
    assert found.backend_reason is not None
    assert "can be inconsistent" in found.backend_reason
    assert found.notes == ()


def test_by_its_name_as_a_backend(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    assert main(["snap", "-p", str(target.pid), "--backend", "py-spy", "-o", str(path)]) == 0
    found = capturefile.read(path)
    assert found.backend == "py-spy"
    assert "waits_for_the_lock" in _functions(found)["waiter"]


def test_it_does_not_trace(target: subprocess.Popen[bytes]) -> None:
    """A process has one tracer at most: where there is one, no other can trace it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_SEIZE, target.pid, None, None) == 0, os.strerror(ctypes.get_errno())
    found = pyspy.capture(target.pid, seconds=PATIENCE)
    assert "holds_it" in _functions(found)["MainThread"]
    # Ending the target ends the trace as well; a thread that is not stopped cannot be detached.


def test_no_python(require: Callable[..., None]) -> None:
    require("root")
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert not pyspy.is_python(child.pid)
            with pytest.raises(StallscopeError, match=f"py-spy cannot read process {child.pid}: "):
                pyspy.capture(child.pid, seconds=PATIENCE)
        finally:
            child.kill()
    assert not pyspy.is_python(child.pid)


def test_a_late_py_spy_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = tmp_path / "py-spy"
    late.write_text("#!/bin/sh\nexec sleep 600\n")
    late.chmod(0o755)
    monkeypatch.setattr(pyspy, "find", lambda: str(late))
    # A second can be over before the shell has begun: nothing is known of the process from itself.
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text().split()
    begin = time.monotonic()
    with pytest.raises(StallscopeError, match="took more than 1 s and was ended"):
        pyspy.capture(os.getpid(), seconds=1)
    assert time.monotonic() - begin < 60
    assert set(children.read_text().split()) <= set(before)
