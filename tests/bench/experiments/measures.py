# SPDX-License-Identifier: Apache-2.0
"""Rates in windows of time, reads that are slow, and what stallscope says meanwhile."""

from __future__ import annotations

import mmap
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.bench import progress, snapshots
from tests.bench.barchart import Bar
from tests.bench.experiments.model import Sizes, Verdict
from tests.bench.stats import BenchError, Figure, figure
from tests.support.bpf_objects import attached
from tests.support.servers import SqlServer, wait_until
from tests.support.stalls.load import sysbench
from tests.support.targets import target_path
from tests.support.usage import children, status_kb

__all__ = [
    "SlowReads",
    "asked",
    "bar",
    "better",
    "counted",
    "factor",
    "head",
    "memory_of",
    "prepare",
    "rates",
    "short",
    "signature",
    "slow_reads",
    "snapped",
    "watched",
]

T = TypeVar("T")

BURSTS = 3
NO_STALL = "no stall"
SIGNATURE = re.compile(r"\[([a-z][a-z0-9-]+)\]")
CHANGING = re.compile(r" \(pid \d+\)")
SETTLE = 0.5
"""Seconds of a load that are not measured: its connections are made, caches are filled."""
PATIENCE = 120.0
MOST_LINES = 24


def rates(read: Callable[[], float], sizes: Sizes, unit: str) -> Figure:
    """Return how fast a counter grows, in windows one after the other."""
    time.sleep(0 if sizes.quick else SETTLE)
    values = []
    for _ in range(1 if sizes.quick else sizes.windows):
        start, before = time.monotonic(), read()
        time.sleep(sizes.seconds)
        now = read()
        values.append((now - before) / (time.monotonic() - start))
    return figure(values, unit)


def counted(server: SqlServer, *names: str) -> dict[str, int]:
    """Return counters of SHOW GLOBAL STATUS, all of one moment; a missing one is an error."""
    wanted = {name.lower(): name for name in names}
    found = {
        wanted[str(row[0]).lower()]: int(row[1])
        for row in server.query("SHOW GLOBAL STATUS")
        if str(row[0]).lower() in wanted
    }
    if missing := wanted.keys() - {name.lower() for name in found}:
        raise BenchError(f"{server.name} has no status {', '.join(sorted(missing))}")
    return found


def prepare(server: SqlServer, tables: int, rows: int) -> None:
    """Make sysbench's tables in these sizes."""
    progress(f"{server.name}: {tables} tables of {rows} rows")
    server.execute("CREATE DATABASE IF NOT EXISTS sbtest")
    sizes = (f"--tables={tables}", f"--table-size={rows}")
    subprocess.run(
        [*sysbench(server, "oltp_read_write"), *sizes, "prepare"],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip


def snapped(pid: int, sizes: Sizes) -> Verdict:
    """Return what ``snap`` says; of several bursts, what most of them say."""
    said = []
    for nr in range(1 if sizes.quick else BURSTS):
        progress(f"snap, burst {nr + 1}")
        said.append(snapshots.run(pid))
    names = [signature(text) for text in said]
    name, times = Counter(names).most_common(1)[0]
    lines = head(said[names.index(name)])
    return Verdict("stallscope snap -p PID", (*lines, f"({times} of {len(said)} bursts say so)"))


def signature(text: str) -> str:
    """Return the signature that the first lines of ``snap`` name."""
    found = SIGNATURE.search(text)
    return found[1] if found else NO_STALL


def head(text: str) -> list[str]:
    """Return the first lines: what stalls, and its name."""
    lines = []
    for line in text.splitlines():
        if not line or line.startswith(("Who", "To end", "No statement", "Checked", "Not known")):
            break
        lines.append(CHANGING.sub("", line))
    return lines


def asked(words: Sequence[str], wanted: Callable[[str], bool], shown: str) -> Verdict:
    """Run a command of stallscope, and return the lines of its output that are ``wanted``.

    ``shown`` is the command line for people. What fails is no error: the verdict says why.
    """
    progress(shown)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stallscope", *words],
        capture_output=True, text=True, timeout=PATIENCE, check=False, **snapshots.PLACE,
    )  # fmt: skip
    if done.returncode not in (0, 3):
        return Verdict(shown, (), missing=(done.stderr.strip().splitlines() or ["no output"])[-1])
    return Verdict(shown, *_kept(line for line in done.stdout.splitlines() if wanted(line)))


def _kept(found: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the first lines, and where there are none, why."""
    lines = [line for line in found if line.strip()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"({len(lines) - MOST_LINES} more lines)"]
    return tuple(lines), "" if lines else "its output has nothing of this"


def watched(words: Sequence[str], shown: str, work: Callable[[], T]) -> tuple[T, Verdict]:
    """Do some work while a command of stallscope watches by BPF programs; end the command then."""
    progress(shown)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "stallscope", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **snapshots.PLACE,
    ) as process:  # fmt: skip
        try:
            wait_until(
                lambda: process.poll() is not None or attached(children(process.pid)) > 0,
                f"{shown} watches",
            )
            result = work()
            time.sleep(SETTLE)
        finally:
            process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=PATIENCE)
    lines, missing = _kept(printed.splitlines())
    if missing and errors.strip():
        missing = errors.strip().splitlines()[-1]
    return result, Verdict(shown, lines, missing)


class SlowReads:
    """How slow the reads of a server are: tests/targets/slow_reads_preload.c."""

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)

    def take(self, milliseconds: float) -> None:
        """Let each read of a page take so much longer from now on."""
        struct.pack_into("=Q", self._map, 0, round(milliseconds * 1000))

    def count(self) -> int:
        """Return how many there were."""
        (reads,) = struct.unpack_from("=Q", self._map, 8)
        return int(reads)

    def close(self) -> None:
        self._map.close()


@contextmanager
def slow_reads(server: SqlServer) -> Iterator[SlowReads]:
    """Give a server, which is started inside of the block, reads that can be made slow."""
    home = Path(tempfile.mkdtemp(prefix="stallscope-slow-", dir="/tmp"))
    try:
        home.chmod(0o755)
        library = Path(shutil.copy(target_path("slow_reads.so"), home / "slow_reads.so"))
        library.chmod(0o755)
        file = home / "reads"
        file.write_bytes(bytes(16))
        server.give_to_server(file)
        server.env = {
            **server.env,
            "LD_PRELOAD": str(server.inside(library)),
            "STALL_SLOW_READS": str(server.inside(file)),
        }
        reads = SlowReads(file)
        try:
            yield reads
        finally:
            reads.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def memory_of(pid: int) -> tuple[int, int]:
    """Return the bytes that a process has in memory, and those that it has asked for as data."""
    return status_kb(pid, "VmRSS") * 1024, status_kb(pid, "VmData") * 1024


def short(value: float) -> str:
    """Return a number for a sentence: three digits that say something, with thousands marked."""
    if abs(value) >= 999.5:
        digits = len(str(round(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def factor(after: float, before: float) -> float:
    """Return how many times one is the other; BenchError where nothing was done before."""
    if before <= 0:
        raise BenchError("nothing was done in a window")
    return after / before


def better(after: float, before: float) -> str:
    """Return the change for a sentence."""
    times = factor(after, before)
    if times >= 2:
        return f"{times:.3g} times"
    return f"{(times - 1) * 100:+.0f} %"


def bar(kind: str, found: Figure) -> Bar:
    """Return a figure as a bar of a chart."""
    return Bar(kind, found.median, found.low, found.high)
