# SPDX-License-Identifier: Apache-2.0
"""What the agent needs at rest, and whether it is in time when something waits."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stallscope.collectors.triggers.triggerfile import DEFAULTS
from tests.bench import progress
from tests.bench.footprint import footprint
from tests.bench.overhead_load import cpu_seconds
from tests.bench.overhead_variants import rests, wait_at_rest
from tests.bench.overhead_waits import latency_section, wait_closed
from tests.bench.stats import Figure, Interval, Row, Section, figure
from tests.support.agents import AgentProcess, agent, incidents
from tests.support.bpf_objects import attached, held
from tests.support.servers import SqlServer
from tests.support.servers.clients import idle_connections
from tests.support.stalls import global_read_lock, metadata_lock_pileup
from tests.support.usage import pss_mb

__all__ = ["FULL", "QUICK", "Sizes", "makers"]

NewServer = Callable[..., SqlServer]

MEMORY_GOAL_MB = 100.0
CPU_GOALS = {400: 0.5, 4000: 1.0}
"""Percent of one CPU, by connections."""
STALLS = {"metadata lock": metadata_lock_pileup, "global read lock": global_read_lock}
STALL_SECONDS = 1.0
THREAD_IDS = {
    "mariadb": "SELECT id, tid FROM information_schema.processlist",
    "mysql97": "SELECT processlist_id, thread_os_id FROM performance_schema.threads"
    " WHERE processlist_id IS NOT NULL",
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    connections: tuple[int, ...] = tuple(CPU_GOALS)
    settle_seconds: float = 40.0
    seconds: float = 60.0
    waits: int = 20
    stalls: int = 100


FULL = Sizes()
QUICK = Sizes(connections=(400,), settle_seconds=10, seconds=10, waits=3, stalls=3)


def makers(
    new_server: NewServer, sizes: Sizes, seed: int
) -> dict[str, Callable[[], Iterator[Section]]]:
    """Return the tables of this part."""
    return {
        "figures-rest": lambda: rest_section(new_server, sizes),
        "figures-latency": lambda: latency_section(sizes.waits, seed),
        "figures-stalls": lambda: stall_section(new_server, sizes),
    }


def rest_section(new_server: NewServer, sizes: Sizes) -> Iterator[Section]:
    """Measure the agent beside connections that do nothing."""
    rows: list[Row] = []
    goals: list[tuple[str, bool]] = []
    for count in sizes.connections:
        with new_server(f"--max-connections={count + 100}") as server:
            with idle_connections(server, count):
                row, more = at_rest(server, count, sizes)
            version = f"{server.name} {server.version()}"
        rows += row
        goals += more
    yield Section(
        "figures-rest",
        f"The agent beside idle connections, {version}, {sizes.seconds:g} s from"
        f" {sizes.settle_seconds:g} s after its start",
        tuple(rows),
        goals=tuple(goals),
        notes=(
            "CPU in percent of one; SQL is the time of the server's own thread for the agent's"
            " connection; memory is the largest of the samples, one a second",
        ),
    )


def at_rest(
    server: SqlServer, count: int, sizes: Sizes
) -> tuple[list[Row], list[tuple[str, bool]]]:
    """Measure the agent on a server that has nothing to do."""
    progress(f"{count} connections: the agent settles")
    before = set(sql_threads(server))
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder,
        agent(server, Path(folder) / "store") as watch,
    ):
        wait_at_rest(watch)
        time.sleep(sizes.settle_seconds)
        progress(f"{count} connections: what the agent needs")
        own = {id: tid for id, tid in sql_threads(server).items() if id not in before}
        begun, used = time.monotonic(), cpu_parts(watch, server, own.values())
        memory, links = [], []
        while time.monotonic() < begun + sizes.seconds:
            time.sleep(1)
            memory.append((pss_mb(watch.members()), footprint(watch.members()).rss_kb / 1024))
            links.append(attached(watch.members()))
        seconds = time.monotonic() - begun
        shares = {
            part: 100 * (now - used[part]) / seconds
            for part, now in cpu_parts(watch, server, own.values()).items()
        }
        programs = sum(name.startswith("prog") for pid in watch.members() for name in held(pid))
    total = sum(shares.values())
    pss, rss = max(one for one, _ in memory), max(two for _, two in memory)
    cells: dict[str, Figure | Interval | str] = {
        "CPU": f"{total:.2f} %",
        **{f"of it {part}": f"{share:.2f} %" for part, share in shares.items()},
        "memory (Pss)": f"{pss:.1f} MiB",
        "(Rss)": f"{rss:.1f} MiB",
        "programs loaded": f"{programs}",
        "attached": f"{max(links)}",
    }
    goals = [
        (f"{count} connections: {pss:.1f} MiB, {MEMORY_GOAL_MB:g} allowed", pss <= MEMORY_GOAL_MB)
    ]
    if (most := CPU_GOALS.get(count)) is not None:
        text = f"{count} connections: {total:.2f} % of one CPU, {most:g} allowed"
        goals.append((text, total <= most))
    goals.append(
        (f"{count} connections: {max(links)} programs attached, 0 allowed", not max(links))
    )
    return [Row(f"{count} connections", cells)], goals


def sql_threads(server: SqlServer) -> dict[int, int]:
    """Return the thread of each connection, by the connection's id."""
    rows = server.query(THREAD_IDS[server.name])
    return {int(row[0]): int(row[1]) for row in rows if row[1]}


