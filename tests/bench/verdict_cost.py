# SPDX-License-Identifier: Apache-2.0
"""What a burst costs, what it does to the target, and how soon its verdict is printed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.bench import progress
from tests.bench.endurance_scale import limits_raised
from tests.bench.heartbeat import Heartbeat
from tests.bench.stats import BenchError, Row, Section, figure
from tests.support.serving import ask, serving
from tests.support.targets import Target
from tests.support.usage import tree_cpu_ns

__all__ = ["sections"]

DEPTH = "25"
THREADS = 200
BURST = ("--burst", "20", "--burst-interval", "30")
SMALL_STACK = ("--stack", "16384")
CHECKOUT = Path(__file__).resolve().parents[2]

WALL_MS, CPU_MS, GAP_MS, PRINTED_MS = 700.0, 40.0, 1.0, 200.0
LATER_MS = {1000: 3.0, 10_000: 20.0}


def sections(rounds: int) -> Iterator[Section]:
    """Measure bursts of processes with known threads."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        yield _burst(folder, rounds)
        yield _later(folder, rounds)
        yield _printed(folder, rounds)


def _burst(folder: Path, rounds: int) -> Section:
    """Measure the burst of a serving probe, and the longest pause of a thread that should run."""
    wall, cpu, gaps, calm = [], [], [], []
    beats = folder / "beats"
    target = ("threads", str(THREADS), DEPTH, "--heartbeat", str(beats))
    with Target(*target) as process, serving(process.pid, "bpf", *BURST) as probe:
        beat = Heartbeat(beats)
        for number in range(rounds):
            progress(f"verdict: burst {number + 1}")
            file = folder / f"burst-{number}.jsonl"
            before, used = time.monotonic_ns(), tree_cpu_ns(probe.pid)
            ask(probe, f"burst {file}")
            after = time.monotonic_ns()
            cpu.append((tree_cpu_ns(probe.pid) - used) / 1e6)
            wall.append((after - before) / 1e6)
            _whole(capturefile.read(file))
            quiet = time.monotonic_ns()
            time.sleep((after - before) / 1e9)
            end = time.monotonic_ns()
            beat.wait_tick(beat.count)
            gaps.append(beat.longest_gap(before, after) / 1e6)
            calm.append(beat.longest_gap(quiet, end) / 1e6)
            file.unlink()
    added = figure([gap - rest for gap, rest in zip(gaps, calm, strict=True)], "ms")
    cells = {
        "wall": figure(wall, "ms"),
        "CPU": figure(cpu, "ms"),
        "longest gap": figure(gaps, "ms"),
        "without": figure(calm, "ms"),
        "gap added": added,
    }
    return Section(
        "burst",
        f"A burst of 20 captures of {THREADS} blocked threads, {DEPTH} functions deep",
        (Row("stallscope-probe serve", cells),),
        goals=(
            (f"at most {WALL_MS:g} ms", cells["wall"].median <= WALL_MS),
            (f"at most {CPU_MS:g} ms of CPU", cells["CPU"].median <= CPU_MS),
            (f"gap added {GAP_MS:g} ms or less", added.median <= GAP_MS),
        ),
    )


def _later(folder: Path, rounds: int) -> Section:
    """Measure the captures after the first one, where nobody ran but a heartbeat."""
    rows, goals = [], []
    for threads, limit in LATER_MS.items():
        first: list[float] = []
        later: list[float] = []
        with (
            limits_raised(threads),
            Target("threads", str(threads), DEPTH, *SMALL_STACK) as process,
            serving(process.pid, "bpf", *BURST) as probe,
        ):
            for number in range(max(2, rounds // 4)):
                progress(f"verdict: {threads} threads, burst {number + 1}")
                file = folder / "later.jsonl"
                ask(probe, f"burst {file}")
                capture = capturefile.read(file)
                first.append((capture.elapsed_ns or 0) / 1e6)
                later += [(moment.elapsed_ns or 0) / 1e6 for moment in capture.later]
                file.unlink()
        cells = {"first capture": figure(first, "ms"), "a later one": figure(later, "ms")}
        rows.append(Row(f"{threads} threads", cells))
        goals.append(
            (f"{threads} threads: {limit:g} ms or less", cells["a later one"].median <= limit)
        )
    return Section(
        "later", "Captures of a burst of blocked threads", tuple(rows), goals=tuple(goals)
    )


def _printed(folder: Path, rounds: int) -> Section:
    """Measure the time from the last capture of ``snap`` until its report was printed."""
    late, whole = [], []
    with Target("threads", str(THREADS), DEPTH) as process:
        for number in range(rounds):
            progress(f"verdict: snap {number + 1}")
            file = folder / f"snap-{number}.jsonl"
            argv = [sys.executable, "-P", "-m", "stallscope", "snap", "-p", str(process.pid)]
            start = time.time_ns()
            with subprocess.Popen(
                [*argv, "-o", str(file)], cwd=CHECKOUT, stdout=subprocess.PIPE
            ) as snap:
                assert snap.stdout is not None
                snap.stdout.read(1)
                printed = time.time_ns()
                snap.stdout.read()
            if snap.returncode not in (0, 3):
                raise BenchError(f"snap ended with {snap.returncode}")
            last = capturefile.read(file).moments[-1]
            assert last.time_ns is not None
            late.append((printed - last.time_ns - (last.elapsed_ns or 0)) / 1e6)
            whole.append((printed - start) / 1e6)
            file.unlink()
    cells = {"after the last capture": figure(late, "ms"), "whole command": figure(whole, "ms")}
    return Section(
        "printed",
        f"When the verdict is printed, {THREADS} threads",
        (Row("stallscope snap", cells),),
        goals=(
            (
                f"{PRINTED_MS:g} ms after the last capture",
                cells["after the last capture"].median <= PRINTED_MS,
            ),
        ),
    )


def _whole(capture: Capture) -> None:
    """Check that what was measured is a whole burst, with all stacks in each capture."""
    if len(capture.moments) < 15:
        raise BenchError(f"a burst of {len(capture.moments)} captures only")
    for moment in capture.moments:
        deep = sum(len(thread.frames) > int(DEPTH) for thread in moment.threads)
        if deep < THREADS:
            raise BenchError(f"capture {moment.moment} has {deep} of {THREADS} stacks")
