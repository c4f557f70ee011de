# SPDX-License-Identifier: Apache-2.0
"""What the agent costs, how soon it has a capture, and what pt-stalk has of the same stall."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench import (
    agent_delays,
    agent_faultmoments,
    agent_faults,
    agent_locks,
    agent_month,
    agent_peer,
    agent_postgres,
    agent_servers,
    progress,
)
from tests.bench.agent_cost import cpu_ns, parts_mb
from tests.bench.agent_scrape import scrape_section
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted
from tests.bench.throughput import Window, window
from tests.support.agents import agent
from tests.support.servers import MariaDB
from tests.support.stalls.load import sysbench_load

__all__ = ["sections"]

CPU_GOAL = 1.0
MEMORY_GOAL_MB = 80.0
THROUGHPUT_GOAL = 0.99
LOAD = "oltp_read_write"
SETTLE_SECONDS = 2.0
"""From when it is ready: what it does once is not what it costs."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    seconds: float = 60
    load_threads: int = 16
    pairs: int = 20
    pair_seconds: float = 5
    delays: agent_delays.Sizes = agent_delays.FULL
    servers: agent_servers.Sizes = agent_servers.FULL


FULL = Sizes()
QUICK = Sizes(
    seconds=20,
    load_threads=8,
    pairs=6,
    pair_seconds=3,
    delays=agent_delays.QUICK,
    servers=agent_servers.QUICK,
)


def sections(
    server: str,
    quick: bool,
    only: list[str],
    *,
    faults: bool = False,
    month: bool = False,
    moments: agent_faultmoments.Options | None = None,
) -> Iterator[Section]:
    """Yield the tables that are wanted: cost, throughput, delay-sql, delay-probe, pt-stalk,
    scrape, servers, lock-waits (on MySQL 9.7), postgres; or those of faults: the fixed ones, and
    those at random ``moments``; or that of a simulated ``month``."""
    if server != "mariadb":
        raise BenchError(f"the agent is measured on mariadb, not on {server}")
    if month:
        yield agent_month.section(agent_month.QUICK if quick else agent_month.FULL)
        return
    if faults:
        yield from agent_faults.sections(quick, only, moments or agent_faultmoments.Options())
        return
    sizes = QUICK if quick else FULL
    makers: dict[str, Callable[[], Section]] = {
        "cost": lambda: cost(sizes),
        "throughput": lambda: throughput(sizes),
        "delay-sql": lambda: agent_delays.sql_section(sizes.delays),
        "delay-probe": lambda: agent_delays.probe_section(sizes.delays),
        "pt-stalk": agent_peer.section,
        "lock-waits": lambda: agent_locks.section(quick),
        "postgres": lambda: agent_postgres.section(quick),
        "scrape": lambda: scrape_section(sizes.seconds),
        "servers": lambda: agent_servers.section(sizes.servers),
    }
    for name in wanted(makers, only):
        yield makers[name]()


def cost(sizes: Sizes) -> Section:
    """Measure CPU and memory of the agent and its probe, at 1 Hz, on a busy server."""
    rows, shares, memory = [], [], []
    with (
        MariaDB() as server,
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder,
        sysbench_load(server, sizes.load_threads, LOAD),
        agent(server, Path(folder) / "store") as watch,
    ):
        progress("what the agent needs")
        time.sleep(SETTLE_SECONDS)
        asked = server.status("Questions")
        begun, before = time.monotonic(), cpu_ns(watch)
        end = begun + sizes.seconds
        while time.monotonic() < end:
            time.sleep(1)
            memory.append(parts_mb(watch))
        seconds = time.monotonic() - begun
        after = cpu_ns(watch)
        rate = (server.status("Questions") - asked) / seconds
        captured = len({incident["id"] for incident in watch.of("stall")})
    for part in ("agent", "probe"):
        share = (after[part] - before[part]) / seconds / 1e7
        shares.append(share)
        cells: dict[str, Figure | str] = {
            "CPU": f"{share:.2f} % of one",
            "memory (Pss)": figure([m[part] for m in memory], "MiB"),
        }
        rows.append(Row(part, cells))
    total = [m["agent"] + m["probe"] for m in memory]
    rows.append(
        Row(
            "together",
            {"CPU": f"{sum(shares):.2f} % of one", "memory (Pss)": figure(total, "MiB")},
        )
    )
    return Section(
        "cost",
        f"The agent at 1 Hz during {LOAD} by {sizes.load_threads} threads"
        f" ({rate:.0f} queries/s), over {seconds:.0f} s",
        tuple(rows),
        checks=(f"{captured} incidents meanwhile",),
        goals=(
            (
                f"CPU: {sum(shares):.2f} % of one core, {CPU_GOAL:g} % allowed",
                sum(shares) <= CPU_GOAL,
            ),
            (
                f"memory: {max(total):.1f} MiB, {MEMORY_GOAL_MB:g} allowed",
                max(total) <= MEMORY_GOAL_MB,
            ),
        ),
    )


def throughput(sizes: Sizes) -> Section:
    """Compare what sysbench gets out of a server with the agent and without, in turns."""
    on: list[Window] = []
    off: list[Window] = []
    with (
        MariaDB() as server,
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder,
        sysbench_load(server, sizes.load_threads, LOAD),
    ):
        for number in range(sizes.pairs):
            progress(f"throughput: pair {number + 1}")
            if number % 2:
                off.append(window(server, sizes.pair_seconds))
            with agent(server, Path(folder) / "store"):
                time.sleep(SETTLE_SECONDS)
                on.append(window(server, sizes.pair_seconds))
            if not number % 2:
                off.append(window(server, sizes.pair_seconds))
    ratios = [a.rate / b.rate for a, b in zip(on, off, strict=True)]
    cpu = [a.cpu_ns / b.cpu_ns for a, b in zip(on, off, strict=True)]
    median = statistics.median(ratios)
    row = Row(
        "stallscope watch",
        {
            "of without": figure(ratios, ""),
            "CPU of one, of without": figure(cpu, ""),
            "queries/s": f"{statistics.median(w.rate for w in on):.0f}",
            "without": f"{statistics.median(w.rate for w in off):.0f}",
        },
    )
    return Section(
        "throughput",
        f"Queries of {LOAD}, {sizes.load_threads} sysbench threads,"
        f" {sizes.pairs} pairs of {sizes.pair_seconds:g} s",
        (row,),
        goals=((f"{median:.3f} of without, {THROUGHPUT_GOAL} wanted", median >= THROUGHPUT_GOAL),),
    )