def cpu_parts(watch: AgentProcess, server: SqlServer, tids: Iterable[int]) -> dict[str, float]:
    """Return the CPU seconds so far of the agent's parts; ``tids`` are threads of the server."""
    tasks = [Path(f"/proc/{server.pid}/task/{tid}/schedstat") for tid in tids]
    return {
        "Python": cpu_seconds([watch.pid]),
        "probe": cpu_seconds(watch.members()[1:]),
        "SQL": sum(int(task.read_text().split()[0]) for task in tasks) / 1e9,
    }


def stall_section(new_server: NewServer, sizes: Sizes) -> Iterator[Section]:
    """Make stalls of a second, and count those that the agent has captured meanwhile."""
    caught: dict[str, list[bool]] = {name: [] for name in STALLS}
    delays: dict[str, list[float]] = {name: [] for name in STALLS}
    with ExitStack() as stack:
        server = stack.enter_context(new_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallscope-bench-")))
        triggers = folder / "triggers.toml"
        # Each stall is to be an incident with captures: after one, triggers sleep no longer than
        # need be, and the stalls of an hour would need more captures than are allowed in one.
        soon = re.sub(r"\nsleep = \d+", "\nsleep = 3\nrun-time = 2", DEFAULTS.read_text())
        soon = re.sub(r"captures-an-hour = \d+", "captures-an-hour = 100000", soon)
        triggers.write_text(soon)
        store = folder / "store"
        watch = stack.enter_context(agent(server, store, "--triggers", triggers))
        for number in range(sizes.stalls):
            name = list(STALLS)[number % len(STALLS)]
            progress(f"stall {number + 1} of {sizes.stalls}: {name}")
            wait_at_rest(watch)
            closed = len(watch.of("end"))
            begun, ended = make_stall(server, name)
            wait_closed(watch, closed)
            times = capture_times(store, begun, ended)
            caught[name].append(bool(times))
            delays[name] += [(times[0] - begun) / 1e6] if times else []
        version = f"{server.name} {server.version()}"
    rows = tuple(
        Row(
            name,
            {
                "stalls": f"{len(found)}",
                "captured meanwhile": f"{sum(found)}",
                "first capture after": figure(delays[name], "ms") if delays[name] else "-",
            },
        )
        for name, found in caught.items()
    )
    count = sum(map(sum, caught.values()))
    yield Section(
        "figures-stalls",
        f"Stalls of {STALL_SECONDS:g} s of {version}, default triggers",
        rows,
        checks=(("the agent rests before each of them",) if rests() else ()),
        goals=((f"{count} of {sizes.stalls} stalls captured", count == sizes.stalls),),
        notes=("counted from when all statements of the stall waited",),
    )


def make_stall(server: SqlServer, name: str) -> tuple[int, int]:
    """Let statements wait for a second; return when all did and when they no longer had to."""
    with STALLS[name](server):
        begun = time.time_ns()
        time.sleep(STALL_SECONDS)
        return begun, time.time_ns()


def capture_times(store: Path, begun: int, ended: int) -> list[int]:
    """Return when captures were taken within a time, by the wall clock."""
    return sorted(
        capture.time_ns
        for incident in incidents(store)
        for capture in incident.captures
        if begun <= capture.time_ns <= ended
    )
