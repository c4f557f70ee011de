# SPDX-License-Identifier: Apache-2.0
"""What ``stallscope top`` costs the machine, its probe included."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import progress
from tests.bench.load import SERVERS
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.pty_child import OnTerminal, on_terminal
from tests.support.servers import SqlServer
from tests.support.servers.clients import idle_connections
from tests.support.servers.waiting import wait_until
from tests.support.stalls import metadata_lock_pileup
from tests.support.stalls.load import sysbench_load
from tests.support.usage import process_tree, tree_cpu_ns

__all__ = ["sections"]

GOAL_PERCENT = 2.0
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    connections: int = 400
    load_threads: int = 16
    waiters: int = 100
    seconds: int = 60
    warm_seconds: float = 15.0


FULL = Sizes()
QUICK = Sizes(seconds=15)


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure ``top`` on a server at rest, under load, and in a stall."""
    sizes = QUICK if quick else FULL
    if only and "cpu" not in only:
        return
    with SERVERS[server_name]("--max-connections=1000") as server:
        yield cpu_section(server, sizes)


def cpu_section(server: SqlServer, sizes: Sizes) -> Section:
    """Measure the CPU time of ``top`` and its probe, second by second, at 80 x 24."""
    rows = []
    with idle_connections(server, sizes.connections):
        row, rest = _measure(f"{sizes.connections} idle connections", server, sizes)
        rows.append(row)
        with ExitStack() as stack:
            stack.enter_context(metadata_lock_pileup(server, sizes.waiters))
            name = f"the same, and {sizes.waiters} statements that wait for a metadata lock"
            rows.append(_measure(name, server, sizes)[0])
        with sysbench_load(server, sizes.load_threads):
            name = f"the same at rest, and sysbench oltp_read_write by {sizes.load_threads} threads"
            rows.append(_measure(name, server, sizes)[0])
    return Section(
        "cpu",
        f"stallscope top on {server.name} {server.version()}, 80 x 24, {sizes.seconds} s each",
        tuple(rows),
        goals=((f"under {GOAL_PERCENT:g} % of one core on a server at rest", rest < GOAL_PERCENT),),
        notes=("the CPU time of Python and of the probe with its worker, by schedstat",),
    )


def _measure(name: str, server: SqlServer, sizes: Sizes) -> tuple[Row, float]:
    progress(f"top: {name}")
    argv = [sys.executable, "-m", "stallscope", "top", "-p", str(server.pid)]
    argv += ["--dest", tempfile.gettempdir()]
    with on_terminal(argv, CHECKOUT) as top:
        wait_until(lambda: len(process_tree(top.pid)) > 1, "top has started its probe", 60)
        time.sleep(sizes.warm_seconds)
        shares, drawn = _watch(top, sizes.seconds)
        if top.process.poll() is not None:
            raise BenchError(f"top ended with code {top.process.returncode}")
        probe = statistics.mean(share for share, _ in shares)
        python = statistics.mean(share for _, share in shares)
    whole = python + probe
    cells: dict[str, Figure | str] = {
        "CPU": f"{whole:.2f} % of one",
        "of it Python": f"{python:.2f} %",
        "the probe": f"{probe:.2f} %",
        "a second at most": figure([a + b for a, b in shares], "%"),
        "written": f"{drawn / sizes.seconds:.0f} B/s",
    }
    return Row(name, cells), whole


def _watch(top: OnTerminal, seconds: int) -> tuple[list[tuple[float, float]], int]:
    """Return the CPU shares (probe, Python) of each second in percent, and the bytes drawn."""
    probe = process_tree(top.pid)[1]
    shares = []
    drawn = top.bytes
    for _ in range(seconds):
        start, whole, of_probe = time.monotonic(), tree_cpu_ns(top.pid), tree_cpu_ns(probe)
        time.sleep(1)
        span = (time.monotonic() - start) * 1e7
        now = tree_cpu_ns(probe)
        shares.append(
            (
                (now - of_probe) / span,
                (tree_cpu_ns(top.pid) - whole - (now - of_probe)) / span,
            )
        )
    return shares, top.bytes - drawn
