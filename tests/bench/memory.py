# SPDX-License-Identifier: Apache-2.0
"""Whether the memory that a server takes is explained by stacks, and what it costs the server.

The seeds' two cases (Mituzas 2011): a table of 1,000 partitions with long rows that is opened, and
a UNION that mentions such a table many times.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from stallscope.analyzers import memory as analyzer
from stallscope.collectors import memory
from stallscope.model.memory import MemoryReport
from tests.bench import progress
from tests.bench.blocks import schedule
from tests.bench.overhead_attribution import cost_goals, rate_goal
from tests.bench.overhead_load import RATES, PerQuery, fixed_rate
from tests.bench.overhead_parts import sides, variant_rows
from tests.bench.overhead_variants import AGAIN, NOTHING, WHOLE
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.targets import Target

__all__ = ["grown", "make_tables", "opened", "sections", "union"]

PARTITIONS = 1000
QUICK_PARTITIONS = 100
MENTIONS = 500
QUICK_MENTIONS = 50
ROUNDS = 3
ROW = 65000
"""Characters of the longest column: a row buffer has 64 KiB."""
SHARE = (0.9, 1.1)
TEST = "oltp_point_select"
LOAD_THREADS = 8
BLOCKS = 25
QUICK_BLOCKS = 4
WINDOW_SECONDS = 1.0
FAULT_BYTES = 64 << 20
FAULT_ROUNDS = 20
MOST_SECONDS = 120.0
SERVERS: tuple[type[SqlServer], ...] = (MySQL55, MariaDB, MySQL97)
OPTIONS = ("--table-open-cache=4000", "--open-files-limit=10000")


def make_tables(server: SqlServer, partitions: int) -> None:
    """Make a table with partitions and one without, both with a long row."""
    columns = f"(a INT NOT NULL, b VARCHAR({ROW}) CHARACTER SET latin1) ENGINE=InnoDB"
    server.execute(
        "CREATE DATABASE grown",
        f"CREATE TABLE grown.parts {columns} PARTITION BY HASH (a) PARTITIONS {partitions}",
        f"CREATE TABLE grown.plain {columns}",
    )


def grown(server: SqlServer, work: Callable[[], None]) -> MemoryReport:
    """Record while ``work`` is done; return what the command would print."""
    return _recorded(server.pid, work)


def _recorded(pid: int, work: Callable[[], None]) -> MemoryReport:
    ready = threading.Event()
    over = threading.Event()
    found: list[MemoryReport] = []
    failed: list[BaseException] = []

    def record() -> None:
        try:
            growth = memory.record(
                pid,
                memory.Options(seconds=MOST_SECONDS),
                ready=ready.set,
                ended=over.is_set,
            )
            found.append(analyzer.report(growth, {}))
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=record)
    thread.start()
    try:
        ready.wait(MOST_SECONDS)
        if not failed:
            work()
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]
    return found[0]


def opened(server: SqlServer) -> MemoryReport:
    """Open the table with partitions."""
    server.execute("FLUSH TABLES")
    return grown(server, lambda: server.execute("SELECT COUNT(*) FROM grown.parts"))


def union(server: SqlServer, mentions: int) -> MemoryReport:
    """Mention the table without partitions many times in one statement."""
    statement = " UNION ALL ".join(["SELECT a FROM grown.plain WHERE a = 1"] * mentions)
    server.execute("FLUSH TABLES")
    return grown(server, lambda: server.execute(statement))


def holders(report: MemoryReport, name: str) -> float:
    """Return the part of the memory in whose stacks a function is."""
    total = sum(stack.bytes for stack in report.stacks)
    held = sum(stack.bytes for stack in report.stacks if name in stack.frames)
    return held / total if total else 0.0


def _mapped(report: MemoryReport) -> float:
    if report.before is None or report.after is None:
        return 0.0
    return report.after.mapped - report.before.mapped


def _mib(values: Sequence[float]) -> Figure:
    return figure([value / (1 << 20) for value in values], "MiB")


def _row(name: str, reports: Sequence[MemoryReport], units: int, function: str) -> Row:
    shares = [report.attributed_share for report in reports]
    if any(share is None for share in shares):
        raise BenchError(f"{name}: too little memory was added")
    growths = [float(report.growth_bytes or 0) for report in reports]
    return Row(
        name,
        {
            "grew": _mib(growths),
            "each": figure([growth / 1024 / units for growth in growths], "KiB"),
            "address space grew": _mib([_mapped(report) for report in reports]),
            "freed meanwhile": _mib([float(report.freed_bytes or 0) for report in reports]),
            "stacks explain": figure([100 * (share or 0) for share in shares], "%"),
            f"under {function}": figure(
                [100 * holders(report, function) for report in reports], "%"
            ),
            "largest": " < ".join(reports[-1].stacks[0].place[:3]),
        },
    )


def _is_explained(reports: Sequence[MemoryReport]) -> bool:
    low, high = SHARE
    return all(low <= (report.attributed_share or 0) <= high for report in reports)


def _cold(made: Callable[[], SqlServer], partitions: int, mentions: int, rounds: int) -> Section:
    """Measure one server, started again for each round: memory that it has once taken it keeps."""
    parts: list[MemoryReport] = []
    unions: list[MemoryReport] = []
    with made() as server:
        version = f"{server.name} {server.version()}"
        make_tables(server, partitions)
        for number in range(rounds):
            progress(f"{server.name}: round {number + 1} of {rounds}")
            for case in (parts, unions):
                server.shut_down()
                server.start()
                case.append(opened(server) if case is parts else union(server, mentions))
    opens = "ha_partition::open" if holders(parts[0], "ha_partition::open") else "open_table"
    rows = (
        _row(f"a table of {partitions} partitions is opened", parts, partitions, opens),
        _row(f"a UNION of {mentions} mentions", unions, mentions, "open_table"),
    )
    goals = [
        ("stacks explain 90 to 110 % of it, in each run", _is_explained([*parts, *unions])),
    ]
    if version.startswith(MySQL55.name):
        named = all(holders(report, "ha_partition::open") > 0.5 for report in parts)
        goals.append(("ha_partition::open is named", named))
    return Section(
        f"growth-{version.split()[0]}", f"Memory that {version} takes", rows, goals=tuple(goals)
    )


def _cost(made: Callable[[], SqlServer], blocks: int, seed: int) -> Section:
    """Measure the CPU time of a query beside the command and without it, in turns."""
    with ExitStack() as stack:
        server = stack.enter_context(made())
        load = stack.enter_context(fixed_rate(server, TEST, RATES[TEST], LOAD_THREADS))
        version = f"{server.name} {server.version()}"
        windows: dict[str, list[PerQuery]] = {name: [] for name in (NOTHING, AGAIN, WHOLE)}
        chance = random.Random(seed)
        for number, block in enumerate(schedule(list(windows), blocks, chance), 1):
            progress(f"{server.name}: block {number} of {blocks}")
            for name in block:

                def measure(name: str = name) -> None:
                    windows[name].append(load.window(WINDOW_SECONDS, ()))

                if name == WHOLE:
                    grown(server, measure)
                else:
                    measure()
    return Section(
        f"cost-{version.split()[0]}",
        f"CPU time of a query of {TEST} while its memory is watched, and without: {version}",
        variant_rows(windows, sides(windows, seed)),
        goals=(*cost_goals(TEST, windows, seed), rate_goal(TEST, windows)),
    )


def _ran_ns(pid: int) -> int:
    """Return the CPU time of a process's first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _faults(target: Target, rounds: int) -> list[float]:
    """Return the nanoseconds of a page's first touch, the mean of each round."""
    found = []
    for _ in range(rounds):
        before = _ran_ns(target.pid)
        target.ask(f"mmap {FAULT_BYTES}")
        found.append((_ran_ns(target.pid) - before) / (FAULT_BYTES // 4096))
        target.ask(f"back {FAULT_BYTES}")
    return found


def _fault_cost(rounds: int) -> Section:
    """Measure what a fault costs the process that is watched, and another one, in turns."""
    with Target("growth") as watched, Target("growth") as other:
        costs: dict[str, list[float]] = {name: [] for name in ("watched", "other")}
        without: dict[str, list[float]] = {name: [] for name in ("watched", "other")}
        for number in range(rounds):
            progress(f"faults: round {number + 1} of {rounds}")
            for name, target in (("watched", watched), ("other", other)):
                without[name] += _faults(target, 1)

            def measure() -> None:
                for name, target in (("watched", watched), ("other", other)):
                    costs[name] += _faults(target, 1)

            _recorded(watched.pid, measure)
    rows = tuple(
        Row(
            title,
            {
                "without": figure(without[name], "ns"),
                "with": figure(costs[name], "ns"),
                "added": figure(
                    [a - b for a, b in zip(costs[name], without[name], strict=True)], "ns"
                ),
            },
        )
        for name, title in (("watched", "the watched process"), ("other", "another process"))
    )
    return Section(
        "cost-fault",
        f"CPU time of the first touch of a page, {FAULT_BYTES // 4096} pages in a row",
        rows,
        notes=("more pages in a second than have a record of their own: many are sampled",),
    )


def _faults_per_query(made: type[SqlServer]) -> Section:
    """Count the faults of a server under a steady load: what a query pays is so many times more."""
    with ExitStack() as stack:
        server = stack.enter_context(made())
        stack.enter_context(fixed_rate(server, TEST, RATES[TEST], LOAD_THREADS))
        name = f"{server.name} {server.version()}"
        values = []
        for _ in range(5):
            faults, queries = _minor_faults(server.pid), server.status("Questions")
            time.sleep(2)
            done = server.status("Questions") - queries
            values.append((_minor_faults(server.pid) - faults) / max(1, done))
    return Section(
        f"faults-{made.name}",
        f"Page faults of a query of {TEST}: {name}",
        (Row("a query", {"faults": figure(values, "")}),),
    )


def _minor_faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def sections(_server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure each server; ``only``: beginnings of tables."""
    partitions = QUICK_PARTITIONS if quick else PARTITIONS
    mentions = QUICK_MENTIONS if quick else MENTIONS
    rounds, blocks = (1, QUICK_BLOCKS) if quick else (ROUNDS, BLOCKS)
    makers: dict[str, Callable[[], Section]] = {}
    for made in SERVERS:
        server = partial(made, *OPTIONS)
        makers[f"growth-{made.name}"] = partial(_cold, server, partitions, mentions, rounds)
    for made in SERVERS:
        makers[f"cost-{made.name}"] = partial(_cost, made, blocks, 1)
    makers["cost-fault"] = partial(_fault_cost, 5 if quick else FAULT_ROUNDS)
    for made in SERVERS:
        makers[f"faults-{made.name}"] = partial(_faults_per_query, made)
    for name in wanted(makers, only):
        yield makers[name]()
