# SPDX-License-Identifier: Apache-2.0
"""What part of a loaded server's CPU time is spent in the in-process library's own code.

On a machine whose throughput differs by half from second to second this is the steadier figure: it
is a share within one run. What it cannot show is waiting: a thread that gets its lock later.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from stallscope.collectors import rings as find_rings
from tests.bench import progress
from tests.bench.inproc_load import Plan
from tests.bench.probes import DURABLE
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.servers import SqlServer
from tests.support.servers.inside import LIBRARY, agent_inside, one_ring
from tests.support.stalls.load import sysbench_load

__all__ = ["leaves", "share_section"]

HERTZ = 999
SECONDS = 5


def leaves(script: Iterable[str]) -> Iterator[str]:
    """Yield for each sample of ``perf script -F ip,dso`` the file whose code it was in.

    A system call counts for the file that made it; what has no frame of the program is ``kernel``.
    """
    leaf, is_sample = "kernel", False
    for line in script:
        if not line.strip():
            if is_sample:
                yield leaf
            leaf, is_sample = "kernel", False
            continue
        is_sample = True
        dso = line.rsplit("(", 1)[-1].rstrip().rstrip(")")
        if leaf == "kernel" and "[kernel" not in dso and not dso.endswith(".ko"):
            leaf = dso.rsplit("/", 1)[-1]
    if is_sample:
        yield leaf


def share_section(kind: type[SqlServer], tests: Iterable[str], plan: Plan) -> Section:
    """Sample each test's server some times."""
    title = f"CPU time of a server in the library's own code, {plan.threads} sysbench threads"
    if shutil.which("perf") is None:
        why = "share: there is no perf here; install linux-perf"
        return Section("share", title, (), left_out=(why,))
    server, rows = kind(DURABLE), []
    with agent_inside(server) as rings, server:
        for test in tests:
            progress(f"share: {test}")
            with sysbench_load(server, plan.threads, test):
                begun = find_rings.read(one_ring(rings)).waits
                rows.append(Row(test, _cells(server.pid, plan.pairs)))
                if find_rings.read(one_ring(rings)).waits == begun:
                    raise BenchError(f"the library has seen no wait of {test}")
        title += f", {server.name} {server.version()}, perf's cpu-clock at {HERTZ} Hz"
    check = "the library has seen waits meanwhile"
    return Section("share", title, tuple(rows), (check,))


def _cells(pid: int, rounds: int) -> dict[str, Figure | str]:
    shares, samples = [], 0
    for _ in range(rounds):
        counts = _sample(pid)
        total = sum(counts.values())
        samples += total
        shares.append(100 * counts[LIBRARY] / total)
    return {
        "in the library, its system calls included": figure(shares, "%"),
        "samples": f"{samples}",
        "mean": f"{statistics.mean(shares):.2f} %",
    }


def _sample(pid: int) -> Counter[str]:
    with tempfile.TemporaryDirectory(prefix="stallscope-perf-") as folder:
        data = Path(folder) / "perf.data"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-g", "-o", data]
        _run([*record, "-p", pid, "--", "sleep", SECONDS])
        counts = Counter(leaves(_run(["perf", "script", "-i", data, "-F", "ip,dso"]).splitlines()))
    if not counts:
        raise BenchError(f"perf took no sample of {pid}")
    return counts


def _run(argv: Iterable[object]) -> str:
    done = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"perf failed: {last}")
    return done.stdout
