# SPDX-License-Identifier: Apache-2.0
"""What polling /proc costs, by the number of threads, and what the target notices of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from stallscope.model import waitlines
from stallscope.model.waitlines import WaitLine
from tests.bench import progress
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.watchers import NOTHING, Watcher, Watching, probe_waits
from tests.support.targets import Target

__all__ = ["FULL", "QUICK", "Sizes", "effect_section", "need_section"]

POLL = ("--backend", "poll")
MAX_SHARE = 6.0
"""Percent of a CPU: 5 by design, and what else the program does."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    threads: tuple[int, ...] = (200, 1000, 5000)
    seconds: float = 10
    pairs: int = 10
    storm_ms: int = 1000


FULL = Sizes()
QUICK = Sizes(seconds=4, pairs=4, storm_ms=500)


def wait_lines(watching: Watching) -> list[WaitLine]:
    found = (
        waitlines.loads(text.encode(), "stallscope-probe", number)
        for number, (_, text) in enumerate(watching.lines, 1)
    )
    return [line for line in found if isinstance(line, WaitLine)]


def need_section(sizes: Sizes) -> Section:
    """Measure the CPU time of the poller with sleeping threads, and how often it polls."""
    rows = [need(count, sizes) for count in sizes.threads]
    shares = [share for _, share in rows]
    title = f"Polling /proc for the waits of threads that sleep, over {sizes.seconds:g} s"
    goal = f"at most {MAX_SHARE:g} % of a CPU, however many threads"
    return Section(
        "cost-poll-need",
        title,
        tuple(row for row, _ in rows),
        checks=("each thread was seen in its wait",),
        goals=((goal, max(shares) <= MAX_SHARE),),
    )


def need(count: int, sizes: Sizes) -> tuple[Row, float]:
    progress(f"polling {count} threads")
    with Target("threads", str(count), "3", "--wait", "mutex") as target:
        watcher = probe_waits(*POLL, "--interval", "1000")
        with Watching(watcher, target.pid) as watching:
            time.sleep(5)  # what the words are has been found out by then
            before, start = watching.cpu_ns(), time.monotonic()
            time.sleep(sizes.seconds)
            used = watching.cpu_ns() - before
            share = used / 1e7 / (time.monotonic() - start)
            lines = wait_lines(watching)[3:]
        if not target.running():
            raise BenchError("the target has ended")
    seen = max(sum(key.in_flight for key in line.keys) for line in lines)
    if seen < count:
        raise BenchError(f"{seen} of {count} threads were seen in a wait")
    every = figure([(line.interval_ns or 0) / 1e6 for line in lines], "ms")
    longest = figure([(line.longest_interval_ns or 0) / 1e6 for line in lines], "ms")
    cells: dict[str, Figure | str] = {
        "CPU": f"{share:.2f} % of one",
        "polls every": every,
        "longest pause": longest,
    }
    return Row(f"{count} threads", cells), share


def effect_section(sizes: Sizes) -> Section:
    """Measure what threads that fight for a mutex get done with a poller and without, in turns."""
    watchers: tuple[tuple[str, Watcher], ...] = (
        (str(NOTHING), NOTHING),
        ("polled each 10 ms", probe_waits(*POLL, "--poll-interval", "10")),
        ("polled each 1 ms", probe_waits(*POLL, "--poll-interval", "1")),
    )
    rows = []
    with Target("storm", "8", "1000", "1000") as target:
        for name, watcher in watchers:
            progress(f"a mutex that is fought for: {name}")
            ratios = [ratio(target, watcher, sizes, nr) for nr in range(sizes.pairs)]
            rows.append(Row(name, {"of without": figure(ratios, "")}))
    title = f"Eight threads that fight for a mutex, polled, {sizes.pairs} pairs"
    return Section("cost-poll-effect", title, tuple(rows))


def ratio(target: Target, watcher: Watcher, sizes: Sizes, nr: int) -> float:
    done: dict[bool, float] = {}
    for watched in (nr % 2 == 0, nr % 2 == 1):
        with Watching(watcher if watched else NOTHING, target.pid):
            answer = target.ask(f"run {sizes.storm_ms}")
        done[watched] = answer["operations"] / answer["ns"]
    return done[True] / done[False]
