# SPDX-License-Identifier: Apache-2.0
"""Whether ``storage writes`` has the bytes that the kernel counts, and what settings of a server
change in them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stallscope.collectors.host.writes import host_writes
from stallscope.model import storagewrites
from stallscope.model.storagewrites import WritesReport
from tests.bench import progress
from tests.bench.stats import BenchError, Figure, Interval, Row, Section, figure, wanted
from tests.support.servers import MariaDB, MySQL55, MySQL97, Postgres, SqlServer
from tests.support.servers.mysql97 import DATA_OPTIONS
from tests.support.servers.newdata import CREATE_SECONDS, new_data
from tests.support.stalls.load import sysbench, sysbench_postgres
from tests.support.usage import process_cpu_ns

__all__ = ["measured", "sections", "updates"]

CLOSE = 0.03
"""What classes and /proc/PID/io may differ by."""
HALF = (0.45, 0.55)
COST = 1.02
SMALL = (512, 8192)
LARGE = 16 << 20
TIMES = 100
PAIRS = 5
WARM_SECONDS = 3.0
"""Until the programs are attached."""
TEST = "oltp_update_non_index"
DISK = Path("/var/tmp")
"""Not in memory: there nothing is written."""
DATABASE = "bytes to database files a row"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rows: int = 200_000
    clients: int = 4
    warm_seconds: float = 4.0
    seconds: float = 15.0


FULL = Sizes()
QUICK = Sizes(rows=100_000, warm_seconds=2.0, seconds=6.0)


def sections(_server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure the parts, one after the other."""
    sizes = QUICK if quick else FULL
    parts = {part.__name__: part for part in (classes, doublewrite, settings, folios, cost)}
    for name in wanted(parts, only):
        yield parts[name](sizes)


def classes(sizes: Sizes) -> Section:
    """Compare the sum of the classes with /proc/PID/io, where all goes through the page cache."""
    rows, goals = [], []
    binlog = ("--log-bin=binlog", "--server-id=1")
    buffered = ("--innodb-flush-method=fsync", *binlog)
    kinds: tuple[tuple[type[SqlServer], tuple[str, ...]], ...] = (
        (MySQL55, binlog),
        (MariaDB, buffered),
        (MySQL97, buffered),
    )
    for kind, options in kinds:
        with kind(*options, "--innodb-buffer-pool-size=32M", parent=DISK) as server:
            report = _of(server, sizes)
            rows.append(_class_row(f"{server.name} {server.version()}", report))
            goals.append(_is_close(server.name, report))
    with Postgres("fsync=on", "shared_buffers=16MB", parent=DISK) as postgres:
        report = _of(postgres, sizes)
        rows.append(_class_row(f"postgres {postgres.version().split()[0]}", report))
        goals.append(_is_close("postgres", report))
    return Section(
        "classes",
        f"Bytes by class and /proc/PID/io, buffered I/O, {sizes.clients} clients of sysbench"
        f" {TEST}, {sizes.seconds:g} s",
        tuple(rows),
        goals=tuple(goals),
        notes=(
            "charged bytes; doublewrite of MySQL 5.5 and MariaDB by Innodb_dblwr_pages_written",
        ),
    )


def _class_row(name: str, report: WritesReport) -> Row:
    shown = {c.file_class: c.bytes for c in report.classes if c.bytes}
    cells = {key: _mib(count) for key, count in shown.items()}
    total = f"{report.accounted * 100:.1f} %" if report.accounted is not None else "?"
    return Row(name, {"write_bytes": _mib(report.process_write_bytes), "classes": total, **cells})


def _is_close(name: str, report: WritesReport) -> tuple[str, bool]:
    share = report.accounted
    met = share is not None and abs(share - 1) <= CLOSE
    return f"{name}: classes within {CLOSE:.0%} of /proc/PID/io", met


def doublewrite(sizes: Sizes) -> Section:
    """Compare bytes to database files with and without the doublewrite buffer."""
    rows, goals = [], []
    for kind in (MySQL55, MariaDB, MySQL97):
        options = ("--innodb-flush-method=O_DIRECT", "--innodb-buffer-pool-size=8M")
        with kind(*options, parent=DISK) as server:
            on = _of(server, sizes)
            server.shut_down()
            server.options = (*options, "--skip-innodb-doublewrite")
            server.start()
            off = _of(server, sizes)
            name = f"{server.name} {server.version()}"
        factor = _database(off) / _database(on)
        rows.append(
            Row(
                name,
                {
                    f"{DATABASE}, on": _bytes(_database(on)),
                    "off": _bytes(_database(off)),
                    "off/on": f"{factor:.2f}",
                    "doublewrite factor": f"{on.amplification.doublewrite_factor or 0:.2f}",
                    "rows/s, on": f"{(on.rows or 0) / on.seconds:.0f}",
                    "rows/s, off": f"{(off.rows or 0) / off.seconds:.0f}",
                },
            )
        )
        goals.append((f"{name}: {HALF[0]} to {HALF[1]} of the bytes", HALF[0] <= factor <= HALF[1]))
    return Section(
        "doublewrite",
        f"The doublewrite buffer off, {sizes.clients} clients of sysbench {TEST}, pool 8M",
        tuple(rows),
        goals=tuple(goals),
        notes=("database files: data, doublewrite, undo; seed: about halved",),
    )


