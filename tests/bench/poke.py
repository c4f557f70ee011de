# SPDX-License-Identifier: Apache-2.0
"""What a poke does to a live MySQL 5.5.9, and whether it is always undone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.poke import allowlist, looking, poking
from stallscope.model.pokes import Plan
from tests.bench import progress
from tests.bench.poke_kills import kills
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted
from tests.support.servers import MySQL55, SqlServer
from tests.support.stalls.load import sysbench, sysbench_load

__all__ = ["sections"]

PARTS = ("read-ahead", "pokes", "kills", "restart", "direct-io")
NAME = "linear-read-ahead"
READ_AHEAD = "Innodb_buffer_pool_read_ahead"
ROWS = 40_000
"""Of 2 KB each: 90 MB, more than the buffer pool of 16 MiB."""
POKES, POKES_QUICK = 1000, 50
PER_FOLDER = 100
KILLS, KILLS_QUICK = 200, 15
CLIENTS = 8
SECONDS = 3.0
"""Of a window of the load with direct writes, and of one without."""
ERRORS = re.compile(r"err/s: ([0-9.]+) reconn/s: ([0-9.]+)")
TPS = re.compile(r"transactions: +\d+ +\(([0-9.]+) per sec")


def sections(server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the tables of PARTS."""
    del server
    parts = wanted(PARTS, only)
    with tempfile.TemporaryDirectory(prefix="stallscope-poke-") as name:
        folder = Path(name)
        for part in parts:
            if part == "read-ahead":
                yield read_ahead(folder, 2 if quick else 7)
            elif part == "pokes":
                yield pokes(folder, POKES_QUICK if quick else POKES)
            elif part == "kills":
                yield kills(folder, KILLS_QUICK if quick else KILLS)
            elif part == "restart":
                yield restart(folder, 2 if quick else 5)
            else:
                yield direct_io(folder, 2 if quick else 7)


def plan_of(server: SqlServer) -> Plan:
    """Return the poke of the server as the command plans it."""
    allowed = allowlist.load()
    return poking.word_plan(allowed, NAME, looking.look(server.pid, allowed), None)


def read_ahead(folder: Path, rounds: int) -> Section:
    """Scan a table beyond the buffer pool, with the poke and without, in turns."""
    pages: dict[str, list[float]] = {"before": [], "set": [], "undone": []}
    times: dict[str, list[float]] = {"before": [], "set": [], "undone": []}
    with MySQL55("--innodb-buffer-pool-size=16M", "--innodb-file-per-table") as server:
        fill(server)
        for number in range(rounds):
            progress(f"poke: read-ahead, round {number + 1} of {rounds}")
            for state in pages:
                stored = None
                if state == "set":
                    stored = poking.write(plan_of(server), folder / "ahead", None)
                ahead, seconds = scan(server)
                if stored is not None:
                    poking.undo(stored.record.id, folder / "ahead")
                pages[state].append(ahead)
                times[state].append(seconds)
    flat = max(pages["set"]) == 0
    rising = min(pages["before"] + pages["undone"]) > 0
    rows = [
        Row(
            state, {"pages read ahead": figure(pages[state], ""), "scan": figure(times[state], "s")}
        )
        for state in pages
    ]
    return Section(
        "read-ahead",
        "A table scan of MySQL 5.5.9 beyond its buffer pool",
        tuple(rows),
        goals=(
            (f"{READ_AHEAD} is flat while the poke is set", flat),
            (f"{READ_AHEAD} rises before it and after its undo", rising),
        ),
    )


def fill(server: SqlServer) -> None:
    """Make a table whose pages lie in the order of its key."""
    server.execute("CREATE DATABASE p")
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, pad VARBINARY(2000)) ENGINE=InnoDB",
        "INSERT INTO t (pad) VALUES (REPEAT('x', 2000))",
        database="p",
    )
    rows = 1
    while rows < ROWS:
        server.execute(f"INSERT INTO t (pad) SELECT pad FROM t LIMIT {ROWS - rows}", database="p")
        rows = server.number("SELECT COUNT(*) FROM t")


def scan(server: SqlServer) -> tuple[float, float]:
    """Return the pages that a scan read ahead, and its seconds."""
    before = server.status(READ_AHEAD)
    begin = time.perf_counter()
    server.query("SELECT SUM(LENGTH(pad)) FROM p.t")
    seconds = time.perf_counter() - begin
    return float(server.status(READ_AHEAD) - before), seconds


