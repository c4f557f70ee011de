# SPDX-License-Identifier: Apache-2.0
"""The table cache of MySQL 5.5: statistics that are read, and clients that queue."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    SlowDisk,
    bar,
    better,
    counted,
    factor,
    prepare,
    rates,
    short,
    slow_disk,
    snapped,
)
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.linechart import Chart, Line
from tests.bench.stats import Figure, Row, Section
from tests.support.servers import MySQL55, MySQL97, SqlServer
from tests.support.servers.clients import load_program, slap
from tests.support.stalls.load import sysbench_load

__all__ = ["LOCK_OPEN", "OPENING_TABLES"]

READ_MS = 8.0
TABLES, INDEXES = 400, 3
OPENERS = 10
SMALL_POOL = ("--innodb-buffer-pool-size=8M", "--innodb-flush-method=O_DIRECT")
FEW_OPEN, ALL_OPEN = "--table-open-cache=16", "--table-open-cache=2000"


def _many_tables(server: SqlServer, tables: int) -> None:
    """Make tables with indexes whose pages are on the disk, not in the pool."""
    indexes = ", ".join(f"KEY k{number} (c{number})" for number in range(INDEXES))
    columns = ", ".join(f"c{number} INT" for number in range(INDEXES))
    values = ",".join(
        f"({number},{','.join(str(number * 7 % 97) for _ in range(INDEXES))},REPEAT('x', 200))"
        for number in range(300)
    )
    server.execute("CREATE DATABASE many")
    server.execute("SET sql_log_bin = 0")
    for number in range(tables):
        server.execute(
            f"CREATE TABLE t{number} (id INT PRIMARY KEY, {columns}, v VARCHAR(200), {indexes})"
            " ENGINE=InnoDB",
            f"INSERT INTO t{number} VALUES {values}",
            database="many",
        )


@contextmanager
def _opening(server: SqlServer, tables: int) -> Iterator[None]:
    """Let connections each select one row of one random table after another."""
    randomness = random.Random(1)
    with ExitStack() as stack:
        for number in range(OPENERS):
            file = server.folder / f"open-{number}.sql"
            chosen = [randomness.randrange(tables) for _ in range(2000)]
            file.write_text(";".join(f"SELECT id FROM t{one} WHERE id = 1" for one in chosen))
            load = slap(server, "many", file, concurrency=1, queries=100_000_000)
            stack.enter_context(
                load_program(server, load, f"open-{number}", lambda: True, "a connection")
            )
        yield


def _opened(
    server: SqlServer, disk: SlowDisk, tables: int, sizes: Sizes, *, say: bool
) -> tuple[Figure, Figure, Verdict | None]:
    """Return tables opened a second and queries a second."""
    with _opening(server, tables):
        disk.answer(read_ms=READ_MS)
        opened = rates(lambda: server.status("Opened_tables"), sizes, "tables/s")
        queries = rates(lambda: server.status("Com_select"), sizes, "queries/s")
        verdict = snapped(server.pid, sizes) if say else None
        disk.answer()
    return opened, queries, verdict


def measure_opening(sizes: Sizes) -> Found:
    tables = sizes.of(TABLES, 40)
    found: dict[str, tuple[Figure, Figure]] = {}
    verdict: Verdict | None = None
    for name, server, sample in (
        ("MySQL 5.5.9", MySQL55(*SMALL_POOL, FEW_OPEN), True),
        ("MySQL 9.7", MySQL97(*SMALL_POOL, FEW_OPEN), False),
    ):
        with slow_disk(server) as disk, server:
            progress(f"opening-tables: {name} makes {tables} tables")
            _many_tables(server, tables)
            opened, queries, said = _opened(server, disk, tables, sizes, say=sample)
            found[name] = opened, queries
            verdict = said or verdict
            if not sample:
                continue
            server.execute("SET GLOBAL innodb_stats_sample_pages = 1")
            found[f"{name}, statistics of 1 page"] = _opened(
                server, disk, tables, sizes, say=False
            )[:2]
            server.execute("SET GLOBAL table_open_cache = 2000")
            for number in range(tables):
                server.query(f"SELECT id FROM many.t{number} WHERE id = 1")
            found[f"{name}, a cache for all tables"] = _opened(
                server, disk, tables, sizes, say=False
            )[:2]
    assert verdict is not None
    slow, new = found["MySQL 5.5.9"][0].median, found["MySQL 9.7"][0].median
    all_open = found["MySQL 5.5.9, a cache for all tables"][1].median
    return Found(
        ours=f"{short(slow)} tables/s (5.5.9)",
        after=f"{short(new)} tables/s in 9.7 ({better(new, slow)});"
        f" 5.5.9 with a cache for all: {short(all_open)} queries/s, none opens a table",
        shows="yes" if factor(new, slow) >= 4 else "partly",
        verdicts=(verdict,),
        tables=(
            Section(
                "opening-tables",
                f"{OPENERS} connections, {tables} tables of {INDEXES + 1} indexes, each read takes"
                f" {READ_MS:g} ms longer",
                tuple(
                    Row(name, {"opened": opened, "queries": queries})
                    for name, (opened, queries) in found.items()
                ),
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
                        Group(name, [bar("opened", opened)])
                        for name, (opened, _) in found.items()
                        if opened.median > 0
                    ],
                ),
            ),
        ),
        why="Each read is made longer by a preloaded library, since this machine's disk answers at"
        " once. 9.7 keeps statistics in tables (innodb_stats_persistent), so that it need not read"
        " the indexes, and opens tables without a global lock.",
    )


OPENING_TABLES = Experiment(
    "opening-tables",
    "Opening tables",
    Case("13.5 → 105 tables/s with statistics out of the lock", "Mituzas 2009, opening tables"),
    "10 connections select a row from random tables, of which the table cache holds few. To open a"
    " table, MySQL 5.5 reads pages of each index for its statistics, under `LOCK_open`.",
    "a table cache for all tables; fewer sampled pages; statistics that are kept"
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
    left = small[most].median / max(found.median for found in small.values())
    return Found(
        ours=f"{short(small[least].median)} queries/s at {least} clients,"
        f" {short(small[most].median)} at {most} (table_open_cache = 64)",
        after=f"{short(large[most].median)} at {most} with table_open_cache = 4000"
        f" ({better(large[most].median, small[most].median)})",
        shows="yes" if left < 0.5 else "partly" if left < 0.8 else "no",
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
                f"{short(small[most].median)} queries a second at {most} clients with a small"
                f" cache, {short(large[most].median)} with a large one",
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
    )


LOCK_OPEN = Experiment(
    "lock-open",
    "LOCK_open and many threads",
    Case("from about 200 threads", "Mituzas 2010, random poking"),
    "sysbench's point queries from 10 to 300 connections, with a table cache of 64 and of 4,000."
    " Each query takes `LOCK_open` to get its table, and again to give it back.",
    "a table cache of as many entries as threads times tables",
    measure_lock_open,
    ("mysql55",),
)
