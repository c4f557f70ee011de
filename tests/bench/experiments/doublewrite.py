# SPDX-License-Identifier: Apache-2.0
"""Each page is written twice, or once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    asked,
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
from tests.bench.stats import Figure, Row, Section
from tests.support.servers import MySQL55, Unavailable
from tests.support.stalls import device_missing, loop_device
from tests.support.stalls.load import sysbench_load
from tests.support.stalls.slow_device import slow_device
from tests.support.usage import io_bytes

__all__ = ["DOUBLEWRITE"]

THREADS = 8
TABLES, ROWS = 4, 50_000
WRITTEN = 8 << 20
"""Bytes that the disk takes in a second."""
OPTIONS = (
    "--innodb-buffer-pool-size=16M",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-log-file-size=32M",
    "--innodb-io-capacity=2000",
)
ON, OFF = "doublewrite on", "doublewrite off"


class Run(NamedTuple):
    """What was measured of one setting."""

    transactions: Figure
    each: float
    """Bytes that the kernel counts for each transaction (/proc/PID/io)."""
    twice: float
    """Bytes to the doublewrite buffer for each transaction, as InnoDB counts."""
    verdicts: tuple[Verdict, ...]


@contextmanager
def _written(server: MySQL55) -> Iterator[list[float]]:
    """Yield a list that has bytes, doublewrite's bytes and transactions of the block after it."""
    names = ("Com_update", "Innodb_dblwr_pages_written")
    found: list[float] = []
    start, before = io_bytes(server.pid, "write_bytes"), counted(server, *names)
    yield found
    after = counted(server, *names)
    found += [
        io_bytes(server.pid, "write_bytes") - start,
        (after[names[1]] - before[names[1]]) * 16384,
        after[names[0]] - before[names[0]],
    ]


def _run(sizes: Sizes, *options: str, say: bool) -> Run:
    verdicts: tuple[Verdict, ...] = ()
    rows = sizes.of(ROWS, 2000)
    with (
        loop_device() as device,
        MySQL55(*OPTIONS, *options, parent=device.folder) as server,
    ):
        prepare(server, TABLES, rows)
        size = (f"--table-size={rows}",)
        with (
            slow_device(server, device, write_bytes=WRITTEN),
            sysbench_load(server, THREADS, "oltp_update_non_index", *size),
        ):
            # Until the pool is dirty, updates cost no writes.
            time.sleep(0 if sizes.quick else 4)
            with _written(server) as written:
                # Pages are written in batches, seconds apart.
                longer = sizes._replace(seconds=3 * sizes.seconds)
                transactions = rates(lambda: server.status("Com_update"), longer, "TPS")
            if say:
                verdicts = (snapped(server.pid, sizes), _say(server, sizes))
    total, twice, done = written
    return Run(transactions, total / done, twice / done, verdicts)


def _say(server: MySQL55, sizes: Sizes) -> Verdict:
    return asked(
        ["storage", "writes", "-p", str(server.pid), "--seconds", str(sizes.of(4, 2))],
        lambda line: bool(line.strip()),
        "stallscope storage writes -p PID --seconds 4",
    )


def measure(sizes: Sizes) -> Found:
    if reason := device_missing():
        raise Unavailable(reason)
    found = {}
    for name, options in ((ON, ()), (OFF, ("--skip-innodb-doublewrite",))):
        progress(f"doublewrite: {name}")
        found[name] = _run(sizes, *options, say=name == ON)
    on, off = found[ON], found[OFF]
    share = off.each / on.each
    gain = factor(off.transactions.median, on.transactions.median)
    return Found(
        ours=f"{short(on.transactions.median)} → {short(off.transactions.median)} TPS"
        f" ({better(off.transactions.median, on.transactions.median)}); {share:.2f} of the bytes"
        " a transaction",
        after="the setting is the fix, where the disk writes a page of 16 KB wholly or not at all",
        shows="yes" if gain >= 1.3 and share < 0.7 else "partly" if share < 0.7 else "no",
        verdicts=on.verdicts,
        tables=(
            Section(
                "doublewrite",
                f"sysbench oltp_update_non_index, {THREADS} threads, on a disk that takes"
                f" {WRITTEN >> 20} MB/s, MySQL 5.5.9",
                tuple(
                    Row(
                        name,
                        {
                            "transactions": run.transactions,
                            "written for each": f"{run.each / 1024:.1f} KiB",
                            "of it to the doublewrite buffer": f"{run.twice / 1024:.1f} KiB",
                        },
                    )
                    for name, run in found.items()
                ),
            ),
        ),
        drawings=(
            Drawing(
                "doublewrite",
                f"{short(on.transactions.median)} transactions a second with doublewrite,"
                f" {short(off.transactions.median)} without",
                bars=Bars(
                    f"Updates on a disk that takes {WRITTEN >> 20} MB/s, MySQL 5.5.9",
                    "transactions/s",
                    [Group(name, [bar("5.5.9", run.transactions)]) for name, run in found.items()],
                ),
            ),
        ),
        why=f"This machine's disk takes more than the CPUs can make: a control group limits the"
        f" server to {WRITTEN >> 20} MB/s. Updates of sysbench instead of TPC-C's NOTPM.",
    )


DOUBLEWRITE = Experiment(
    "doublewrite",
    "Doublewrite off",
    Case("690 → 1,107 NOTPM; bytes halved", "Percona's archive; Callaghan 2014"),
    "8 connections update random rows of a table that is larger than the buffer pool, on a disk"
    " that takes few bytes a second, with and without `innodb_doublewrite`.",
    "`innodb_doublewrite=0` where the storage writes whole pages (ZFS, atomic writes); a larger"
    " pool or redo log lowers both",
    measure,
    ("mysql55", "freeze"),
)
