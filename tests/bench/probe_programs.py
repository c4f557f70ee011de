# SPDX-License-Identifier: Apache-2.0
"""How often the kernel runs the programs of the probes under a load, and for how long."""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench import progress
from tests.bench.stats import BenchError, Row, Section
from tests.bench.watchers import Watcher, Watching, probe_waits
from tests.support.bpf_objects import descriptors
from tests.support.servers import SqlServer, program
from tests.support.stalls.load import sysbench_load
from tests.support.usage import tree_cpu_ns

__all__ = ["program_section"]

# include/uapi/linux/bpf.h, and the number of bpf(2) on x86-64.
_SYS_BPF = 321
_BPF_ENABLE_STATS = 32
_BPF_STATS_RUN_TIME = 0

Times = dict[str, tuple[int, int]]
"""By program: ns, and runs."""


@contextmanager
def timed_programs() -> Iterator[None]:
    """Have the kernel time all BPF programs; it stops when the block ends, or this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = ctypes.c_uint32(_BPF_STATS_RUN_TIME)
    fd = libc.syscall(_SYS_BPF, _BPF_ENABLE_STATS, ctypes.byref(wanted), ctypes.sizeof(wanted))
    if fd < 0:
        raise BenchError(f"bpf(BPF_ENABLE_STATS): {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(fd)


def program_times(pid: int) -> Times:
    """Return the times of the programs that a process holds."""
    found = {}
    for number, (ns, runs) in held_programs(pid).items():
        command = [str(program("bpftool")), "--json", "prog", "show", "id", number]
        done = subprocess.run(command, check=True, capture_output=True, timeout=30)
        found[json.loads(done.stdout)["name"]] = (ns, runs)
    return found


def held_programs(pid: int) -> dict[str, tuple[int, int]]:
    found = {}
    for fdinfo in descriptors(pid):
        fields = dict(line.split(":", 1) for line in fdinfo.splitlines() if ":" in line)
        if "run_cnt" in fields:
            number = fields["prog_id"].strip()
            found[number] = (int(fields["run_time_ns"]), int(fields["run_cnt"]))
    return found


def program_section(
    server: SqlServer,
    test: str,
    threads: int,
    seconds: float,
    watcher: Watcher | None = None,
    most: float = math.inf,
) -> Section:
    """Time the programs of a probe on a server under a load. ``most``: as how many times the
    server's CPU time that may be without them."""
    watcher = watcher or probe_waits()
    progress(f"BPF programs: {test}")
    with (
        sysbench_load(server, threads, test),
        Watching(watcher, server.pid) as watching,
        timed_programs(),
    ):
        before = program_times(watching.pid)
        done, used, start = server.status("Questions"), tree_cpu_ns(server.pid), time.monotonic()
        time.sleep(seconds)
        after = program_times(watching.pid)
        passed = time.monotonic() - start
        used = tree_cpu_ns(server.pid) - used
        done = server.status("Questions") - done
    ran = {
        name: (ns - before[name][0], runs - before[name][1]) for name, (ns, runs) in after.items()
    }
    rows = [
        program_row(name, ns, runs, passed)
        for name, (ns, runs) in sorted(ran.items(), key=lambda one: -one[1][0])
        if runs
    ]
    ran_ns, ran_times = (sum(one[part] for one in ran.values()) for part in (0, 1))
    rows.append(program_row("all", ran_ns, ran_times, passed))
    # At most: those that run in the threads of clients are among them.
    times = used / (used - ran_ns)
    goals: tuple[tuple[str, bool], ...] = ()
    if not math.isinf(most):
        text = f"at most {times:.3f} times the server's CPU time without them, {most:g} allowed"
        goals = ((text, times <= most),)
    title = (
        f"BPF programs of {watcher} under {test}, {server.name} {server.version()},"
        f" {threads} threads, "
        f"{done / passed:.0f} queries/s, {used / 1e7 / passed:.0f} % of a CPU for the server"
    )
    note = f"{ran_ns / done:.0f} ns a query, of {used / done / 1e3:.1f} us of the server's CPU time"
    return Section(f"cost-programs-{test}", title, tuple(rows), goals=goals, notes=(note,))


def program_row(name: str, ns: int, runs: int, passed: float) -> Row:
    return Row(
        name,
        {
            "runs/s": f"{runs / passed:.0f}",
            "a run, with the clock's part": f"{ns / runs if runs else 0:.0f} ns",
            "of one CPU": f"{ns / 1e7 / passed:.2f} %",
        },
    )
