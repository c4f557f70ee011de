# SPDX-License-Identifier: Apache-2.0
"""`storage cache`: whether it is right, what it costs, and what dropping binary logs does."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallscope.collectors.cputimes import cpu_seconds
from tests.bench import progress
from tests.bench.load import SERVERS
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted
from tests.support.cachefolders import MIB, ask, cached_by_fincore, filled, process_with
from tests.support.servers import PATIENCE, SqlServer
from tests.support.stalls.load import sysbench_load
from tests.support.usage import io_bytes

__all__ = ["sections"]

GOAL_CPU = 1.02
NOTHING = "nothing"
LOOKS = "storage cache --json each second"
LOOKS_NOT = "version --json each second"
OLD_KERNEL = (sys.executable, "-m", "tests.support.nocachestat")
PAGE = os.sysconf("SC_PAGESIZE")
OPTIONS = {
    "mariadb": ("--log-bin=binlog", "--server-id=1", "--max-binlog-size=256M"),
    "mysql97": ("--log-bin=binlog", "--server-id=1", "--max-binlog-size=256M"),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    files: tuple[int, ...] = (1, 64, 1024, 4096)
    """In MiB."""
    runs: int = 7
    many: int = 10_000
    blocks: int = 12
    seconds: float = 3.0
    seed: int = 1
    uncache_pairs: int = 5
    uncache_seconds: float = 3.0
    binlog_mib: int = 256


FULL = Sizes()
QUICK = Sizes(
    files=(1, 64),
    runs=3,
    many=1000,
    blocks=2,
    seconds=2.0,
    uncache_pairs=2,
    binlog_mib=64,
)


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure single files, many files, and a server."""
    sizes = QUICK if quick else FULL
    names = wanted(("files", "exact", "cost", "uncache"), only)
    if "files" in names:
        yield files_section(sizes)
    if names == ["files"]:
        return
    with SERVERS[server_name](*OPTIONS[server_name]) as server:
        if "exact" in names:
            yield exact_section(server)
        if "cost" in names:
            yield cost_section(server, sizes)
        if "uncache" in names:
            yield uncache_section(server, sizes)


def files_section(sizes: Sizes) -> Section:
    """Measure the time of a file of each size, wholly cached, and of many small ones."""
    rows, equal = [], True
    with tempfile.TemporaryDirectory(prefix="stallscope-cache-") as name:
        folder = Path(name)
        for mib in sizes.files:
            progress(f"storage-cache: a file of {mib} MiB")
            folder.joinpath("data").mkdir(exist_ok=True)
            path = filled(folder / "data" / "t.ibd", mib * MIB)
            cells, same = _file_cells(folder / "data", path, sizes.runs)
            rows.append(Row(f"1 file of {mib} MiB", cells))
            equal &= same
            path.unlink()
        many = folder / "many"
        many.mkdir()
        for number in range(sizes.many):
            (many / f"t{number}.ibd").write_bytes(b"x")
        with process_with(many, "w:t0.ibd") as process:
            times = [ask(process.pid).elapsed_ms for _ in range(sizes.runs)]
            old = [ask(process.pid, prefix=OLD_KERNEL).elapsed_ms for _ in range(sizes.runs)]
        cells = {"cachestat": figure(times, "ms"), "mincore": figure(old, "ms")}
        rows.append(Row(f"{sizes.many} files of a byte", cells))
    return Section(
        "files",
        "The time of the probe for the files of a process, all of them cached",
        tuple(rows),
        goals=(("equal to fincore, to the page", equal),),
        notes=(
            "without the start of the probe; fincore: the whole program (mincore, util-linux 2.38)",
        ),
    )


def _file_cells(folder: Path, path: Path, runs: int) -> tuple[dict[str, Figure | str], bool]:
    with process_with(folder, f"w:{path.name}") as process:
        lines = [ask(process.pid) for _ in range(runs)]
        old = [ask(process.pid, prefix=OLD_KERNEL) for _ in range(runs)]
    times, cached = [], 0
    for _ in range(runs):
        begun = time.monotonic()
        cached = cached_by_fincore(path)[str(path)]
        times.append((time.monotonic() - begun) * 1e3)
    said = {line.files[0].cached_bytes for line in (*lines, *old)}
    cells: dict[str, Figure | str] = {
        "cachestat": figure([line.elapsed_ms for line in lines], "ms"),
        "mincore": figure([line.elapsed_ms for line in old], "ms"),
        "fincore": figure(times, "ms"),
        "cached": f"{cached >> 20} MiB",
        "equal": "yes" if said == {cached} else f"NO: {sorted(map(str, said))}",
    }
    return cells, said == {cached}


