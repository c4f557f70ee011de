# SPDX-License-Identifier: Apache-2.0
"""The table cache of MySQL 5.5: statistics that are read, and clients that queue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    SlowReads,
    bar,
    better,
    counted,
    factor,
    prepare,
    rates,
    short,
    slow_reads,
    snapped,
)
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.linechart import Chart, Line
from tests.bench.stats import Figure, Row, Section, figure
from tests.support.servers import MEMORY, MySQL55, MySQL97, SqlServer
from tests.support.servers.child import Child
from tests.support.servers.clients import slap
from tests.support.stalls.load import sysbench_load

__all__ = ["LOCK_OPEN", "OPENING_TABLES"]

READ_MS = 8.0
TABLES, INDEXES = 100, 7
OPENERS = 10
SMALL_POOL = ("--innodb-buffer-pool-size=8M", "--innodb-file-per-table=ON")
FEWER, COLD = "--innodb-stats-sample-pages=1", "--innodb-buffer-pool-load-at-startup=OFF"
LOOK = 0.05
OLD, NEW = "MySQL 5.5.9", "MySQL 9.7"


def _many_tables(server: SqlServer, tables: int) -> None:
    """Make tables with indexes whose pages are on the disk, not in the pool."""
    indexes = ", ".join(f"KEY k{number} (c{number})" for number in range(INDEXES))
    columns = ", ".join(f"c{number} INT" for number in range(INDEXES))
    values = ",".join(
        f"({number},{','.join(str(number * 7 % 97) for _ in range(INDEXES))},REPEAT('x', 200))"
        for number in range(300)
    )
    server.execute("CREATE DATABASE many")
    for number in range(tables):
        server.execute(
            f"CREATE TABLE t{number} (id INT PRIMARY KEY, {columns}, v VARCHAR(200), {indexes})"
            " ENGINE=InnoDB",
            f"INSERT INTO t{number} VALUES {values}",
            database="many",
        )


@contextmanager
def _opening(server: SqlServer, tables: int) -> Iterator[None]:
    """Let connections open tables, each its own part of them, one after the other."""
    with ExitStack() as stack:
        for number in range(OPENERS):
            file = server.folder / f"open-{number}.sql"
            mine = range(number, tables, OPENERS)
            file.write_text(";".join(f"SELECT id FROM t{one} WHERE id = 1" for one in mine))
            load = slap(server, "many", file, concurrency=1, queries=len(mine))
            child = Child(load, server.folder / f"open-{number}.log")
            stack.callback(child.end)
        yield


def _opened(server: SqlServer, reads: SlowReads, tables: int, seconds: float) -> float:
    """Return tables opened a second by a server that was just started: it knows none of them."""
    server.shut_down()
    reads.take(0)
    server.start()
    before = server.status("Opened_tables")
    reads.take(READ_MS)
    start = time.monotonic()
    with _opening(server, tables):
        while True:
            time.sleep(LOOK)
            passed, opened = time.monotonic() - start, server.status("Opened_tables") - before
            if opened >= tables or passed >= seconds:
                return opened / passed


def _said(server: SqlServer, reads: SlowReads, tables: int, sizes: Sizes) -> Verdict:
    """Return what is said while the tables are opened for the first time."""
    server.shut_down()
    reads.take(0)
    server.start()
    # Slower still, so that bursts end before the tables do.
    reads.take(5 * READ_MS)
    with _opening(server, tables):
        return snapped(server.pid, sizes)


def measure_opening(sizes: Sizes) -> Found:
    tables = sizes.of(TABLES, 40)
    found: dict[str, Figure] = {}
    verdict: Verdict | None = None
    for name, made in (
        (OLD, MySQL55(*SMALL_POOL, parent=MEMORY)),
        (f"{OLD}, statistics of 1 page", MySQL55(*SMALL_POOL, FEWER, parent=MEMORY)),
        (NEW, MySQL97(*SMALL_POOL, COLD, parent=MEMORY)),
    ):
        with slow_reads(made) as reads, made as server:
            progress(f"opening-tables: {name}")
            _many_tables(server, tables)
            times = 1 if sizes.quick else sizes.windows
            found[name] = figure(
                [_opened(server, reads, tables, 2 * sizes.seconds) for _ in range(times)],
                "tables/s",
            )
            if verdict is None:
                verdict = _said(server, reads, tables, sizes)
            reads.take(0)
    assert verdict is not None
    slow, fewer, new = (figures.median for figures in found.values())
    return Found(
        ours=f"{short(slow)} tables/s (5.5.9)",
        after=f"{short(new)} tables/s in 9.7 ({better(new, slow)}); {short(fewer)} in 5.5.9 with"
        " statistics of 1 page for each index",
        shows="yes" if factor(new, slow) >= 4 else "partly" if factor(fewer, slow) >= 2 else "no",
        verdicts=(verdict,),
        tables=(
            Section(
                "opening-tables",
                f"Tables that {OPENERS} connections open after a restart, {INDEXES + 1} indexes"
                f" each, each read takes {READ_MS:g} ms longer",
                tuple(Row(name, {"opened": opened}) for name, opened in found.items()),
            ),
        ),
        drawings=(
            Drawing(
                "opening-tables",
                f"{short(slow)} tables a second in 5.5.9, {short(new)} in 9.7",
                bars=Bars(
                    f"Tables opened by {OPENERS} connections, reads of {READ_MS:g} ms",
                    "tables/s",
                    [
                        Group(name, [bar("after a restart", opened)])
                        for name, opened in found.items()
                    ],
                ),
            ),
        ),
        why="The data is in memory, and a preloaded library makes each read longer, since this"
        " machine's disk answers at once. 9.7 keeps statistics in tables"
        " (`innodb_stats_persistent`), reads no indexes for them, and opens tables without a"
        " global lock.",
    )


OPENING_TABLES = Experiment(
    "opening-tables",
    "Opening tables",
    Case("13.5 → 105 tables/s with statistics out of the lock", "Mituzas 2009, opening tables"),
    "After a restart, 10 connections select a row from each of many tables. To open one for the"
    " first time, MySQL 5.5 reads pages of each index for its statistics, under `LOCK_open`.",
    "`innodb_stats_sample_pages = 1`; from 5.6 on statistics that are kept"
    " (`innodb_stats_persistent`)",
    measure_opening,
    ("mysql55", "mysql97"),
)

CLIENTS = (10, 50, 100, 200, 300)
SYSBENCH_TABLES = 4


def _select(
    server: SqlServer, clients: Sequence[int], sizes: Sizes, *, say: bool
) -> tuple[dict[int, Figure], dict[int, int], Verdict | None]:
    """Return queries a second by clients, tables opened meanwhile, and what is said at the end."""
    found, opened, verdict = {}, {}, None
    for count in clients:
        progress(f"lock-open: {count} clients")
        with sysbench_load(server, count, "oltp_point_select"):
            before = counted(server, "Opened_tables")["Opened_tables"]
            found[count] = rates(lambda: server.status("Com_stmt_execute"), sizes, "queries/s")
            opened[count] = counted(server, "Opened_tables")["Opened_tables"] - before
            if say and count == clients[-1]:
                verdict = snapped(server.pid, sizes)
    return found, opened, verdict


def measure_lock_open(sizes: Sizes) -> Found:
    clients = CLIENTS[: sizes.of(len(CLIENTS), 2)]
    with MySQL55("--table-open-cache=64", "--open-files-limit=4096") as server:
        prepare(server, SYSBENCH_TABLES, sizes.of(10_000, 500))
        small, opened, verdict = _select(server, clients, sizes, say=True)
        server.execute("SET GLOBAL table_open_cache = 4000")
        large, _, _ = _select(server, clients, sizes, say=False)
    assert verdict is not None
    least, most = clients[0], clients[-1]
    left = large[most].median / large[least].median
    return Found(
        ours=f"{short(large[least].median)} queries/s at {least} clients,"
        f" {short(large[clients[1]].median)} at {clients[1]}, {short(large[most].median)} at {most}"
        f" ({left:.0%} of it)",
        after=f"{short(large[least].median)} with {least} clients at a time",
        shows="yes" if left < 0.6 else "partly" if left < 0.8 else "no",
        verdicts=(verdict,),
        tables=(
            Section(
                "lock-open",
                "Point queries a second of MySQL 5.5.9, by clients",
                tuple(
                    Row(
                        f"{count} clients",
                        {
                            "table_open_cache = 64": small[count],
                            "tables opened": str(opened[count]),
                            "table_open_cache = 4000": large[count],
                        },
                    )
                    for count in clients
                ),
            ),
        ),
        drawings=(
            Drawing(
                "lock-open",
                f"{short(large[least].median)} queries a second at {least} clients,"
                f" {short(large[most].median)} at {most}",
                lines=Chart(
                    "Point queries by clients, MySQL 5.5.9",
                    "clients",
                    "queries/s",
                    [
                        Line(name, [(count, found[count].median) for count in clients])
                        for name, found in (("a small cache", small), ("a large cache", large))
                    ],
                    dots=True,
                ),
            ),
        ),
        why="With two CPUs the queue for `LOCK_open` begins at fewer clients than on the seed's"
        " machine: a thread that is preempted while it holds the mutex makes all others wait. A"
        " small cache, of which tables are opened and closed all the time, is no slower here: what"
        " costs is the mutex, not the files.",
    )


LOCK_OPEN = Experiment(
    "lock-open",
    "LOCK_open and many threads",
    Case("from about 200 threads", "Mituzas 2010, random poking"),
    "sysbench's point queries from 10 to 300 connections, with a table cache of 4,000 and of 64."
    " Each query takes `LOCK_open` to get its table, and again to give it back.",
    "fewer clients at a time (a pool); `table_open_cache_instances` from 5.6 on",
    measure_lock_open,
    ("mysql55",),
)
