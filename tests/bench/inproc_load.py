# SPDX-License-Identifier: Apache-2.0
"""How much of its work a server gets done with the in-process library inside, of without.

A library cannot be taken out of a server again. So servers with and without it run side by side,
and take turns: only one of them has load at a time.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stallscope.collectors import rings as find_rings
from tests.bench import progress
from tests.bench.probes import DURABLE
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.throughput import SERVER_GOAL, Trial, Window, cpu_ratios, ratios
from tests.support.servers import Child, SqlServer, wait_until
from tests.support.servers.inside import agent_inside, one_ring
from tests.support.stalls.load import sysbench_load
from tests.support.usage import process_cpu_ns

__all__ = ["Plan", "server_sections"]

STOP_SECONDS = 10
WITH, OFF, NOISE = "the library", "switched off", "(nothing, to show the noise)"


@dataclass(frozen=True)
class Plan:
    """How often and how long."""

    servers: int
    """So many times all servers are started again: where their memory lies differs."""
    pairs: int
    """Of a window with and one without, on each of them."""
    seconds: float
    threads: int
    warm_seconds: float = 0.3


@dataclass(frozen=True)
class Loaded:
    """A server and the sysbench that waits to load it."""

    server: SqlServer
    sysbench: Child

    def window(self, plan: Plan) -> Window:
        """Let the load go on for a while."""
        os.kill(self.sysbench.pid, signal.SIGCONT)
        try:
            time.sleep(plan.warm_seconds)
            start, before = time.monotonic(), self.server.status("Questions")
            cpu = process_cpu_ns(self.server.pid)
            time.sleep(plan.seconds)
            done = self.server.status("Questions") - before
            seconds = time.monotonic() - start
            cpu = process_cpu_ns(self.server.pid) - cpu
        finally:
            stop(self.sysbench)
        if not self.sysbench.running() or done <= 0:
            raise BenchError(f"{self.server.name} does nothing: {self.sysbench.tail()}")
        return Window(done / seconds, cpu / done)


def stop(child: Child) -> None:
    """Stop a program, and return when none of its threads runs any more."""
    os.kill(child.pid, signal.SIGSTOP)

    def stopped() -> bool:
        stats = [path.read_text() for path in Path(f"/proc/{child.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)

    wait_until(stopped, f"{child.pid} stops", STOP_SECONDS)


@contextmanager
def loaded(server: SqlServer, test: str, plan: Plan) -> Iterator[Loaded]:
    """Run sysbench on a server, and stop it at once."""
    with sysbench_load(server, plan.threads, test) as child:
        stop(child)
        yield Loaded(server, child)


def server_sections(kind: type[SqlServer], tests: Sequence[str], plan: Plan) -> Iterator[Section]:
    """Compare what sysbench gets out of servers with the library and without."""
    trials = {test: {state: Trial() for state in (WITH, OFF, NOISE)} for test in tests}
    versions = set()
    for number in range(plan.servers):
        with three_servers(kind, swapped=number % 2 == 1) as (plain, second, ours, ring):
            versions.add(f"{plain.name} {plain.version()}")
            for test in tests:
                progress(f"{test}: servers {number + 1} of {plan.servers}")
                measure(test, (plain, second, ours), ring, plan, trials[test])
    for test in tests:
        yield section_of(test, ", ".join(sorted(versions)), plan, trials[test])


@contextmanager
def three_servers(
    kind: type[SqlServer], *, swapped: bool
) -> Iterator[tuple[SqlServer, SqlServer, SqlServer, Path]]:
    """Start two servers as they are and one with the library; yield them and its ring."""
    with ExitStack() as stack:
        plain, second, ours = kind(DURABLE), kind(DURABLE), kind(DURABLE)
        rings = stack.enter_context(agent_inside(ours))
        for server in (ours, second, plain) if swapped else (plain, second, ours):
            stack.enter_context(server)
        yield plain, second, ours, one_ring(rings)


def measure(
    test: str,
    servers: tuple[SqlServer, SqlServer, SqlServer],
    ring: Path,
    plan: Plan,
    trials: dict[str, Trial],
) -> None:
    with ExitStack() as stack:
        plain, second, ours = (stack.enter_context(loaded(one, test, plan)) for one in servers)
        begun = find_rings.read(ring).waits
        for number in range(plan.pairs):
            for state in trials if number % 2 else reversed(trials):
                if state != NOISE:
                    find_rings.switch(ring, on=state == WITH)
                other = second if state == NOISE else ours
                first, then = (other, plain) if number % 2 else (plain, other)
                one, two = first.window(plan), then.window(plan)
                trials[state].on.append(one if first is other else two)
                trials[state].off.append(two if first is other else one)
        find_rings.switch(ring, on=True)
        if find_rings.read(ring).waits == begun:
            raise BenchError(f"the library has seen no wait of {test}")


def section_of(test: str, version: str, plan: Plan, trials: dict[str, Trial]) -> Section:
    rows = []
    for state, trial in trials.items():
        cells: dict[str, Figure | str] = {
            "of without": figure(ratios(trial), ""),
            "CPU of one, of without": figure(cpu_ratios(trial), ""),
            "operations/s": f"{statistics.median(window.rate for window in trial.on):.0f}",
            "without": f"{statistics.median(window.rate for window in trial.off):.0f}",
        }
        rows.append(Row(state, cells))
    ours = statistics.median(ratios(trials[WITH]))
    goal = f"{WITH}: {ours:.3f} of without, {SERVER_GOAL:.2f} wanted"
    return Section(
        f"throughput-{test}",
        f"Queries of {test}, {version}, {plan.threads} sysbench threads,"
        f" {plan.servers * plan.pairs} pairs of {plan.seconds:g} s on {plan.servers} sets of"
        " servers",
        tuple(rows),
        ("the library has seen waits on each set of servers",),
        ((goal, ours >= SERVER_GOAL),),
    )
