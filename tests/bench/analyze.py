# SPDX-License-Identifier: Apache-2.0
"""How fast gdb's text is read, compared with pt-pmp's awk and a collapse as FlameGraph does it."""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tests.bench import progress
from tests.bench.stats import BenchError, Row, Section, figure, wanted

__all__ = ["sections"]

CHECKOUT = Path(__file__).resolve().parents[2]
DUMPS = CHECKOUT / "tests" / "data" / "gdb"
MEGABYTES = 50
LARGE = 1024
LARGE_QUICK = 128
FACTOR = 1.5
MEMORY_MB = 512
NEARLY_DOUBLE = 1.7
SEED = 20_101_018
KINDS = ("equal", "differing", "full", "distinct")

# Frames from the outermost with semicolons, equal stacks counted: what a flame graph is drawn from.
COLLAPSE = r"""
sub flush { $n{join ';', reverse @s}++ if @s; @s = () }
while (<>) {
    if (/^Thread/) { flush() }
    elsif (/^#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) \(/) { push @s, $1 }
}
flush();
print "$_ $n{$_}\n" for sort keys %n;
"""
READ = """
import resource, sys, time
from pathlib import Path
from stallscope.base import inputfile, parallel
from stallscope.analyzers import importers
path, jobs = Path(sys.argv[1]), int(sys.argv[2])
start, cpu = time.perf_counter(), time.process_time()
threads = captures = 0
def count(pieces):
    global threads, captures
    for capture in importers.read(inputfile.chunks(path), "bench", pieces=pieces):
        captures += 1
        threads += sum(thread.count for thread in capture.threads)
if jobs > 1:
    with parallel.mapper(jobs, importers.PIECE) as pieces:
        count(pieces)
else:
    count(map)
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - start, time.process_time() - cpu, rss, captures, threads)
"""


class Read(msgspec.Struct, frozen=True):
    """One run. ``wall`` and ``cpu`` in seconds, ``rss`` in MB, ``threads``: what it counted."""

    wall: float
    cpu: float
    rss: float
    threads: int


def write_dump(path: Path, megabytes: int, seed: int) -> int:
    """Write dumps of real servers, each with addresses of its own; return how many threads."""
    chance = random.Random(seed)
    texts = [file.read_text() for file in sorted(DUMPS.glob("*.in"))]
    if not texts:
        raise BenchError(f"no dumps in {DUMPS}")
    size = threads = number = 0
    with path.open("w") as file:
        while size < megabytes << 20:
            text = texts[number % len(texts)]
            number += 1
            text = _elsewhere(text, chance.randrange(1 << 20) * 16, chance.randrange(30_000) * 2000)
            size += file.write(text)
            threads += len(re.findall(r"^#0 ", text, re.M))
    return threads


def _elsewhere(text: str, offset: int, tids: int) -> str:
    """Move the data addresses and the thread ids of a dump, as another moment would."""

    def moved(match: re.Match[str]) -> str:
        return f"={match[1]}{int(match[2], 16) + offset:x}"

    def renumbered(match: re.Match[str]) -> str:
        return f"LWP {int(match[1]) + tids}"

    text = re.sub(r"=((?:\w+@entry=)?0x)([0-9a-f]{8,})", moved, text)
    return re.sub(r"LWP (\d+)", renumbered, text)


