# SPDX-License-Identifier: Apache-2.0
"""What the probes add to a call, also of processes that nobody watches, and what they need."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from tests.bench import progress
from tests.bench.events import final_line
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.watchers import NOTHING, PEERS, Watcher, Watching, probe_waits, why_not
from tests.support.servers import SqlServer
from tests.support.servers.clients import idle_connections
from tests.support.stalls.load import sysbench_load
from tests.support.targets import Target
from tests.support.usage import process_tree, pss_mb

__all__ = ["FULL", "QUICK", "Sizes", "call_section", "need_section"]

LOAD = "oltp_read_write"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    pairs: int = 6
    batches: int = 150
    rare_batches: int = 300
    connections: int = 400
    load_threads: int = 16
    seconds: float = 10


FULL = Sizes()
QUICK = Sizes(pairs=3, batches=100, rare_batches=200, connections=100, load_threads=8, seconds=4)

# What is asked of tests/targets/costs.c, and what one such call is.
CALLS = {
    "getppid": "a system call that is no wait",
    "futex_changed": "a futex wait that fails (EAGAIN)",
    "futex_wake": "a futex wake of nobody",
    "futex_wait": "two futex waits and two wakes, with their switches",
    "function": "a function with a uprobe",
}


@dataclass(frozen=True)
class State:
    """Who watches what while calls are timed."""

    name: str
    watcher: Watcher
    other: bool = False
    """It is another process that is watched."""


def states() -> list[State]:
    """Return the states to compare; the first is the one without a watcher."""
    ours = probe_waits()
    found = [
        State("none", NOTHING),
        State("another is watched", ours, other=True),
        State("watched", ours),
    ]
    bpftrace = PEERS[0]
    if why_not(bpftrace) is None:
        found.append(State("another is watched by bpftrace", bpftrace, other=True))
        found.append(State("watched by bpftrace", bpftrace))
    return found


def call_section(sizes: Sizes) -> Section:
    """Time calls of a process with a probe on it, with a probe on another one, and with none."""
    compared = states()
    on: dict[str, dict[str, list[float]]] = {state.name: {} for state in compared}
    with Target("costs") as asked, Target("costs") as other:
        for nr in range(sizes.pairs):
            progress(f"cost of a call: round {nr + 1}")
            for state in compared if nr % 2 else reversed(compared):
                for call, ns in ask_all(state, asked, other, sizes).items():
                    on[state.name].setdefault(call, []).append(ns)
    rows = tuple(call_row(call, on) for call in CALLS)
    title = f"A call of a process that is watched, and of one that is not, {sizes.pairs} rounds"
    checks = ("the uprobe was hit by every call of its function",)
    return Section("cost-call", title, rows, checks)


def ask_all(state: State, asked: Target, other: Target, sizes: Sizes) -> dict[str, float]:
    """Return what each call costs in a state, in ns."""
    found = {}
    with Watching(state.watcher, other.pid if state.other else asked.pid) as watching:
        for call in CALLS:
            batches = sizes.rare_batches if call == "function" else sizes.batches
            found[call] = float(asked.ask(f"{call} {batches}")["ns"])
    if state.name == "watched":
        hits = sum(one.count for one in final_line(watching.lines).server.values())
        if hits < sizes.rare_batches:
            raise BenchError(f"the uprobe was hit {hits} times of {sizes.rare_batches}")
    return found


def call_row(call: str, on: dict[str, dict[str, list[float]]]) -> Row:
    name, *others = on
    alone = on[name][call]
    cells: dict[str, Figure | str] = {"without": figure(alone, "ns")}
    for other in others:
        added = [a - b for a, b in zip(on[other][call], alone, strict=True)]
        cells[f"added where {other}"] = figure(added, "ns")
    return Row(CALLS[call], cells)


def need_section(server: SqlServer, sizes: Sizes) -> Section:
    """Measure the CPU time and memory of a probe on a server at rest and under load."""
    rows = []
    with idle_connections(server, sizes.connections):
        rows.append(need(f"{sizes.connections} idle connections", server, sizes))
        with sysbench_load(server, sizes.load_threads, LOAD):
            name = f"the same, and {LOAD} by {sizes.load_threads} threads"
            rows.append(need(name, server, sizes))
    title = f"What a probe on {server.name} {server.version()} needs, over {sizes.seconds:g} s"
    return Section("cost-need", title, tuple(rows))


def need(name: str, server: SqlServer, sizes: Sizes) -> Row:
    progress(f"what the probe needs: {name}")
    cpu, memory = [], []
    with Watching(probe_waits(), server.pid) as watching:
        end = time.monotonic() + sizes.seconds
        while time.monotonic() < end:
            start, before = time.monotonic(), watching.cpu_ns()
            time.sleep(1)
            used = watching.cpu_ns() - before
            cpu.append(used / 1e7 / (time.monotonic() - start))
            memory.append(pss_mb(process_tree(watching.pid)))
    seen = watching.seen()
    waits = seen.total / (seen.seconds or sizes.seconds)
    return Row(
        name,
        {
            "CPU": f"{statistics.mean(cpu):.2f} % of one",
            "memory": figure(memory, "MiB"),
            "waits/s": f"{waits:.0f}",
        },
    )
