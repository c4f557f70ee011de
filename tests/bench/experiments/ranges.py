# SPDX-License-Identifier: Apache-2.0
"""Ranges: InnoDB's tickets, and estimates that nobody counts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    bar,
    better,
    counted,
    factor,
    prepare,
    rates,
    short,
    snapped,
)
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.stats import Figure, Row, Section, figure
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.servers.clients import load_program, slap
from tests.support.stalls.load import sysbench_load

__all__ = ["FORCE_INDEX", "THREAD_CONCURRENCY"]

THREADS = 16
LIMIT = 4
ONLY = ("--skip_trx=on", "--point_selects=0", "--order_ranges=0", "--distinct_ranges=0")
QUERIES = {
    "ranges of 100 rows": (*ONLY, "--simple_ranges=1", "--sum_ranges=0", "--range_size=100"),
    "SUM over 100 rows": (*ONLY, "--simple_ranges=0", "--sum_ranges=1", "--range_size=100"),
}


def measure_concurrency(sizes: Sizes) -> Found:
    found: dict[tuple[str, int], Figure] = {}
    verdicts: list[Verdict] = []
    threads = sizes.of(THREADS, 8)
    with MySQL55() as server:
        prepare(server, 4, sizes.of(10_000, 500))
        for kind, options in QUERIES.items():
            with sysbench_load(server, threads, "oltp_read_only", *options):
                for limit in (0, LIMIT):
                    progress(f"thread-concurrency: {kind}, limit {limit}")
                    server.execute(f"SET GLOBAL innodb_thread_concurrency = {limit}")
                    found[kind, limit] = rates(
                        lambda: server.status("Com_stmt_execute"), sizes, "queries/s"
                    )
                if not verdicts:
                    verdicts.append(snapped(server.pid, sizes))
    kinds = list(QUERIES)
    free, limited = (found[kinds[0], limit].median for limit in (0, LIMIT))
    sum_free, sum_limited = (found[kinds[1], limit].median for limit in (0, LIMIT))
    left, sum_left = limited / free, sum_limited / sum_free
    return Found(
        ours=f"{short(free)} → {short(limited)} ranges/s; SUM {short(sum_free)} →"
        f" {short(sum_limited)}/s",
        after=f"{short(free)} ranges/s with the limit at 0 ({better(free, limited)})",
        shows="yes"
        if left < 0.5 and sum_left > 0.8
        else "partly"
        if left < sum_left - 0.1
        else "no",
        verdicts=tuple(verdicts),
        tables=(
            Section(
                "thread-concurrency",
                f"Queries a second of MySQL 5.5.9, {threads} threads, by innodb_thread_concurrency",
                tuple(
                    Row(
                        kind,
                        {
                            "0": found[kind, 0],
                            str(LIMIT): found[kind, LIMIT],
                            "of it is left": f"{part:.0%}",
                        },
                    )
                    for kind, part in zip(kinds, (left, sum_left), strict=True)
                ),
            ),
        ),
        drawings=(
            Drawing(
                "thread-concurrency",
                f"with a limit of {LIMIT}, {left:.0%} of the ranges and {sum_left:.0%} of the sums"
                " are left",
                bars=Bars(
                    f"Ranges and sums over them, {threads} threads, MySQL 5.5.9",
                    "queries/s",
                    [
                        Group(
                            kind,
                            [
                                bar("no limit", found[kind, 0]),
                                bar(f"innodb_thread_concurrency = {LIMIT}", found[kind, LIMIT]),
                            ],
                        )
                        for kind in kinds
                    ],
                ),
            ),
        ),
        why="Before each row that it sends, the server gives the right to be inside InnoDB back"
        " (`ha_release_temporary_latches` in `select_send::send_data`), and queues for it again."
        " A SUM sends one row. With two CPUs, few threads are inside at a time even without a"
        " limit, and what the queue's mutex costs is less than on the seed's machine.",
    )


THREAD_CONCURRENCY = Experiment(
    "thread-concurrency",
    "innodb_thread_concurrency and ranges",
    Case("70k → 10k ranges/s; SUM stays at 70k", "Mituzas 2010, random poking"),
    "sysbench's `SELECT c … WHERE id BETWEEN ? AND ?` over 100 rows and `SELECT SUM(k)` over the"
    f" same, from {THREADS} connections, with innodb_thread_concurrency at 0 and at {LIMIT}.",
    "`SET GLOBAL innodb_thread_concurrency = 0`",
    measure_concurrency,
    ("mysql55",),
)

INDEXES = 30
LIST = 400
DOUBLINGS = 15
SERVERS: dict[str, Callable[[], SqlServer]] = {
    "MySQL 5.5.9": MySQL55,
    "MariaDB 10.11": MariaDB,
    "MySQL 9.7": lambda: MySQL97("--eq-range-index-dive-limit=0"),
}
READ_REQUESTS, ROWS_READ = "Innodb_buffer_pool_read_requests", "Innodb_rows_read"


def _make(server: SqlServer, doublings: int) -> None:
    """Make a table with many indexes that begin with the same column."""
    columns = [f"c{number}" for number in range(INDEXES)]
    keys = ", ".join(f"KEY i{number} (k, c{number})" for number in range(INDEXES))
    server.execute(
        "CREATE DATABASE shelf",
        f"CREATE TABLE shelf.items (id INT PRIMARY KEY AUTO_INCREMENT, k INT,"
        f" {', '.join(f'{name} TINYINT DEFAULT 1' for name in columns)}, {keys}) ENGINE=InnoDB",
        "INSERT INTO shelf.items (k) VALUES (2)",
        *["INSERT INTO shelf.items (k) SELECT FLOOR(RAND() * 1000000) * 2 FROM shelf.items"]
        * doublings,
        "ANALYZE TABLE shelf.items",
    )


def _query(force: str) -> str:
    """Return a query with a list of values that no row has; ``force`` is a hint."""
    chance = random.Random(1)
    values = ", ".join(str(chance.randrange(1_000_000) * 2 + 1) for _ in range(LIST))
    return f"SELECT c0 FROM items {force} WHERE k IN ({values})"


def _asked(server: SqlServer, force: str, sizes: Sizes) -> tuple[Figure, float]:
    """Return queries a second of one connection, and read requests for each."""
    query, values = _query(force), []
    requests = 0.0
    with closing(server.connect("shelf")) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        for _ in range(1 if sizes.quick else sizes.windows):
            done, start = 0, time.monotonic()
            before = server.status(READ_REQUESTS)
            while time.monotonic() < start + sizes.seconds:
                cursor.execute(query)
                done += 1
            values.append(done / (time.monotonic() - start))
            requests = (server.status(READ_REQUESTS) - before) / done
    return figure(values, "queries/s"), requests


def measure_force(sizes: Sizes) -> Found:
    found: dict[tuple[str, str], tuple[Figure, float]] = {}
    verdict: Verdict | None = None
    names = list(SERVERS)[: sizes.of(3, 1)]
    hints = {"free": "", "forced": "FORCE INDEX (i0)"}
    for name in names:
        with SERVERS[name]() as server:
            progress(f"force-index: {name}")
            _make(server, sizes.of(DOUBLINGS, 8))
            for kind, hint in hints.items():
                found[name, kind] = _asked(server, hint, sizes)
            if verdict is None:
                file = server.folder / "list.sql"
                file.write_text(_query(""))
                load = slap(server, "shelf", file, concurrency=8, queries=100_000_000)
                with load_program(server, load, "lists", lambda: True, "lists"):
                    rates(lambda: counted(server, "Questions")["Questions"], sizes, "/s")
                    verdict = snapped(server.pid, sizes)
    assert verdict is not None
    best = max(names, key=lambda name: _gain(found, name))
    (free, free_reads), (forced, forced_reads) = (found[names[0], kind] for kind in hints)
    return Found(
        ours=f"{short(free.median)} → {short(forced.median)} queries/s"
        f" ({better(forced.median, free.median)}, 5.5.9); {_gain(found, best):.0f} times in {best}",
        after=f"{short(forced_reads)} read requests a query instead of {short(free_reads)}"
        " (5.5.9), for 0 rows",
        shows="yes" if max(_gain(found, name) for name in names) >= 15 else "partly",
        verdicts=(verdict,),
        tables=(
            Section(
                "force-index",
                f"An IN list of {LIST} values that no row has, {INDEXES} indexes, one connection",
                tuple(
                    Row(
                        name,
                        {
                            "free": found[name, "free"][0],
                            "read requests each": short(found[name, "free"][1]),
                            "FORCE INDEX": found[name, "forced"][0],
                            "its read requests": short(found[name, "forced"][1]),
                            "times": f"{_gain(found, name):.1f}",
                        },
                    )
                    for name in names
                ),
            ),
        ),
        drawings=(
            Drawing(
                "force-index",
                f"{_gain(found, names[0]):.0f} times as many queries with FORCE INDEX in 5.5.9",
                bars=Bars(
                    "A query with many ranges, with its index forced and not",
                    "queries/s",
                    [
                        Group(
                            name,
                            [
                                bar("free", found[name, "free"][0]),
                                bar("FORCE INDEX", found[name, "forced"][0]),
                            ],
                        )
                        for name in names
                    ],
                    log=True,
                ),
            ),
        ),
        why="The gain is how many indexes are estimated: the number of candidates is chosen here,"
        " as the seed's query had its own.",
    )


def _gain(found: dict[tuple[str, str], tuple[Figure, float]], name: str) -> float:
    return factor(found[name, "forced"][0].median, found[name, "free"][0].median)


FORCE_INDEX = Experiment(
    "force-index",
    "Index estimates and FORCE INDEX",
    Case("30 times as fast", "Mituzas 2011, metrics for read workloads"),
    f"A query with an IN list of {LIST} values, on a table with {INDEXES} indexes that begin with"
    " the same column. The optimizer dives into each index for each value;"
    " `Innodb_buffer_pool_read_requests` counts that, `Innodb_rows_read` does not.",
    "`FORCE INDEX`; fewer indexes that begin alike; `eq_range_index_dive_limit` from 5.6 on",
    measure_force,
    ("mysql55", "mariadb", "mysql97"),
)