class _SmallPages(MySQL97):
    """Data with pages of 4 KiB."""

    def _create_data(self) -> None:
        self.give_to_server(Path(self._home))
        options = (*DATA_OPTIONS, "--innodb-page-size=4k")
        new_data(self.executable(), options, self.data, lambda: self._initialize_small(options))
        (self.data / "auto.cnf").unlink()

    def _initialize_small(self, options: Sequence[str]) -> None:
        self._inside("--initialize-insecure", *options).succeed("mysqld", CREATE_SECONDS)


Change = tuple[str, type[MySQL97], tuple[str, ...], type[MySQL97], tuple[str, ...]]
"""Its name, and the server and its options before and after."""


def settings(sizes: Sizes) -> Section:
    """Compare bytes to database files with one setting changed at a time."""
    small = "--innodb-buffer-pool-size=8M"
    large = "--innodb-buffer-pool-size=256M"
    neighbours = "--innodb-flush-neighbors"
    log = "--innodb-redo-log-capacity"
    changes: tuple[
        tuple[str, type[MySQL97], tuple[str, ...], type[MySQL97], tuple[str, ...]], ...
    ] = (
        ("page size 16k -> 4k", MySQL97, (small,), _SmallPages, (small, "--innodb-page-size=4k")),
        ("redo log 16M -> 1G", MySQL97, (large, f"{log}=16M"), MySQL97, (large, f"{log}=1G")),
        (
            "neighbours on -> off",
            MySQL97,
            (large, f"{neighbours}=1", f"{log}=16M"),
            MySQL97,
            (large, f"{neighbours}=0", f"{log}=16M"),
        ),
    )
    rows, goals = [], []
    version = ""
    for name, kind, options, other, others in changes:
        found = []
        for which, words in ((kind, options), (other, others)):
            with which("--innodb-flush-method=O_DIRECT", *words, parent=DISK) as server:
                found.append(_of(server, sizes))
                version = server.version()
        factor = _database(found[1]) / _database(found[0])
        total = _total(found[1]) / _total(found[0])
        rows.append(
            Row(
                name,
                {
                    f"{DATABASE}, before": _bytes(_database(found[0])),
                    "after": _bytes(_database(found[1])),
                    "after/before": f"{factor:.2f}",
                    "of all files": f"{total:.2f}",
                },
            )
        )
        goals.append((f"{name} lowers it", factor < 1))
    return Section(
        "settings",
        f"One setting changed, mysql97 {version}, {sizes.clients} clients of sysbench {TEST}",
        tuple(rows),
        goals=tuple(goals),
    )


def _of(server: SqlServer | Postgres, sizes: Sizes) -> WritesReport:
    progress(f"storage writes: {server.name} {' '.join(server.options)}")
    with updates(server, sizes.rows, sizes.clients):
        time.sleep(sizes.warm_seconds)
        return measured(server.pid, sizes.seconds)


def measured(pid: int, seconds: float, *options: str) -> WritesReport:
    """Return the report of the command for a server. Raises: BenchError."""
    command = [sys.executable, "-P", "-m", "stallscope", "storage", "writes", "-p", str(pid)]
    command += ["--seconds", str(seconds), "--json", "--sql-deadline", "20", *options]
    done = subprocess.run(command, capture_output=True, check=False, timeout=seconds + 120)
    if done.returncode != 0:
        raise BenchError(f"storage writes ended with {done.returncode}: {done.stderr[-500:]!r}")
    return storagewrites.loads(done.stdout.strip().splitlines()[-1], "storage writes")


