# SPDX-License-Identifier: Apache-2.0
"""What the in-process library adds to a lock, free or contended, beside what BPF programs add."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stallscope.collectors import rings as find_rings
from tests.bench import progress
from tests.bench.events import final_line
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.watchers import NOTHING, Watching, probe_waits
from tests.support.servers.inside import RINGS, library_path, one_ring
from tests.support.targets import Target
from tests.support.usage import process_cpu_ns

__all__ = ["FULL", "QUICK", "Sizes", "free_section", "pass_section", "storm_section", "with_agent"]

FREE_GOAL_NS = 5.0
WAIT_GOAL = 0.5
STORM_THREADS = 8
WORK_NS = "1000"

# What is asked of tests/targets/lock_costs.c, and what one such call is.
FREE = {
    "mutex": "pthread_mutex_lock and _unlock",
    "rdlock": "pthread_rwlock_rdlock and _unlock",
    "wrlock": "pthread_rwlock_wrlock and _unlock",
    "signal": "pthread_cond_signal of nobody",
    "read": "pread of 16 KiB from memory",
    "write": "pwrite of 16 KiB to memory",
}
WITHOUT, NOISE, WITH, OFF = "without", "noise", "the library", "switched off"
PROGRAMS = "BPF programs"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 12
    batches: int = 300
    seconds: float = 1


FULL = Sizes()
QUICK = Sizes(rounds=5, batches=150, seconds=0.5)


@contextmanager
def with_agent(name: str, *arguments: str) -> Iterator[tuple[Target, Path]]:
    """Run a target with the library inside; yield it and the folder of its ring."""
    with tempfile.TemporaryDirectory(prefix="stallscope-rings-", dir="/dev/shm") as folder:
        env = {"LD_PRELOAD": str(library_path()), "STALLSCOPE_RUNTIME_DIR": folder}
        with Target(name, *arguments, env=env) as target:
            yield target, Path(folder)


@contextmanager
def four_targets(name: str, *arguments: str) -> Iterator[dict[str, Target]]:
    """Run a target four times at once: twice as it is, with the library, and with it off."""
    with ExitStack() as stack:
        found = {}
        for state in (WITHOUT, NOISE):
            found[state] = stack.enter_context(Target(name, *arguments))
        for state in (WITH, OFF):
            found[state], rings = stack.enter_context(with_agent(name, *arguments))
            ring = one_ring(rings)  # all of them have waited when they are ready
            if state == OFF:
                find_rings.switch(ring, on=False)
        yield found


def in_turns(states: Sequence[str], number: int) -> list[str]:
    """Return the states in an order that changes from round to round."""
    start = number % len(states)
    turned = [*states[start:], *states[:start]]
    return turned if number % 2 else turned[::-1]


def added(measured: dict[str, list[float]], state: str) -> list[float]:
    """Return what a state has more than the one without, round by round."""
    return [a - b for a, b in zip(measured[state], measured[WITHOUT], strict=True)]


def free_section(sizes: Sizes) -> Section:
    """Measure locks that nobody else wants."""
    measured: dict[str, dict[str, list[float]]] = {call: {} for call in FREE}
    with four_targets("lock_costs") as targets:
        for number in range(sizes.rounds):
            progress(f"free locks: round {number + 1} of {sizes.rounds}")
            for state in in_turns(list(targets), number):
                for call in FREE:
                    ns = float(targets[state].ask(f"{call} {sizes.batches}")["ns"])
                    measured[call].setdefault(state, []).append(ns)
    rows = []
    for call, title in FREE.items():
        cells: dict[str, Figure | str] = {WITHOUT: figure(measured[call][WITHOUT], "ns")}
        for state in (WITH, OFF, NOISE):
            cells[f"added by {state}"] = figure(added(measured[call], state), "ns")
        rows.append(Row(title, cells))
    ours = statistics.median(added(measured["mutex"], WITH))
    goal = f"a free mutex: {ours:.1f} ns added, {FREE_GOAL_NS:g} allowed"
    return Section(
        "lock",
        f"CPU time of locks and transfers that do not block, {sizes.rounds} rounds in turns",
        tuple(rows),
        ("the library has made its ring in both processes that have it",),
        ((goal, ours <= FREE_GOAL_NS),),
    )


@dataclass
class Costs:
    """What was measured of one state: of each round."""

    ns: list[float] = field(default_factory=list)
    """For one call, or CPU time for one operation."""
    waits: list[float] = field(default_factory=list)
    """In one call, of the thread that counts, or of all in one operation."""
    rates: list[float] = field(default_factory=list)


def pass_section(sizes: Sizes) -> Section:
    """Measure two threads on one CPU that wait for each other all the time."""
    states = (WITHOUT, NOISE, WITH, OFF, PROGRAMS)
    costs = {state: Costs() for state in states}
    with four_targets("lock_costs") as targets:
        for number in range(sizes.rounds):
            progress(f"a lock that is waited for: round {number + 1} of {sizes.rounds}")
            for state in in_turns(states, number):
                target = targets.get(state, targets[WITHOUT])
                watcher = probe_waits() if state == PROGRAMS else NOTHING
                with Watching(watcher, target.pid) as watching:
                    answer = target.ask(f"pass {sizes.batches}")
                if state == PROGRAMS:
                    calls_seen(watching, sizes.batches)
                costs[state].ns.append(float(answer["ns"]))
                costs[state].waits.append(2 * float(answer["waits"]))  # the other thread, too
    rows = []
    each: dict[str, list[float]] = {}
    for state, of in costs.items():
        cells: dict[str, Figure | str] = {
            "CPU of one call of each": figure(of.ns, "ns"),
            "waits": figure(of.waits, ""),
        }
        if state != WITHOUT:
            more = zip(of.ns, costs[WITHOUT].ns, of.waits, strict=True)
            each[state] = [(ns - without) / waits for ns, without, waits in more]
            cells["added to a wait"] = figure(each[state], "ns")
        rows.append(Row(state, cells))
    return Section(
        "contended-pass",
        f"Two threads on one CPU, each waits for a mutex of the other, {sizes.rounds} rounds",
        tuple(rows),
        ("the probes have counted the waits",),
        wait_goal(each[WITH], each[PROGRAMS]),
    )


def wait_goal(ours: Sequence[float], theirs: Sequence[float]) -> tuple[tuple[str, bool], ...]:
    own, other = statistics.median(ours), statistics.median(theirs)
    share = f"{own / other:.2f}" if other > 0 else "no share"
    text = f"{own:.0f} ns added to a wait, {other:.0f} by the BPF programs"
    return ((f"{text}: {share}, {WAIT_GOAL:g} allowed", own <= WAIT_GOAL * other),)


def calls_seen(watching: Watching, batches: int) -> None:
    """Raise BenchError where the probes counted fewer waits than there were calls."""
    counted = final_line(watching.lines).kinds["mutex"].count
    if counted < batches:
        raise BenchError(f"the probes counted {counted} waits in {batches} batches")


def storm_section(sizes: Sizes) -> Section:
    """Measure the CPU time of threads that fight for one mutex."""
    states = (WITHOUT, NOISE, WITH, PROGRAMS)
    costs = {state: Costs() for state in states}
    arguments = (str(STORM_THREADS), WORK_NS, WORK_NS)
    with (
        Target("storm", *arguments) as plain,
        Target("storm", *arguments) as second,
        with_agent("storm", *arguments) as (ours, rings),
    ):
        targets = {WITHOUT: plain, NOISE: second, WITH: ours, PROGRAMS: plain}
        for target in (plain, second, ours):
            target.ask("run 100")
        while not any(rings.glob(RINGS)):
            ours.ask("run 100")  # on busy CPUs its threads may have run one after the other
        begun = find_rings.read(one_ring(rings)).waits
        for number in range(sizes.rounds):
            progress(f"a mutex that 8 threads want: round {number + 1} of {sizes.rounds}")
            for state in in_turns(states, number):
                watcher = probe_waits() if state == PROGRAMS else NOTHING
                with Watching(watcher, targets[state].pid) as watching:
                    run_storm(targets[state], sizes.seconds, costs[state])
                watching.seen()
        if find_rings.read(one_ring(rings)).waits == begun:
            raise BenchError("the library has seen no wait")
    rows = []
    for state, of in costs.items():
        cells: dict[str, Figure | str] = {
            "CPU of one operation": figure(of.ns, "ns"),
            "waits in it": figure(of.waits, ""),
        }
        if state != WITHOUT:
            base = costs[WITHOUT]
            more = [a - b for a, b in zip(of.ns, base.ns, strict=True)]
            cells["more than without"] = figure(more, "ns")
            done = [a / b for a, b in zip(of.rates, base.rates, strict=True)]
            cells["operations, of without"] = figure(done, "")
        rows.append(Row(state, cells))
    return Section(
        "contended-storm",
        f"{STORM_THREADS} threads fight for a mutex, {WORK_NS} ns of work under it and outside,"
        f" {sizes.rounds} rounds of {sizes.seconds:g} s",
        tuple(rows),
        ("the library and the probes have seen waits in every round",),
        notes=(
            "how many operations wait differs from round to round by more than what a wait costs:"
            " no goal",
        ),
    )


def run_storm(target: Target, seconds: float, costs: Costs) -> None:
    before = process_cpu_ns(target.pid)
    done = target.ask(f"run {seconds * 1000:.0f}")
    operations = float(done["operations"])
    costs.ns.append((process_cpu_ns(target.pid) - before) / operations)
    costs.waits.append(float(done["voluntary"]) / operations)
    costs.rates.append(operations / float(done["ns"]) * 1e9)
