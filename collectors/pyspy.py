# SPDX-License-Identifier: Apache-2.0
"""Take a Capture of a Python process with py-spy: Python frames, which no unwinder of C sees.

py-spy runs with ``--nonblocking``: it reads the interpreter's memory while it runs and never stops
it. A stack that changed meanwhile can be torn, and nothing shows which: so each is labelled
``raced``. py-spy is a child with a deadline; when it hangs, it is killed. Neither a crash nor a
kill of py-spy affects the target.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from stallscope.analyzers import importers
from stallscope.base import package, trust
from stallscope.base.childenv import child_environment
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors import processes, procfile
from stallscope.collectors.programs import reap
from stallscope.model.capture import Capture, Label

__all__ = ["capture", "find", "is_python"]

_MAX_OUTPUT = 64 << 20
_MAX_MAPS = 4 << 20
_TRIES = 3
"""A read during a change of the interpreter's memory fails; the next one rarely does."""
_TORN = "the process ran while it was read: stacks can be inconsistent"
_PROGRAM = re.compile(r"python[0-9.]*(?:d|t)?")
_LIBRARY = re.compile(rb"/libpython[0-9][0-9.]*[a-z]*\.so")


def find() -> str:
    """Return the path of py-spy: in the folder of this Python, or in PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if os.access(beside, os.X_OK) else trust.find_program("py-spy")
    if found is None:
        raise StallscopeError("py-spy is not installed: pip install py-spy")
    return found


def is_python(pid: int) -> bool:
    """Return whether the process is the Python interpreter, or has loaded it as a library."""
    info = processes.read(pid)
    if info is None:
        return False
    if _PROGRAM.fullmatch(os.path.basename(info.exe or info.comm)):
        return True
    maps = procfile.read(Path(f"/proc/{pid}/maps"), _MAX_MAPS)
    return maps is not None and _LIBRARY.search(maps) is not None


def capture(pid: int, *, seconds: float, reason: str | None = None) -> Capture:
    """Take the Python stacks of one process within the deadline.

    Raises: StallscopeError where py-spy is not there, is late, or cannot read the process.
    """
    command = [find(), "dump", "--pid", str(pid), "--json", "--nonblocking"]
    begin, start = time.time_ns(), time.monotonic_ns()
    deadline = time.monotonic() + seconds
    for left in reversed(range(_TRIES)):
        try:
            text = _run(command, pid, deadline, seconds)
            break
        except _FailedError as error:
            if not left or processes.read(pid) is None:
                raise StallscopeError(f"py-spy cannot read process {pid}: {error}") from None
    found = importers.load(text, f"py-spy dump -p {pid}")[0]
    threads = tuple(
        msgspec.structs.replace(
            thread, label=Label.RACED, name=thread.name or processes.thread_name(pid, tid)
        )
        for thread in found.threads
        for tid in (thread.tid,)
    )
    return msgspec.structs.replace(
        found,
        backend="py-spy",
        backend_reason=f"{reason}; {_TORN}" if reason else _TORN,
        processes=(processes.described(pid),),
        threads=threads,
        time_ns=begin,
        elapsed_ns=time.monotonic_ns() - start,
        tool={"name": "stallscope", "version": package.version()},
    )


class _FailedError(Exception):
    """What py-spy said when it failed."""


def _run(command: list[str], pid: int, deadline: float, seconds: float) -> bytes:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=child_environment(),
            cwd="/",
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise StallscopeError(
                f"py-spy on process {pid} took more than {seconds:g} s and was ended;"
                " give a longer --deadline"
            ) from None
        finally:
            child.kill()
            reap(child)
        out.seek(0)
        err.seek(0)
        if code == 0:
            return out.read(_MAX_OUTPUT)
        lines = err.read(65_536).decode("utf-8", "backslashreplace").splitlines()
    said = [line.removeprefix("Error: ") for line in lines if line.strip()]
    raise _FailedError(one_line(said[0], 300) if said else f"it ended with {code}")
