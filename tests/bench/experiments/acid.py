# SPDX-License-Identifier: Apache-2.0
"""What it costs that a commit is on the disk: settings, and rows in each transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    asked,
    bar,
    factor,
    prepare,
    rates,
    short,
    snapped,
)
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.stats import Figure, Interval, Row, Section, figure
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.slowsyncs import slow_syncs
from tests.support.stalls.load import sysbench_load

__all__ = ["ACID", "ROWS_PER_TRANSACTION"]

K_MS = 12.5
"""What fits the seed's 26.58 transactions a second with three syncs, one after the other."""
THREADS = 8
OFF, ON = (0, 0), (1, 1)
BINLOG = ("--log-bin=binlog", "--server-id=1")
SET = "SET GLOBAL innodb_flush_log_at_trx_commit = {}, GLOBAL sync_binlog = {}"
SERVERS: dict[str, Callable[[], SqlServer]] = {
    "MySQL 5.5.9": lambda: MySQL55(*BINLOG, "--binlog-format=ROW"),
    "MariaDB 10.11": lambda: MariaDB(*BINLOG),
    "MySQL 9.7": lambda: MySQL97(*BINLOG),
}
LATE = f"syncs {K_MS:g} ms later"
PLAIN = "this machine's disk"

BATCH = 100
"""Rows of one INSERT."""
TRANSACTIONS = (1, 1_000, 10_000)
UNSYNCED = "1,000, no sync"


@contextmanager
def _started(name: str, late_ms: float) -> Iterator[SqlServer]:
    """Start a server whose data is on a file system with slow syncs, or on this machine's disk."""
    with ExitStack() as stack:
        parent = stack.enter_context(slow_syncs(late_ms)) if late_ms else None
        server = SERVERS[name]()
        server.parent = parent
        yield stack.enter_context(server)


def _say(server: SqlServer, sizes: Sizes) -> Verdict:
    """Ask for what other settings would cost."""
    return asked(
        ["storage", "sync", "-p", str(server.pid), "--seconds", str(sizes.of(5, 2))],
        lambda line: bool(line.strip()),
        "stallscope storage sync -p PID --seconds 5",
    )


def measure_acid(sizes: Sizes) -> Found:
    found: dict[tuple[str, str, tuple[int, int]], Figure] = {}
    verdicts: list[Verdict] = []
    names = list(SERVERS)[: sizes.of(3, 1)]
    for name in names:
        for where, late in ((PLAIN, 0.0), (LATE, K_MS)):
            with _started(name, late) as server:
                prepare(server, 4, sizes.of(10_000, 500))
                for setting in (OFF, ON):
                    progress(f"acid: {name}, {where}, {setting}")
                    server.execute(SET.format(*setting))
                    with sysbench_load(server, THREADS):
                        found[name, where, setting] = _committed(server, sizes)
                        if name == names[0] and late and setting == ON:
                            verdicts += [snapped(server.pid, sizes), _say(server, sizes)]
    return _acid(names, found, verdicts)


def _committed(server: SqlServer, sizes: Sizes) -> Figure:
    return rates(lambda: server.status("Com_commit"), sizes, "TPS")


def _acid(
    names: Sequence[str],
    found: dict[tuple[str, str, tuple[int, int]], Figure],
    verdicts: Sequence[Verdict],
) -> Found:
    def cells(name: str, where: str) -> dict[str, Figure | Interval | str]:
        off, on = found[name, where, OFF], found[name, where, ON]
        line: dict[str, Figure | Interval | str] = {
            "0 and 0": off,
            "1 and 1": on,
            "of it is left": f"{on.median / off.median:.1%}",
        }
        if where == LATE:
            line["commits each 12.5 ms"] = f"{on.median * K_MS / 1000:.2f}"
        return line

    rows = tuple(
        Row(f"{name}, {where}", cells(name, where)) for where in (PLAIN, LATE) for name in names
    )
    old_off, old_on = (found[names[0], LATE, setting].median for setting in (OFF, ON))
    best = max(names, key=lambda name: found[name, LATE, ON].median)
    after = found[best, LATE, ON].median
    return Found(
        ours=f"{short(old_off)} → {old_on:.1f} TPS (5.5.9, {LATE});"
        f" {short(found[names[0], PLAIN, OFF].median)} → {short(found[names[0], PLAIN, ON].median)}"
        " on this machine's disk",
        after=f"{short(after)} TPS, durable, in {best}",
        shows="yes" if old_on < old_off / 15 else "partly" if old_on < old_off / 5 else "no",
        verdicts=tuple(verdicts),
        tables=(
            Section(
                "acid",
                "Transactions a second of sysbench oltp_read_write, 8 threads, by"
                " innodb_flush_log_at_trx_commit and sync_binlog",
                rows,
            ),
        ),
        drawings=(
            Drawing(
                "acid",
                f"5.5.9 with a late sync falls from {short(old_off)} to {old_on:.1f} transactions"
                " a second",
                bars=Bars(
                    f"sysbench, {THREADS} threads: durable and not",
                    "transactions/s",
                    [
                        Group(
                            f"{name}, {'late' if where == LATE else 'plain'}",
                            [
                                bar("0 and 0", found[name, where, OFF]),
                                bar("1 and 1", found[name, where, ON]),
                            ],
                        )
                        for where in (PLAIN, LATE)
                        for name in names
                    ],
                    log=True,
                ),
            ),
        ),
        why=f"The seed's 26.58 fit three syncs of {K_MS:g} ms for each commit, one after the other:"
        " the InnoDB of MySQL 5.1, whose commits waited for each other. In 5.5 commits share the"
        " syncs of the redo log, and only those of the binlog come one after the other (80 a second"
        f" are what {K_MS:g} ms allow). MariaDB and MySQL 9.7 let commits share both.",
    )


