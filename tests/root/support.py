# SPDX-License-Identifier: Apache-2.0
"""Run stallscope-probe on targets, and check what it prints and leaves behind."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Lock, Thread
from tests.support.capturefields import check_written
from tests.support.servers import PATIENCE, wait_until
from tests.support.targets import Fact, own_frames, trouble_left, without_plt

__all__ = [
    "BACKENDS",
    "COMMANDS",
    "ONE_LINE",
    "SMALL_BACKENDS",
    "Snap",
    "assert_frames",
    "assert_lock",
    "assert_unharmed",
    "by_tid",
    "needing",
    "own_frames",
    "run_probe",
    "snap",
    "without_plt",
]

SMALL = pytest.mark.small
BACKENDS = (
    pytest.param("bpf", marks=pytest.mark.needs("root", "bpf")),
    pytest.param("proc", marks=pytest.mark.needs("proc")),
    pytest.param("ptrace", marks=pytest.mark.needs("root", "ptrace")),
)

SMALL_BACKENDS = tuple(
    pytest.param(*one.values, marks=[*one.marks, *([] if "ptrace" in one.values else [SMALL])])
    for one in BACKENDS
)
"""Of a small test: where others want the CPUs, a thread does not stop in time for ptrace."""


def needing(words: str, *needs: str) -> object:
    return pytest.param(words, marks=pytest.mark.needs(*needs) if needs else [], id=words)


COMMANDS = (
    needing("snap --backend bpf --burst 5 --burst-interval 10", "bpf"),
    needing("waits --duration 0.3 --interval 100", "waits"),
    needing("waits --backend poll --duration 0.3 --interval 100"),
    needing("storage --seconds 0.3", "waits"),
    needing("growth --duration 0.3", "bpf"),
    needing("cache"),
    needing("memory"),
    needing("rings"),
)
"""What reads a process; its number follows."""

ONE_LINE = re.compile(r"\Astallscope-probe: [^\n]+\n\Z")


class Snap(NamedTuple):
    """What one run of the probe gave."""

    code: int
    capture: Capture | None
    stdout: bytes
    stderr: str
    seconds: float

    @property
    def whole(self) -> Capture:
        """The capture of a run that must have given one."""
        assert self.capture is not None, f"exit {self.code}: {self.stderr}"
        return self.capture


def session_members(leader: int) -> list[str]:
    """Return the processes of a session that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def run_probe(*arguments: str, prefix: Sequence[str] = (), seconds: float = PATIENCE) -> Snap:
    """Run the probe to its end; whatever it started must be gone by then."""
    argv = [*prefix, str(probe.find()), *arguments]
    start = time.monotonic()
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    taken = time.monotonic() - start
    wait_until(lambda: not session_members(process.pid), "nothing is left of the probe")
    text = err.decode()
    assert process.returncode in (0, 1, 2, 3), f"exit {process.returncode}: {text}"
    capture = None
    if process.returncode in (0, 3) and out.startswith(b'{"type"'):
        check_written(out)
        capture = capturefile.loads(out, "stdout")
        # A worker that crashed is survived and noted; but nothing here may crash it.
        if "--deadline" not in arguments:
            assert not [note for note in capture.notes if note.code.startswith("worker")]
    return Snap(process.returncode, capture, out, text, taken)


def snap(
    pid: int,
    *options: str,
    backend: str = "bpf",
    prefix: Sequence[str] = (),
    seconds: float = PATIENCE,
) -> Snap:
    """Capture one process; with ptrace threads blocked in a read are not left out."""
    more = ["--stop-blocked-reads"] if backend == "ptrace" else []
    return run_probe(
        "snap",
        "--pid",
        str(pid),
        "--backend",
        backend,
        *more,
        *options,
        prefix=prefix,
        seconds=seconds,
    )


def by_tid(capture: Capture) -> dict[int, Thread]:
    """Return the threads of a capture of one process."""
    return {thread.tid: thread for thread in capture.threads}


def assert_lock(lock: Lock, fact: Fact, waiters: int) -> None:
    """Compare a lock with what its target knows of it, but for its address."""
    assert lock.kind == fact.kind, (fact, lock)
    assert lock.owner_tid == fact.owner, (fact, lock)
    if fact.readers is not None:
        assert lock.readers == fact.readers, (fact, lock)
    assert lock.symbol == fact.symbol, (fact, lock)
    assert lock.waiters == waiters, (fact, lock)
    assert lock.stable, (fact, lock)


def assert_frames(capture: Capture, facts: Sequence[Fact], *modules: str) -> None:
    """Assert that every known thread is there, with exactly the frames that it says it has."""
    threads = by_tid(capture)
    for fact in facts:
        thread = threads[fact.tid]
        assert own_frames(thread, *modules) == fact.expected(), (fact.wait, thread)


def assert_unharmed(pid: int) -> None:
    """Assert that it is there, and that no thread of it stays stopped or traced."""
    os.kill(pid, 0)
    assert not trouble_left(pid)
