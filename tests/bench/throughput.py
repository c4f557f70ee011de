# SPDX-License-Identifier: Apache-2.0
"""What watching costs: how much of its work a process gets done with the probes on, of without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.bench import progress
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.watchers import (
    NOTHING,
    PEERS,
    PROBE_WAITS,
    STACKS,
    Watcher,
    Watching,
    probe_serve,
    probe_waits,
    why_not,
)
from tests.support.servers import SqlServer
from tests.support.stalls.load import sysbench_load
from tests.support.targets import Target
from tests.support.usage import tree_cpu_ns

__all__ = [
    "Plan",
    "Trial",
    "Window",
    "alternate",
    "cpu_ratios",
    "ratios",
    "server_section",
    "storm_section",
    "window",
]

SERVER_GOAL = 0.98
STORM_GOAL = 0.90
STORM_THREADS = 8


@dataclass(frozen=True)
class Window:
    """What was done in a window."""

    rate: float
    """Operations a second."""
    cpu_ns: float
    """That the process used for each."""


Meter = Callable[[], Window]
"""Measures for a window."""


@dataclass(frozen=True)
class Plan:
    """How often and how long: pairs of a window with and one without."""

    pairs: int
    peer_pairs: int
    seconds: float
    steady: bool = True
    """The process goes on between the windows."""


@dataclass
class Trial:
    """What was measured of one watcher: pairs of windows, and what it counted."""

    on: list[Window] = field(default_factory=list)
    off: list[Window] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """A second, of all kinds."""
    kinds: dict[str, int] = field(default_factory=dict)
    cpu: list[float] = field(default_factory=list)
    """Percent of one CPU."""


def ratios(trial: Trial) -> list[float]:
    """Return on / off of each pair."""
    return [on.rate / off.rate for on, off in zip(trial.on, trial.off, strict=True)]


def cpu_ratios(trial: Trial) -> list[float]:
    """Return on / off of each pair, of the CPU time that one operation takes the process."""
    return [on.cpu_ns / off.cpu_ns for on, off in zip(trial.on, trial.off, strict=True)]


def workable() -> tuple[list[Watcher], tuple[str, ...]]:
    """Return the peers that can watch here, and why the others cannot."""
    able, left_out = [], []
    for peer in PEERS:
        progress(f"trying {peer}")
        if reason := why_not(peer):
            left_out.append(f"{peer}: {reason}")
        else:
            able.append(peer)
    return able, tuple(left_out)


def pairs_of(watcher: Watcher, plan: Plan) -> int:
    if watcher in PEERS:
        return plan.peer_pairs
    return plan.pairs if watcher.name == PROBE_WAITS else max(1, plan.pairs // 2)


def alternate(pid: int, watchers: Sequence[Watcher], meter: Meter, plan: Plan) -> dict[str, Trial]:
    """Measure with each watcher and without, in turns; every other pair begins without."""
    seen = {watcher.name: Trial() for watcher in watchers}
    due = {watcher.name: pairs_of(watcher, plan) for watcher in watchers}
    for nr in range(max(due.values())):
        for watcher in watchers:
            if nr >= due[watcher.name]:
                continue
            progress(f"throughput: {watcher}, pair {nr + 1}")
            trial = seen[watcher.name]
            if nr % 2:
                trial.off.append(meter())
            measure_on(pid, watcher, meter, plan, trial)
            if not nr % 2:
                trial.off.append(meter())
    return seen


def measure_on(pid: int, watcher: Watcher, meter: Meter, plan: Plan, trial: Trial) -> None:
    with Watching(watcher, pid) as watching:
        start, cpu = time.monotonic(), watching.cpu_ns()
        trial.on.append(meter())
        seconds = time.monotonic() - start
        trial.cpu.append((watching.cpu_ns() - cpu) / 1e7 / seconds)
    counted = watching.seen()
    if plan.steady and counted.seconds is not None:
        seconds = counted.seconds
    trial.waits.append(counted.total / seconds)
    for kind, count in counted.counts.items():
        trial.kinds[kind] = trial.kinds.get(kind, 0) + count


def trial_row(watcher: Watcher, trial: Trial) -> Row:
    cells: dict[str, Figure | str] = {
        "of without": figure(ratios(trial), ""),
        "CPU of one, of without": figure(cpu_ratios(trial), ""),
        "operations/s": f"{statistics.median(window.rate for window in trial.on):.0f}",
        "without": f"{statistics.median(window.rate for window in trial.off):.0f}",
    }
    if STACKS in trial.kinds:
        cells["of them"] = f"{trial.kinds[STACKS] // len(trial.on)} {STACKS}"
        cells["its CPU"] = figure(trial.cpu, "%")
    elif watcher.argv:
        cells["waits/s that it saw"] = f"{statistics.median(trial.waits):.0f}"
        most = sorted(trial.kinds, key=lambda kind: -trial.kinds[kind])[:4]
        total = sum(trial.kinds.values())
        cells["of them"] = ", ".join(f"{kind} {trial.kinds[kind] / total:.0%}" for kind in most)
        cells["its CPU"] = figure(trial.cpu, "%")
    return Row(watcher.name, cells)


def section_of(
    name: str,
    title: str,
    pid: int,
    meter: Meter,
    plan: Plan,
    goal: float | None,
) -> Section:
    able, left_out = workable()
    watchers = [probe_waits(), probe_serve("--interval", "1000"), NOTHING, *able]
    seen = alternate(pid, watchers, meter, plan)
    ours = statistics.median(ratios(seen[watchers[0].name]))
    goals: tuple[tuple[str, bool], ...] = ()
    if goal is not None:
        goals = ((f"{watchers[0]}: {ours:.3f} of without, {goal:.2f} wanted", ours >= goal),)
    rows = tuple(trial_row(watcher, seen[watcher.name]) for watcher in watchers)
    checks = ("every watcher counted waits in every round",)
    return Section(name, title, rows, checks, goals, left_out)


def server_section(server: SqlServer, test: str, threads: int, plan: Plan) -> Section:
    """Compare what sysbench gets out of a server with probes and without."""
    with sysbench_load(server, threads, test):
        return section_of(
            f"throughput-{test}",
            f"Queries of {test}, {server.name} {server.version()}, {threads} sysbench threads,"
            f" {plan.pairs} pairs of {plan.seconds:g} s",
            server.pid,
            lambda: window(server, plan.seconds),
            plan,
            SERVER_GOAL,
        )


def window(server: SqlServer, seconds: float) -> Window:
    """Count the server's queries, and the CPU time of one, for a while."""
    start, before, cpu = time.monotonic(), server.status("Questions"), tree_cpu_ns(server.pid)
    time.sleep(seconds)
    done = server.status("Questions") - before
    if done <= 0:
        raise BenchError(f"{server.name} does nothing")
    return Window(done / (time.monotonic() - start), (tree_cpu_ns(server.pid) - cpu) / done)


def storm_section(inside_ns: int, outside_ns: int, goal: float | None, plan: Plan) -> Section:
    """Compare what threads get done that fight for one mutex."""
    with Target("storm", str(STORM_THREADS), str(inside_ns), str(outside_ns)) as target:

        def meter() -> Window:
            cpu = tree_cpu_ns(target.pid)
            done = target.ask(f"run {plan.seconds * 1000:.0f}")
            count = float(done["operations"])
            return Window(count / float(done["ns"]) * 1e9, (tree_cpu_ns(target.pid) - cpu) / count)

        meter()
        return section_of(
            f"throughput-storm-{inside_ns}",
            f"{STORM_THREADS} threads fight for a mutex, {inside_ns} ns of work under it and"
            f" {outside_ns} ns outside, {plan.pairs} pairs of {plan.seconds:g} s",
            target.pid,
            meter,
            plan,
            goal,
        )