def write_kind(path: Path, kind: str, megabytes: int, seed: int) -> int:
    """Write one dump of threads of real servers; return how many.

    ``equal``: threads have the text of some hundred; ``differing``: each has other addresses in its
    arguments; ``full``: variables too, as `bt full` prints them; ``distinct``: nearly every stack
    is another one.
    """
    chance = random.Random(seed)
    texts = "".join(file.read_text() for file in sorted(DUMPS.glob("*.in")))
    models = [
        frames
        for block in re.split(r"^Thread .*\n", texts, flags=re.M)[1:]
        if (frames := re.findall(r"^#\d+ +(.*)", block, re.M))
    ]
    size = threads = 0
    with path.open("w") as file:
        while size < megabytes << 20:
            frames = models[threads % len(models)]
            threads += 1
            if kind == "distinct":
                other = chance.choice(models)
                frames = frames[: chance.randint(1, len(frames))] + chance.choice(models)[:5]
                frames += other[chance.randrange(len(other)) :]
            if kind == "full":
                frames = [
                    f"{frame}\n        thd = 0x7f{chance.randrange(1 << 40):010x}\n"
                    f"        ret = {chance.randrange(3)}\n        buf = {chance.random()!r}"
                    for frame in frames
                ]
            body = "\n".join(f"#{at:<2} {frame}" for at, frame in enumerate(frames))
            if kind != "equal":
                body = _elsewhere(body, chance.randrange(1 << 20) * 16, 0)
            head = f"Thread {threads} (Thread 0x7f{threads:010x} (LWP {threads + 1000})):"
            size += file.write(f"{head}\n{body}\n\n")
    return threads


def whole(path: Path) -> Read:
    """Analyze the file with the command, from the start of Python to the report."""
    argv = [sys.executable, "-m", "stallscope", "analyze", str(path)]
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT)
    wall = time.perf_counter() - start
    found = re.search(r"^  (\d+) threads?:", done.stdout, re.M)
    if done.returncode or found is None:
        raise BenchError(f"analyze failed: {done.stderr[-500:]}")
    return Read(wall, 0.0, 0.0, int(found.group(1)))


def ours(path: Path, jobs: int) -> Read:
    """Read the file in a process of its own, which says what it took."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(jobs)], capture_output=True, text=True
    )
    if done.returncode:
        raise BenchError(f"reading {path} failed: {done.stderr[-500:]}")
    wall, cpu, rss, _, threads = done.stdout.split()
    return Read(float(wall), float(cpu), int(rss) / 1024, int(threads))


def peer(argv: Sequence[str]) -> Read:
    """Run a program to its end; its children count."""
    before = os.times()
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = os.times()
    if done.returncode:
        raise BenchError(f"{argv[0]} failed: {done.stderr[-300:]}")
    cpu = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    counts = [re.match(r"\s*(\d+) |.* (\d+)$", line) for line in done.stdout.splitlines()]
    threads = sum(int(match.group(1) or match.group(2)) for match in counts if match)
    return Read(wall, cpu, 0.0, threads)


def rates(path: Path, rounds: int) -> dict[str, list[Read]]:
    """Measure all of them in turn, so that each meets the same machine."""
    runs: dict[str, list[Read]] = {}
    for number in range(rounds):
        progress(f"analyze: round {number + 1} of {rounds}")
        runs.setdefault("stallscope, 1 process", []).append(ours(path, 1))
        runs.setdefault("stallscope, 2 processes", []).append(ours(path, 2))
        runs.setdefault("pt-pmp (awk, sort, uniq)", []).append(peer(["pt-pmp", str(path)]))
        runs.setdefault("collapse as FlameGraph", []).append(
            peer(["perl", "-e", COLLAPSE, str(path)])
        )
    return runs


def sections(server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the tables ``speed``, ``kinds`` and ``memory``."""
    del server
    for program in ("pt-pmp", "perl"):
        if shutil.which(program) is None:
            raise BenchError(f"{program} is not installed: scripts/setup --all")
    with tempfile.TemporaryDirectory(prefix="stallscope-analyze-") as name:
        folder = Path(name)
        makers: dict[str, Callable[[], Section]] = {
            "speed": lambda: speed(folder, 3 if quick else 9),
            "kinds": lambda: kinds(folder, 5 if quick else 9),
            "memory": lambda: memory(folder, LARGE_QUICK if quick else LARGE),
        }
        for table in wanted(makers, only):
            yield makers[table]()