def pokes(folder: Path, count: int) -> Section:
    """Set and undo it again and again under load; look for lost connections and errors."""
    sets: list[float] = []
    undos: list[float] = []
    with MySQL55() as server:
        idle = [server.connect() for _ in range(20)]
        aborted = {name: server.status(name) for name in ("Aborted_clients", "Aborted_connects")}
        with sysbench_load(
            server, CLIENTS, "oltp_read_write", "--report-interval=1", "--rate=100"
        ) as child:
            plan = plan_of(server)
            for number in range(count):
                progress(f"poke: {number} of {count} pokes")
                records = folder / f"pokes-{number // PER_FOLDER}"
                begin = time.perf_counter()
                stored = poking.write(plan, records, None)
                middle = time.perf_counter()
                poking.undo(stored.record.id, records)
                sets.append((middle - begin) * 1000)
                undos.append((time.perf_counter() - middle) * 1000)
            alive = child.running()
            reports = ERRORS.findall(child.log.read_text(errors="replace"))
        lost = 0
        for connection in idle:
            try:
                connection.ping(reconnect=False)
            except Exception:  # whatever PyMySQL raises, the connection is lost
                lost += 1
            connection.close()
        now = {name: server.status(name) - was for name, was in aborted.items()}
        answers = server.answers()
    quarters = statistics.quantiles(sets, n=100)[98], statistics.quantiles(undos, n=100)[98]
    rows = (
        Row("set", {"time": figure(sets, "ms"), "p99": figure([quarters[0]], "ms")}),
        Row("undo", {"time": figure(undos, "ms"), "p99": figure([quarters[1]], "ms")}),
    )
    return Section(
        "pokes",
        f"{count} pokes of MySQL 5.5.9 under sysbench with {CLIENTS} connections, 20 more idle",
        rows,
        checks=("the time holds the undo record on disk, and the start of stallscope-poke",),
        goals=(
            ("no connection is lost", lost == 0 and now["Aborted_connects"] == 0),
            ("sysbench, which ends at an error that is no deadlock, still runs", alive),
            ("sysbench reconnected never", sum(float(again) for _, again in reports) == 0),
            ("the server answers", answers),
        ),
        notes=(
            f"Aborted_clients rose by {now['Aborted_clients']} (sysbench, ended by a signal)",
            f"sysbench ran into {sum(float(ignored) for ignored, _ in reports):.0f} deadlocks"
            " of its own transactions",
        ),
    )


def restart(folder: Path, rounds: int) -> Section:
    """Undo a poke of a server that was started again."""
    refused: list[str] = []
    for number in range(rounds):
        progress(f"poke: restart, round {number + 1} of {rounds}")
        with MySQL55() as server:
            records = folder / f"restart-{number}"
            stored = poking.write(plan_of(server), records, None)
            server.shut_down()
            server.start()
            try:
                poking.undo(stored.record.id, records)
            except StallscopeError as error:
                refused.append(str(error))
            if plan_of(server).old != 0:
                raise BenchError("the restarted server does not have the old value")
    rows = (Row("undo after a restart", {"refused": f"{len(refused)} of {rounds}"}),)
    return Section(
        "restart",
        "A restart between poke and undo",
        rows,
        checks=(f"said: {refused[0] if refused else 'nothing'}",),
        goals=(("each is refused, and nothing is written", len(refused) == rounds),),
    )


def direct_io(folder: Path, rounds: int) -> Section:
    """Write transactions with O_DIRECT redo and without, in turns; then crash and recover."""
    rows = []
    healthy = True
    # On a disk: what is in memory has no direct writes that mean anything.
    home = Path(tempfile.mkdtemp(prefix="stallscope-poke-", dir=folder))
    shutil.chown(home, "nobody", "nogroup")
    folder.chmod(0o755)
    with MySQL55("--innodb-flush-log-at-trx-commit=1", parent=home) as server:
        server.execute("CREATE DATABASE sbtest")
        command = sysbench(server, "oltp_write_only")
        subprocess.run([*command, "prepare"], check=True, capture_output=True, timeout=300)
        for threads in (1, 16):
            off: list[float] = []
            on: list[float] = []
            for number in range(rounds):
                progress(f"poke: direct-io, {threads} threads, round {number + 1} of {rounds}")
                off.append(window(command, threads))
                plan = direct_plan(server)
                stored = poking.write(plan, folder / "direct", None)
                on.append(window(command, threads))
                poking.undo(stored.record.id, folder / "direct")
            ratio = [b / a for a, b in zip(off, on, strict=True)]
            cells: dict[str, Figure] = {
                "page cache": figure(off, "tps"),
                "O_DIRECT": figure(on, "tps"),
                "ratio": figure(ratio, ""),
            }
            rows.append(Row(f"{threads} connections", cells))
        stored = poking.write(direct_plan(server), folder / "direct", None)
        window(command, 16)
        written = server.number("SELECT COUNT(*) FROM sbtest.sbtest1")
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        server.start()
        healthy = server.number("SELECT COUNT(*) FROM sbtest.sbtest1") == written
        checked = server.query("CHECK TABLE sbtest.sbtest1")[0][3]
    return Section(
        "direct-io",
        "Redo of MySQL 5.5.9 with O_DIRECT (innodb_flush_log_at_trx_commit = 1)",
        tuple(rows),
        checks=("no statement failed; sysbench ends at its first error",),
        goals=(
            ("after SIGKILL, with O_DIRECT set, the server recovers all rows", healthy),
            ("CHECK TABLE says OK", checked == "OK"),
        ),
    )


def direct_plan(server: SqlServer) -> Plan:
    allowed = allowlist.load()
    return poking.direct_io_plan(allowed, "redo", looking.look(server.pid, allowed, files=True))


def window(command: Sequence[str], threads: int) -> float:
    """Return the transactions per second of some seconds. Raises: BenchError where one failed."""
    words = [*command, f"--threads={threads}", f"--time={SECONDS:.0f}", "--events=0", "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    found = TPS.search(done.stdout)
    if done.returncode or found is None:
        raise BenchError(f"sysbench ended with {done.returncode}: {done.stderr[-200:]}")
    return float(found.group(1))
