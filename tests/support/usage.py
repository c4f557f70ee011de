# SPDX-License-Identifier: Apache-2.0
"""CPU time, memory and I/O of processes, and of all that they have started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "children",
    "io_bytes",
    "process_cpu_ns",
    "process_tree",
    "pss_mb",
    "status_kb",
    "threads_cpu_ns",
    "tree_cpu_ns",
]


def children(pid: int) -> list[int]:
    """Return what a process, or one of its threads, has started and what still runs."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def process_tree(pid: int) -> list[int]:
    """Return a process and all below it: a probe and its workers."""
    found = [pid]
    for member in found:
        found += [child for child in children(member) if child not in found]
    return found


def threads_cpu_ns(pid: int) -> int:
    """Return the CPU time so far of the threads that a process has.

    By /proc/PID/task/TID/schedstat, in ns: /proc/PID/stat counts in steps of 10 ms.
    """
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def tree_cpu_ns(pid: int) -> int:
    """Return the CPU time so far of the threads of a process and of all below it."""
    return sum(map(threads_cpu_ns, process_tree(pid)))


def process_cpu_ns(pid: int) -> int:
    """Return the CPU time so far of a process, of its threads that have ended too, in ns.

    By its clock, as clock_getcpuclockid(3) makes its number: CPUCLOCK_SCHED of the process.
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


def _number(file: str, name: str) -> int:
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def status_kb(pid: int, name: str) -> int:
    """Return a size from /proc/PID/status in KiB."""
    return _number(f"/proc/{pid}/status", name)


def pss_mb(pids: Iterable[int], part: str = "Pss") -> float:
    """Return the memory of these processes, or a part of it; what several share counts once."""
    return sum(_number(f"/proc/{pid}/smaps_rollup", part) for pid in pids) / 1024


def io_bytes(pid: int, name: str) -> int:
    """Return a figure of /proc/PID/io."""
    return _number(f"/proc/{pid}/io", name)
