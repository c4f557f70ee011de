# SPDX-License-Identifier: Apache-2.0
"""Stacks as gdb and libunwind see them, to compare the probe's with."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Thread
from tests.support.targets import build_folder

__all__ = [
    "Seen",
    "assert_same_stacks",
    "checked",
    "core_in",
    "counters",
    "gdb_threads",
    "whole_cores",
]

SCRIPT = Path(__file__).with_name("frames.gdb")
LONGEST = 300


class Seen(NamedTuple):
    """A thread as gdb shows it."""

    syscall: int
    argument: int
    counters: list[int]


def checked(*command: str | Path) -> str:
    """Return what a program prints that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def gdb_threads(*arguments: str | Path, sysroot: Path | None = None) -> dict[int, Seen]:
    """Return each thread of what gdb is given: ``-p PID``, or a program and its core."""
    command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off"]
    if sysroot is not None:
        command += ["-iex", f"set sysroot {sysroot}"]
    printed = checked(*command, *arguments, "-x", SCRIPT)
    (line,) = [line for line in printed.splitlines() if line.startswith("FRAMES ")]
    answer = json.loads(line.removeprefix("FRAMES "))
    return {int(tid): Seen(*seen) for tid, seen in answer.items()}


def counters(thread: Thread) -> list[int | None]:
    return [frame.pc for frame in thread.frames]


@contextmanager
def whole_cores() -> Iterator[None]:
    """Let programs that are started meanwhile write cores of any size."""
    before, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (before, most))


def core_in(folder: Path) -> Path:
    """Return the one core that the kernel has written there."""
    (core,) = [path for path in folder.iterdir() if path.name.split(".")[0] == "core"]
    return core


def _without_end(pcs: list[int]) -> list[int]:
    """Leave out a return address of 0: gdb shows it as a frame."""
    return pcs[:-1] if len(pcs) > 1 and pcs[-1] == 0 else pcs


def assert_same_stacks(core: Path, exe: Path, sysroot: Path | None = None) -> Capture:
    """Compare all stacks in a core, frame by frame, and return them."""
    root = [] if sysroot is None else [str(sysroot)]
    checked(build_folder() / "tests/c/test-core_libunwind", core, exe, *root)
    command: list[str | os.PathLike[str]] = [probe.find(), "core", "--core", core, "--exe", exe]
    command += [f"--sysroot={name}" for name in root]
    done = subprocess.run(command, capture_output=True, timeout=LONGEST, check=False)
    capture = capturefile.loads(done.stdout, str(core))
    theirs = gdb_threads(exe, core, sysroot=sysroot)
    assert {thread.tid: counters(thread) for thread in capture.threads} == {
        tid: _without_end(seen.counters) for tid, seen in theirs.items()
    }
    return capture
