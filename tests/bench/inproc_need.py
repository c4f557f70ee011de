# SPDX-License-Identifier: Apache-2.0
"""The memory that the in-process library takes, and what it costs to read it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stallscope.collectors import probe
from stallscope.collectors import rings as find_rings
from tests.bench import progress
from tests.bench.check import right_stacks
from tests.bench.inproc_locks import with_agent
from tests.bench.stats import BenchError, Row, Section, figure
from tests.bench.tools import Once
from tests.bench.watchers import Watching, probe_waits
from tests.support.servers.inside import one_ring
from tests.support.servers.waiting import wait_until
from tests.support.targets import Target
from tests.support.usage import status_kb

__all__ = ["FULL", "QUICK", "Sizes", "memory_section", "reader_section"]

MEMORY_GOAL_MB = 16.0
DEPTH = "25"
DEEP = "200"
"""Some 13 KiB of stack, as of a server that parses and joins."""
MEMORY = {"VmRSS": "all", "RssAnon": "of its own", "RssFile": "of files", "RssShmem": "shared"}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    threads: int = 1000
    rounds: int = 10
    readers: tuple[int, ...] = (400, 1000)
    seconds: float = 10


FULL = Sizes()
QUICK = Sizes(rounds=3, seconds=4)


def settled(read: Callable[[], object], what: str) -> None:
    """Wait until something has not changed for longer than any pause of the library."""
    last, since = read(), time.monotonic()

    def still() -> bool:
        nonlocal last, since
        now = read()
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > 2.5

    wait_until(still, what, 120)


def memory_of(*targets: Target) -> list[dict[str, float]]:
    """Return the resident memory of each target in MB, once none of them grows any more."""
    pids = [target.pid for target in targets]
    settled(
        lambda: [status_kb(pid, "VmRSS") for pid in pids],
        "the memory of the targets stays the same",
    )
    return [{key: status_kb(pid, key) * 1024 / 1e6 for key in MEMORY} for pid in pids]


def memory_section(sizes: Sizes) -> Section:
    """Measure the memory of threads that all wait, with the library and without."""
    rows = []
    most = 0.0
    for wait, depth in (("mutex", DEPTH), ("wrlock", DEPTH), ("cond", DEPTH), ("cond", DEEP)):
        progress(f"memory: {wait}, {depth} functions deep")
        arguments = (str(sizes.threads), depth, "--wait", wait)
        with (
            Target("threads", *arguments) as plain,
            with_agent("threads", *arguments) as (ours, rings),
        ):
            without, with_it = memory_of(plain, ours)
            ring = one_ring(rings)
            seen = find_rings.read(ring)
            file = ring.stat().st_blocks * 512 / 1e6
        if seen.waiting < sizes.threads:
            raise BenchError(f"the ring has {seen.waiting} waits of {sizes.threads}")
        more = {key: with_it[key] - without[key] for key in MEMORY}
        most = max(most, more["VmRSS"], file)
        cells = {f"{name}, more": figure([more[key]], "MB") for key, name in MEMORY.items()}
        cells["blocks of the ring"] = figure([file], "MB")
        rows.append(
            Row(
                f"in {wait}, {depth} functions deep",
                {"without": figure([without["VmRSS"]], "MB"), **cells},
            )
        )
    return Section(
        "memory",
        f"Resident memory of {sizes.threads} threads that all wait",
        tuple(rows),
        ("every thread has its wait in the ring",),
        ((f"{most:.1f} MB more at most, {MEMORY_GOAL_MB:g} allowed", most <= MEMORY_GOAL_MB),),
    )


def all_in_the_ring(rings: Path, count: int) -> None:
    """Wait until so many threads have recorded their waits."""
    ring = one_ring(rings)
    wait_until(lambda: find_rings.read(ring).waiting >= count, f"{count} waits", 30)


def reader_section(sizes: Sizes) -> Section:
    """Measure who reads a ring: the CPU of the one that watches, and the time of a capture."""
    rows = []
    for count in sizes.readers:
        with with_agent("threads", str(count), DEPTH, "--wait", "cond") as (target, rings):
            all_in_the_ring(rings, count)
            rows.append(reader_row(count, target, rings, sizes))
    return Section(
        "reader",
        f"Reading a ring in which threads wait for work, {DEPTH} functions deep",
        tuple(rows),
        ("every stack of every capture has exactly its frames",),
    )


def reader_row(count: int, target: Target, rings: Path, sizes: Sizes) -> Row:
    progress(f"reading the ring of {count} threads")
    of = ("--backend", "inproc", "--ring", str(one_ring(rings)))
    with Watching(probe_waits(*of), target.pid) as watching:
        time.sleep(1)  # what it reads once at its start is not in it
        start, before = time.monotonic(), watching.cpu_ns()
        time.sleep(sizes.seconds)
        cpu = (watching.cpu_ns() - before) / 1e7 / (time.monotonic() - start)
    argv = [str(probe.find()), "snap", *of, "--pid", "PID", "--output", "FILE"]
    capture = Once("stallscope-probe snap", argv)
    taken = [capture.capture(target.pid) for _ in range(sizes.rounds)]
    waiting = [fact for fact in target.threads if fact.wait != "main"]
    for one in taken:
        right = right_stacks(waiting, one)
        if right != len(waiting):
            raise BenchError(f"{right} of {len(waiting)} stacks are right")
    return Row(
        f"{count} threads",
        {
            "waits: its CPU": f"{cpu:.2f} % of one",
            "snap": figure([one.wall_ms for one in taken], "ms"),
            "CPU of it": figure([one.cpu_ns / 1e6 for one in taken], "ms"),
            "memory of it": figure([one.max_rss_kb / 1024 for one in taken], "MiB"),
            "verified": f"{statistics.median(one.labels['verified'] for one in taken):.0f}",
        },
    )