@contextmanager
def updates(
    server: SqlServer | Postgres, rows: int, clients: int, test: str = TEST
) -> Iterator[None]:
    """Change random rows of one table, which is made where it is not there; the server has
    written and forgotten its pages before."""
    options = ("--tables=1", f"--table-size={rows}", f"--threads={clients}", "--rand-type=uniform")
    if isinstance(server, Postgres):
        command = sysbench_postgres(server, test, *options)
        is_new = True
    else:
        command = sysbench(server, test, *options)
        is_new = not server.query("SHOW DATABASES LIKE 'sbtest'")
    if is_new:
        if not isinstance(server, Postgres):
            server.execute("CREATE DATABASE sbtest")
        subprocess.run([*command, "prepare"], check=True, capture_output=True, timeout=300)
        if isinstance(server, Postgres):
            server.execute("CHECKPOINT")
        else:
            # Pages that are new since the last checkpoint need no doublewrite on MariaDB.
            server.shut_down()
            server.start()
    # --time=0: until it is ended.
    process = subprocess.Popen(
        [*command, "--time=0", "run"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield
        if process.poll() is not None:
            assert process.stderr is not None
            said = re.sub(r"\s+", " ", process.stderr.read(500).decode("utf-8", "replace"))
            raise BenchError(f"sysbench ended with {process.returncode}: {said}")
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _database(report: WritesReport) -> float:
    found = report.amplification.database_bytes
    if not found or not report.rows:
        raise BenchError("no bytes went to database files, or rows are not known")
    return found / report.rows


def _total(report: WritesReport) -> float:
    if not report.bytes or not report.rows:
        raise BenchError("no bytes were charged, or rows are not known")
    return report.bytes / report.rows


def _mib(count: int | None) -> str:
    return "?" if count is None else f"{count / (1 << 20):.1f} MiB"


def _bytes(count: float) -> str:
    return f"{count:.0f} B"


def folios(_: Sizes) -> Section:
    """Measure what the kernel charges for small writes to a large file, each of which is synced."""
    rows = []
    for count in SMALL:
        with tempfile.NamedTemporaryFile(dir=DISK) as file:
            file.write(b"x" * LARGE)
            file.flush()
            os.fsync(file.fileno())
            before = host_writes([os.getpid()])
            for nr in range(TIMES):
                os.pwrite(file.fileno(), b"y" * count, nr * count)
                os.fdatasync(file.fileno())
            after = host_writes([os.getpid()])
            device = os.stat(file.name).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        charged = after.io[os.getpid()].write_bytes - before.io[os.getpid()].write_bytes
        cells: dict[str, Figure | Interval | str] = {"charged a write": _bytes(charged / TIMES)}
        if number in after.disks and number in before.disks:
            got = after.disks[number].write_bytes - before.disks[number].write_bytes
            cells["to the device a write"] = _bytes(got / TIMES)
        rows.append(Row(f"{count} B", cells))
    return Section(
        "folios",
        f"Writes with fdatasync, {TIMES} in turn, to a file of {LARGE >> 20} MiB in {DISK}",
        tuple(rows),
        notes=("the device: all that the host wrote to it meanwhile, the journal included",),
    )


def cost(sizes: Sizes) -> Section:
    """Compare the server's CPU time a question with and without the command, in turns."""
    rows = []
    goals = []
    with MariaDB("--innodb-buffer-pool-size=256M", parent=DISK) as server:
        for test in ("oltp_point_select", TEST):
            with updates(server, sizes.rows, sizes.clients, test=test):
                time.sleep(sizes.warm_seconds)
                pairs = [
                    (_cpu(server, sizes), _cpu(server, sizes, watched=True)) for _ in range(PAIRS)
                ]
            without, watched = (figure([pair[n] for pair in pairs], "µs") for n in (0, 1))
            ratio = figure([b / a for a, b in pairs], "x")
            rows.append(Row(test, {"without": without, "with": watched, "ratio": ratio}))
            goals.append((f"{test}: {COST:g} x the CPU time or less", ratio.median <= COST))
        name = f"{server.name} {server.version()}"
    return Section(
        "cost",
        f"CPU time of {name} a question, with and without storage writes, {sizes.clients} clients",
        tuple(rows),
        goals=tuple(goals),
        notes=("user and system time of the server's process, of all its threads",),
    )


def _cpu(server: SqlServer, sizes: Sizes, *, watched: bool = False) -> float:
    """Return µs of CPU time a question."""
    seconds = sizes.seconds / 2
    process = None
    if watched:
        progress(f"storage writes: cost, {server.name}")
        command = [sys.executable, "-P", "-m", "stallscope", "storage", "writes", "--no-sql"]
        command += ["-p", str(server.pid), "--seconds", str(seconds + 30), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(WARM_SECONDS)
    before = process_cpu_ns(server.pid), _questions(server)
    time.sleep(seconds)
    after = process_cpu_ns(server.pid), _questions(server)
    if process is not None:
        if process.poll() is not None:
            raise BenchError(f"storage writes ended early with {process.returncode}")
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return (after[0] - before[0]) / (after[1] - before[1]) / 1e3


def _questions(server: SqlServer) -> int:
    return int(server.query("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])