def speed(folder: Path, rounds: int) -> Section:
    """Compare rates on one file."""
    path = folder / "dump.txt"
    threads = write_dump(path, MEGABYTES, SEED)
    size = path.stat().st_size / 1e6
    runs = rates(path, rounds)
    for name, reads in runs.items():
        wrong = {read.threads for read in reads} - {threads}
        if wrong and "collapse" not in name:
            raise BenchError(f"{name} counted {wrong} threads of {threads}")
    rows = tuple(
        Row(
            name,
            {
                "MB/s": figure([size / read.wall for read in reads], ""),
                "MB per CPU second": figure([size / read.cpu for read in reads], ""),
            },
        )
        for name, reads in runs.items()
    )

    def cpu(name: str) -> float:
        return statistics.median(size / read.cpu for read in runs[name])

    def wall(name: str) -> float:
        return statistics.median(size / read.wall for read in runs[name])

    factor = cpu("stallscope, 1 process") / cpu("pt-pmp (awk, sort, uniq)")
    gain = wall("stallscope, 2 processes") / wall("stallscope, 1 process")
    awk = Path(shutil.which("awk") or "awk").resolve().name
    return Section(
        "speed",
        f"{MEGABYTES} MB of gdb's text",
        rows,
        checks=(f"every tool but the collapse counts {threads} threads",),
        notes=(
            f"awk is {awk}; the file is made of this project's own dumps with addresses changed,"
            f" seed {SEED}",
            "stallscope's time is reading, from the file to Captures; Python's start is not in it",
            "with 2 processes, the CPU time is that of the parent alone",
        ),
        goals=(
            (f"{FACTOR} times pt-pmp's rate per CPU second: {factor:.2f}", factor >= FACTOR),
            (
                f"2 processes nearly double the rate ({NEARLY_DOUBLE}): {gain:.2f}",
                gain >= NEARLY_DOUBLE,
            ),
        ),
    )


def kinds(folder: Path, rounds: int) -> Section:
    """Compare the whole command with pt-pmp on text where more and more differs."""
    rows = []
    goals = []
    for kind in KINDS:
        path = folder / f"{kind}.txt"
        threads = write_kind(path, kind, MEGABYTES, SEED)
        mine, awk = [], []
        for number in range(rounds):
            progress(f"analyze: {kind}, round {number + 1} of {rounds}")
            mine.append(whole(path))
            awk.append(peer(["pt-pmp", str(path)]))
        if {read.threads for read in mine} != {threads}:
            raise BenchError(f"{kind}: {mine[0].threads} threads were read of {threads}")
        times = [[read.wall for read in reads] for reads in (mine, awk)]
        rows.append(Row(kind, {"analyze": figure(times[0], "s"), "pt-pmp": figure(times[1], "s")}))
        part = statistics.median(times[0]) / statistics.median(times[1])
        goals.append((f"{kind}: at most pt-pmp's time: {part:.2f} of it", part <= 1))
        path.unlink()
    return Section(
        "kinds",
        f"`stallscope analyze` of one dump of {MEGABYTES} MB, whole process",
        tuple(rows),
        checks=("every thread of the file was read",),
        notes=(
            "equal: threads of some hundred texts; differing: other addresses in each; full: with"
            " variables; distinct: nearly every stack is another one",
        ),
        goals=tuple(goals),
    )


def memory(folder: Path, megabytes: int) -> Section:
    """Read a large and a small file: memory must not grow with the size."""
    rows = []
    peaks = []
    for size in (megabytes // 8, megabytes):
        path = folder / "large.txt"
        progress(f"analyze: writing {size} MB")
        threads = write_dump(path, size, SEED)
        read = ours(path, 1)
        if read.threads != threads:
            raise BenchError(f"{read.threads} threads were read of {threads}")
        peaks.append(read.rss)
        rows.append(
            Row(f"{size} MB", {"peak": figure([read.rss], "MB"), "s": figure([read.wall], "")})
        )
    return Section(
        "memory",
        "Memory for a large file",
        tuple(rows),
        checks=("every thread of the file was read",),
        goals=(
            (f"{megabytes} MB in {MEMORY_MB} MB at most: {peaks[-1]:.0f}", peaks[-1] <= MEMORY_MB),
        ),
    )