def exact_section(server: SqlServer) -> Section:
    """Compare all files of an idle server with fincore."""
    progress(f"storage-cache: {server.name} as fincore")
    _write_binlogs(server, 32)
    line = ask(server.pid)
    root = f"/proc/{server.pid}/root"
    known = {f"{root}{one.path}": one for one in line.files if one.size and not one.deleted}
    wanted = cached_by_fincore(*known)
    differing = [path for path, one in known.items() if one.cached_bytes != wanted[path]]
    pages = sum(one.cached_bytes or 0 for one in known.values()) // PAGE
    cells: dict[str, Figure | str] = {
        "files": str(len(known)),
        "cached pages": str(pages),
        "by fincore": str(sum(wanted.values()) // PAGE),
        "files that differ": str(len(differing)),
    }
    return Section(
        "exact",
        f"All files of {server.name} {server.version()} that have a name, beside fincore",
        (Row(server.name, cells),),
        goals=(("equal to the page on all files", not differing),),
    )


def _cpu(server: SqlServer) -> float:
    return sum(cpu_seconds((server.pid,)) or (0.0,))


def _window(server: SqlServer, seconds: float) -> tuple[float, float]:
    """Return the server's CPU time of a query in µs, and queries a second."""
    queries, cpu, begun = server.status("Questions"), _cpu(server), time.monotonic()
    time.sleep(seconds)
    done = server.status("Questions") - queries
    return (_cpu(server) - cpu) / done * 1e6, done / (time.monotonic() - begun)


@contextmanager
def _each_second(*arguments: str) -> Iterator[None]:
    """Run a command of stallscope each second meanwhile."""
    end = threading.Event()
    failed: list[str] = []

    def work() -> None:
        argv = [sys.executable, "-P", "-m", "stallscope", *arguments]
        while not end.is_set():
            begun = time.monotonic()
            done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False)
            if done.returncode:
                failed.append(done.stderr.decode(errors="replace"))
            end.wait(max(0.0, begun + 1 - time.monotonic()))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    if failed:
        raise BenchError(f"{' '.join(arguments)} failed: {failed[0]}")


