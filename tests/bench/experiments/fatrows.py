# SPDX-License-Identifier: Apache-2.0
"""Rows of 7 KB in an index that is larger than the buffer pool."""

from __future__ import annotations

import time

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import (
    SlowReads,
    bar,
    better,
    rates,
    short,
    slow_reads,
    snapped,
)
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes
from tests.bench.stats import Figure, Row, Section
from tests.support.servers import MySQL55
from tests.support.servers.clients import load_program, slap
from tests.support.stalls import INDEX_LOCK_OPTIONS, index_lock

__all__ = ["FAT_ROWS"]

READ_MS = 5.0
CLIENTS = 40
ROOMY = "--innodb-buffer-pool-size=512M"
LOG = (
    "CREATE TABLE fat.log (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(7000)) CHARACTER SET latin1"
)
AT_THE_END = "INSERT INTO log (v) VALUES (REPEAT(MD5(RAND()), 218))"


def _inserted(server: MySQL55, reads: SlowReads, sizes: Sizes) -> tuple[Figure, float]:
    """Return rows a second, and how many reads the disk had at a time (Little's law)."""
    before = reads.count()
    start = time.monotonic()
    rows = rates(lambda: server.status("Innodb_rows_inserted"), sizes, "rows/s")
    rate = (reads.count() - before) / (time.monotonic() - start)
    return rows, rate * READ_MS / 1000


def measure(sizes: Sizes) -> Found:
    found: dict[str, tuple[Figure, float]] = {}
    small = "anywhere in the index, pool of 8 MB"
    roomy = "the same, pool of 512 MB"
    at_the_end = "at the end of the index, pool of 8 MB"
    server = MySQL55(*INDEX_LOCK_OPTIONS)
    with slow_reads(server) as reads, server:
        progress("fat-rows: a pool that is too small")
        with index_lock(server, CLIENTS):
            reads.take(READ_MS)
            found[small] = _inserted(server, reads, sizes)
            verdict = snapped(server.pid, sizes)
            reads.take(0)
        server.execute(LOG)
        load = slap(server, "fat", AT_THE_END, concurrency=CLIENTS, queries=100_000_000)
        with load_program(server, load, "log", lambda: True, "inserts"):
            reads.take(READ_MS)
            found[at_the_end] = _inserted(server, reads, sizes)
            reads.take(0)
    server = MySQL55(*INDEX_LOCK_OPTIONS, ROOMY)
    with slow_reads(server) as reads, server, index_lock(server, CLIENTS):
        progress("fat-rows: a pool that holds the index")
        reads.take(READ_MS)
        found[roomy] = _inserted(server, reads, sizes)
    slow, in_flight = found[small]
    return Found(
        ours=f"{short(slow.median)} rows/s from {CLIENTS} clients; {in_flight:.1f} reads at a time",
        after=f"{short(found[roomy][0].median)} rows/s"
        f" ({better(found[roomy][0].median, slow.median)}) where the pool holds the index;"
        f" {short(found[at_the_end][0].median)} at the end of the index",
        shows="yes" if slow.median < 150 and in_flight < 3 else "partly",
        verdicts=(verdict,),
        tables=(
            Section(
                "fat-rows",
                f"Rows of 7 KB, {CLIENTS} clients, each read takes {READ_MS:g} ms longer",
                tuple(
                    Row(name, {"rows": rows, "reads at a time": f"{busy:.1f}"})
                    for name, (rows, busy) in found.items()
                ),
            ),
        ),
        drawings=(
            Drawing(
                "fat-rows",
                f"{short(slow.median)} rows a second; with a pool that holds the index"
                f" {short(found[roomy][0].median)}",
                bars=Bars(
                    f"Inserts of 7 KB from {CLIENTS} clients, reads of {READ_MS:g} ms",
                    "rows/s",
                    [Group(name, [bar("5.5.9", rows)]) for name, (rows, _) in found.items()],
                    log=True,
                ),
            ),
        ),
        why=f"The disk of this machine answers in a tenth of a millisecond; a library that is"
        f" preloaded makes each read of a page {READ_MS:g} ms longer, as a disk with a head does."
        " It takes any number of reads at a time, and gets one: the index's lock is held while the"
        " siblings of a page are read one after the other.",
    )


FAT_ROWS = Experiment(
    "fat-rows",
    "Rows of 7 KB beyond the pool",
    Case("50 rows/s, disks idle", "Mituzas 2011, the index lock (bugs 61735, 61736)"),
    "40 connections insert rows of 7 KB at random places into an index that is larger than the"
    " buffer pool, with `O_DIRECT`. Two rows fill a page, so that every other insert splits one.",
    "a pool that holds the index, or keys in the order of the inserts; from 5.7 on, readers pass"
    " (SX locks)",
    measure,
    ("mysql55",),
)
