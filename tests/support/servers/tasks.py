# SPDX-License-Identifier: Apache-2.0
"""What the threads of a process are about to do, as /proc has it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tests.support.servers.waiting import Late, wait_until

__all__ = ["at_rest", "held_up", "wait_held_up"]

ASLEEP = frozenset("SI")
UTIME, STIME = 11, 12  # of /proc/PID/task/TID/stat, behind the name
SPINNING = 2
"""Seconds of CPU time; a connection's thread takes milliseconds to where it waits."""
NO_CALL = ("running", "-1")
"""What /proc/PID/task/TID/syscall says of a thread that runs, and of one in a page fault."""


def at_rest(pid: int) -> bool:
    """Return whether all threads sleep: none runs, waits for a CPU, or for a page of its memory.

    A server says what a statement waits for before its thread is there, and a thread that has to
    wait for a CPU on its way can take long. One that has computed for seconds is not on its way:
    MariaDB's purge spins for as long as DDL waits for a table whose old rows it is to remove.
    """
    return all(_state(task) in ASLEEP or _spins(task) for task in _tasks(pid))


def held_up(pid: int) -> bool:
    """Return whether all threads sleep but those, one at least, whose system calls want the
    disk."""
    awake = [task for task in _tasks(pid) if _state(task) not in ASLEEP]
    return bool(awake) and all(_waits_for_the_disk(task) for task in awake)


def wait_held_up(pid: int) -> None:
    """Return when the process is held up; a failure names the threads that are awake."""
    try:
        wait_until(lambda: held_up(pid), "one waits for the disk, and all others sleep")
    except Late as late:
        for task in _tasks(pid):
            if _state(task) not in ASLEEP:
                late.add_note(
                    "\n".join(_text(task / name) for name in ("stat", "syscall", "stack"))
                )
        raise


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _state(task: Path) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "I"  # it has ended


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return str(error)


def _spins(task: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[UTIME]) + int(fields[STIME]) > SPINNING * os.sysconf("SC_CLK_TCK")
    return False  # it has ended


def _waits_for_the_disk(task: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return _state(task) == "D" and not (task / "syscall").read_text().startswith(NO_CALL)
    return False  # it has ended