ACID = Experiment(
    "acid",
    "Durable commits",
    Case("1,436.83 → 26.58 TPS", "two posts on durability, 2010"),
    "sysbench with 8 threads, the binlog on, once with `innodb_flush_log_at_trx_commit` and"
    " `sync_binlog` at 0 and once at 1; on this machine's disk, and with each sync 12.5 ms later.",
    "a server with group commit (MySQL 5.6, MariaDB 5.3), or a cache with a battery; 0 and 0 loses"
    " commits",
    measure_acid,
    ("mysql55", "mariadb", "mysql97"),
)


def _insert(server: SqlServer, rows: int, seconds: float) -> float:
    """Insert in transactions of so many rows from one connection; return rows a second."""
    batch = min(rows, BATCH)
    values = ",".join(f"({number}, 'some text of a row of a table')" for number in range(batch))
    statement = f"INSERT INTO many (number, what) VALUES {values}"
    done, start = 0, time.monotonic()
    with closing(server.connect("sbtest")) as connection, connection.cursor() as cursor:
        while time.monotonic() < start + seconds:
            cursor.execute("BEGIN")
            for _ in range(rows // batch):
                cursor.execute(statement)
            cursor.execute("COMMIT")
            done += rows
    return done / (time.monotonic() - start)


@contextmanager
def _inserting(server: SqlServer, rows: int) -> Iterator[None]:
    """Insert until the end of the block."""
    ended = threading.Event()

    def insert() -> None:
        while not ended.is_set():
            _insert(server, rows, 0.2)

    with ThreadPoolExecutor(1) as pool:
        inserting = pool.submit(insert)
        try:
            yield
        finally:
            ended.set()
            inserting.result()


def measure_rows(sizes: Sizes) -> Found:
    kinds = [*(f"{rows:,}" for rows in TRANSACTIONS), UNSYNCED]
    found: dict[tuple[str, str], Figure] = {}
    verdicts: list[Verdict] = []
    names = list(SERVERS)[: sizes.of(3, 1)]
    for name in names:
        with _started(name, K_MS) as server:
            server.execute(
                "CREATE DATABASE sbtest",
                "CREATE TABLE sbtest.many (id INT PRIMARY KEY AUTO_INCREMENT, number INT,"
                " what VARCHAR(100)) ENGINE=InnoDB",
            )
            for kind, rows in zip(kinds, (*TRANSACTIONS, TRANSACTIONS[1]), strict=True):
                progress(f"rows-per-transaction: {name}, {kind}")
                server.execute(SET.format(*(OFF if kind == UNSYNCED else ON)))
                found[name, kind] = figure(
                    [
                        _insert(server, rows, sizes.seconds)
                        for _ in range(1 if sizes.quick else sizes.windows)
                    ],
                    "rows/s",
                )
                if name == names[0] and kind == kinds[0]:
                    with _inserting(server, rows):
                        verdicts.append(_say(server, sizes))
    return _rows(names, kinds, found, verdicts)


def _rows(
    names: Sequence[str],
    kinds: Sequence[str],
    found: dict[tuple[str, str], Figure],
    verdicts: Sequence[Verdict],
) -> Found:
    first = names[0]
    medians = [found[first, kind].median for kind in kinds]
    gain = factor(medians[2], medians[1])
    return Found(
        ours=f"{', '.join(short(value) for value in medians[1:])} rows/s"
        f" ({short(medians[0])} at 1 row; 5.5.9, {LATE})",
        after=f"{factor(medians[1], medians[0]):.0f} times as many rows/s at 1,000 rows as at 1,"
        f" {gain:.2g} times that at 10,000",
        shows="yes" if medians[0] * 10 < medians[1] < medians[2] else "partly",
        verdicts=tuple(verdicts),
        tables=(
            Section(
                "rows-per-transaction",
                f"Rows a second by rows in a transaction, one connection, {LATE}",
                tuple(
                    Row(
                        f"{kind} rows" if kind != UNSYNCED else kind,
                        {name: found[name, kind] for name in names},
                    )
                    for kind in kinds
                ),
            ),
        ),
        drawings=(
            Drawing(
                "rows-per-transaction",
                "one row a transaction is slow, thousands are nearly as fast as no sync at all",
                bars=Bars(
                    f"Rows a second by rows in a transaction, {LATE}",
                    "rows/s",
                    [
                        Group(kind, [bar(name, found[name, kind]) for name in names])
                        for kind in kinds
                    ],
                    log=True,
                ),
            ),
        ),
        why="The seed's figures are TokuDB's, whose tree costs CPU for each row; the steps are"
        " those of N/R + K.",
    )


ROWS_PER_TRANSACTION = Experiment(
    "rows-per-transaction",
    "Rows in a transaction",
    Case(
        "10K rows/s at 1,000 rows, 15K at 10,000, 17K without sync",
        "TokuDB, durable transactions, 2010",
    ),
    "One connection inserts rows in transactions of 1, 1,000 and 10,000, each commit durable and"
    " each sync 12.5 ms later; then without syncs.",
    "thousands of rows in a transaction",
    measure_rows,
    ("mysql55", "mariadb", "mysql97"),
)
