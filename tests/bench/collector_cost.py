# SPDX-License-Identifier: Apache-2.0
"""What a turn of each collector of /proc costs, in CPU time of the thread that takes it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stallscope.collectors.collector import Collector
from stallscope.collectors.host import host_collectors
from tests.bench.stats import Figure, Row, Section, figure

__all__ = ["collector_costs", "host_section"]

TURNS = 200
RUNS = 5
THREADS = 2000

_MANY_THREADS = """
import sys, threading
threading.stack_size(65536)
end = threading.Event()
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=end.wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def process_of_threads(count: int) -> Iterator[int]:
    """Run a process of so many threads that wait; yield its pid."""
    command = [sys.executable, "-c", _MANY_THREADS, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield child.pid
        finally:
            child.kill()


def microseconds(collector: Collector, turns: int) -> float:
    """Return the CPU time of a turn, the mean of many."""
    begin = time.thread_time_ns()
    for _ in range(turns):
        collector.collect()
    return (time.thread_time_ns() - begin) / turns / 1000


def collector_costs(
    collectors: Sequence[Collector], turns: int = TURNS
) -> dict[str, tuple[Figure, Figure]]:
    """Return, by name, the cost of the first turn and of each after it, in µs of CPU.

    What is expensive is read at a pace, the first time at once: so the first turn has all of it.
    """
    costs = {}
    for collector in collectors:
        first = figure([microseconds(collector, 1)], "µs")
        later = figure([microseconds(collector, turns) for _ in range(RUNS)], "µs")
        costs[collector.name] = (first, later)
    return costs


def host_section(threads: int = THREADS) -> Section:
    """Measure the collectors of /proc on a process of many threads."""
    rows = []
    with process_of_threads(threads) as pid:
        collectors = host_collectors(pid, datadir="/")
        try:
            costs = collector_costs(collectors)
        finally:
            for collector in collectors:
                collector.close()
    for name, (first, later) in costs.items():
        rows.append(Row(name, {"first turn": first, "each other turn": later}))
    return Section(
        "collectors-host",
        f"CPU time of a turn of each collector of /proc; the process has {threads} threads",
        tuple(rows),
        notes=(
            "the first turn has what is read at a pace (threads by state, /proc/stat);"
            " it is read again when its cost is 0.1 % of one core since",
        ),
    )


if __name__ == "__main__":
    from tests.bench.stats import render

    print(render(host_section()))