def cost_section(server: SqlServer, sizes: Sizes) -> Section:
    """Compare the server's CPU time per query with the command each second, and without; and with
    one that takes CPU time beside the server, and reads nothing of it."""
    commands = {
        NOTHING: (),
        LOOKS: ("storage", "cache", "-p", str(server.pid), "--json"),
        LOOKS_NOT: ("version", "--json"),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    order = random.Random(sizes.seed)
    with sysbench_load(server, 1, "oltp_read_write"):
        _window(server, sizes.seconds)
        for block in range(sizes.blocks):
            progress(f"storage-cache: cost, block {block + 1} of {sizes.blocks}")
            for name in order.sample(list(commands), len(commands)):
                beside = _each_second(*commands[name]) if commands[name] else nullcontext()
                with beside:
                    found[name].append(_window(server, sizes.seconds))
    rows = []
    for name, windows in found.items():
        cells: dict[str, Figure | str] = {"CPU a query": figure([cpu for cpu, _ in windows], "µs")}
        pairs = list(zip(windows, found[NOTHING], strict=True))
        if name != NOTHING:
            cells["of nothing"] = figure([one[0] / other[0] for one, other in pairs], "x")
            cells["queries a second"] = figure([one[1] / other[1] for one, other in pairs], "x")
        rows.append(Row(name, cells))
    cpu = {name: statistics.median(cpu for cpu, _ in windows) for name, windows in found.items()}
    return Section(
        "cost",
        f"{server.name} {server.version()}: beside sysbench oltp_read_write by one thread, blocks"
        f" of windows of {sizes.seconds:g} s, seed {sizes.seed}",
        tuple(rows),
        goals=(
            (
                f"CPU per query at most {GOAL_CPU} times as much"
                f" ({cpu[LOOKS] / cpu[NOTHING]:.2f}; one that reads nothing of it:"
                f" {cpu[LOOKS_NOT] / cpu[NOTHING]:.2f})",
                cpu[LOOKS] <= GOAL_CPU * cpu[NOTHING],
            ),
        ),
        notes=("the CPU time of the server alone: that of the command is on the other core",),
    )


def _write_binlogs(server: SqlServer, mib: int) -> None:
    """Write so many MiB of statements into the binary log: their text is as long."""
    server.execute(
        "SET SESSION binlog_format = 'STATEMENT'",
        "CREATE DATABASE IF NOT EXISTS logs",
        "CREATE TABLE IF NOT EXISTS logs.one (a INT) ENGINE = MEMORY",
        "DELETE FROM logs.one",
        "INSERT INTO logs.one VALUES (0)",
    )
    text = os.urandom(MIB // 2 - 100).hex()
    for _ in range(mib):
        server.execute(f"UPDATE logs.one SET a = a + 1 WHERE a < LENGTH('{text}')")
    server.execute("FLUSH BINARY LOGS")
    _write_back(server)


def uncache_section(server: SqlServer, sizes: Sizes) -> Section:
    """Drop the binary logs from the cache while one thread writes."""
    progress(f"storage-cache: {sizes.binlog_mib} MiB of binary logs")
    _write_binlogs(server, sizes.binlog_mib)
    ratios, before, after, reads, freed, times = [], [], [], [], [], []
    with sysbench_load(server, 1, "oltp_write_only"):
        _window(server, sizes.uncache_seconds)
        for pair in range(sizes.uncache_pairs):
            progress(f"storage-cache: uncache, pair {pair + 1} of {sizes.uncache_pairs}")
            _cache_again(server)
            read = io_bytes(server.pid, "read_bytes")
            first = _window(server, sizes.uncache_seconds)[1]
            read_before = io_bytes(server.pid, "read_bytes") - read
            begun = time.monotonic()
            done = _command(server, "--uncache", "binlog", "--yes")
            times.append((time.monotonic() - begun) * 1e3)
            freed.append(float(done["uncache"]["freed_bytes"]) / MIB)
            read = io_bytes(server.pid, "read_bytes")
            last = _window(server, sizes.uncache_seconds)[1]
            reads.append((io_bytes(server.pid, "read_bytes") - read - read_before) / 1024)
            before.append(first)
            after.append(last)
            ratios.append(last / first)
    cells: dict[str, Figure | str] = {
        "freed": figure(freed, "MiB"),
        "the command": figure(times, "ms"),
        "queries/s before": figure(before, ""),
        "after": figure(after, ""),
        "ratio": figure(ratios, "x"),
        "more read from disks": figure(reads, "KiB"),
    }
    ratio = statistics.median(ratios)
    return Section(
        "uncache",
        f"{server.name} {server.version()}: `--uncache binlog --yes`, sysbench oltp_write_only by"
        f" one thread, windows of {sizes.uncache_seconds:g} s before and after",
        (Row(f"{sizes.binlog_mib} MiB of binary logs", cells),),
        goals=(("one thread's queries within 5 %", abs(ratio - 1) <= 0.05),),
        notes=(
            "before each pair the logs are read again, so that they are cached",
            "more read: /proc/PID/io read_bytes of the window after, less those of the one before",
        ),
    )


def _old_logs(server: SqlServer) -> list[str]:
    found = [one for one in ask(server.pid).files if one.kind == "binlog" and not one.is_open]
    return [f"/proc/{server.pid}/root{one.path}" for one in found]


def _write_back(server: SqlServer) -> None:
    """Wait until the disk has the old logs: other files of the host are not waited for."""
    for path in _old_logs(server):
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _cache_again(server: SqlServer) -> None:
    for path in _old_logs(server):
        with open(path, "rb") as file:
            while file.read(MIB):
                pass


def _command(server: SqlServer, *options: str) -> dict[str, dict[str, float]]:
    argv = [sys.executable, "-P", "-m", "stallscope", "storage", "cache", "-p"]
    argv += [str(server.pid), "--json", *options]
    done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise BenchError(f"storage cache failed: {done.stderr.decode(errors='replace')}")
    return msgspec.json.decode(done.stdout, type=dict)
