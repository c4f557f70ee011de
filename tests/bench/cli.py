# SPDX-License-Identifier: Apache-2.0
"""What a user waits for: the start of a command, commands that ask no server, and exports."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stallscope.commands.export import FORMATS
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Label, Lock, LockKind, Module, Process, Thread
from tests.bench import progress
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted

__all__ = ["sections"]

CHECKOUT = Path(__file__).resolve().parents[2]
DATA = CHECKOUT / "tests" / "data"
CONFIG = """\
[server]
target = "mysqld"

[[destination]]
kind = "command"
run = ["/bin/true"]
"""
START_SECONDS = 0.15
THREADS = 2_000
CAPTURES = 100
CAPTURES_QUICK = 10
STACKS = 300
DEPTH = 30
MEMORY_MB = 1024
SEED = 20_261_121


def sections(server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the tables ``start``, ``commands`` and ``export``."""
    del server
    makers: dict[str, Callable[[Path], Section]] = {
        "start": lambda _: start(5 if quick else 31),
        "commands": lambda folder: commands(folder, 3 if quick else 9),
        "export": lambda folder: export(folder, CAPTURES_QUICK if quick else CAPTURES),
    }
    for name in wanted(makers, only):
        with tempfile.TemporaryDirectory(prefix="stallscope-cli-") as folder:
            yield makers[name](Path(folder))


def run(*words: str | Path) -> tuple[float, float, float]:
    """Run stallscope; return seconds of wall and CPU time, and its memory in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stallscope", *map(str, words)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):  # 3: partly done, such as a doctor that finds something
        raise BenchError(f"stallscope {words[0]}: exit code {process.returncode}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def start(rounds: int) -> Section:
    """Measure commands that do next to nothing."""
    commands = (("--help",), ("--version",), ("snap", "--help"), ("completion", "signatures"))
    runs: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(rounds + 1):
        progress(f"cli: start, round {number} of {rounds}")
        for words in commands:
            result = run(*words)
            if number:  # the first one writes byte code
                runs.setdefault(" ".join(words), []).append(result)
    rows = tuple(Row(name, _cells(results)) for name, results in runs.items())
    median = figure([wall for wall, _, _ in runs["--help"]], "s").median
    return Section(
        "start",
        "The start of a command",
        rows,
        goals=((f"stallscope --help in {START_SECONDS} s: {median:.3f}", median < START_SECONDS),),
    )


def _cells(results: Sequence[tuple[float, float, float]]) -> dict[str, Figure | str]:
    wall, cpu, _ = zip(*results, strict=True)
    return {"wall": figure(wall, "s"), "CPU": figure(cpu, "s")}


def commands(folder: Path, rounds: int) -> Section:
    """Measure the commands that ask no server, each on small input."""
    capture = DATA / "top" / "metadata-lock.jsonl.zst"
    samples = DATA / "triggers" / "metadata-lock.jsonl.zst"
    config = folder / "agent.toml"
    config.write_text(CONFIG)
    words: dict[str, tuple[str | Path, ...]] = {
        "analyze": (capture,),
        "completion": ("bash",),
        "config": ("check", config),
        "diff": (capture, capture),
        "doctor": ("--no-sql",),
        "inproc": ("status",),
        "notify": ("--test", "--config", config),
        "signatures": ("metadata-lock",),
        "symbolize": (capture, "--debug-dir", "/usr/lib/debug"),
        "triggers": ("--try", samples),
        "version": (),
    }
    rows = []
    for name, more in words.items():
        progress(f"cli: {name}")
        found = [run(name, *more) for _ in range(rounds + 1)][1:]
        cells = _cells(found)
        rows.append(Row(f"{name} {' '.join(map(_short, more))}".strip(), cells))
    return Section(
        "commands",
        "Commands that ask no server",
        tuple(rows),
        notes=(
            "CPU: of the command and of all programs that it starts; the input is that of the"
            " tests: one capture of 34 threads, an hour of samples",
        ),
    )


def _short(word: str | Path) -> str:
    return word if isinstance(word, str) else word.name


def export(folder: Path, captures: int) -> Section:
    """Export the captures of a busy server in every format."""
    chance = random.Random(SEED)
    saved = folder / "captures"
    saved.mkdir()
    for number in range(captures):
        progress(f"cli: capture {number + 1} of {captures}")
        capturefile.write(_capture(chance, number), saved / f"{number:04}.jsonl.zst")
    rows = []
    largest = 0.0
    for form in FORMATS:
        progress(f"cli: export to {form}")
        out = folder / f"out.{form}"
        wall, cpu, memory = run("export", saved, "--to", form, "-o", out)
        largest = max(largest, memory)
        size = out.stat().st_size
        out.unlink()
        rows.append(
            Row(
                form,
                {
                    "wall": figure([wall], "s"),
                    "CPU": figure([cpu], "s"),
                    "memory": figure([memory], "MB"),
                    "file": figure([size / 1e6], "MB"),
                },
            )
        )
    return Section(
        "export",
        f"Exports of {captures} captures of {THREADS} threads",
        tuple(rows),
        notes=(
            f"made-up captures of {DEPTH} frames a thread, {STACKS} different stacks a capture,"
            f" seed {SEED}; reading and analyzing them is in the times",
        ),
        goals=((f"{MEMORY_MB} MB at most: {largest:.0f}", largest <= MEMORY_MB),),
    )


def _capture(chance: random.Random, number: int) -> Capture:
    module = Module(process=0, path="/usr/sbin/mysqld", start=0x400000, end=0x4000000)
    functions = [
        Frame(f"function_{i}(THD*, int)", module, 0x400000 + 16 * i, 16 * i) for i in range(5_000)
    ]
    stacks = [tuple(chance.choices(functions, k=DEPTH)) for _ in range(STACKS)]
    locks = tuple(
        Lock(process=0, address=0x10000 + 64 * i, kind=LockKind.MUTEX, symbol=f"LOCK_{i}")
        for i in range(20)
    )
    threads = tuple(
        Thread(
            tid=1000 + i,
            frames=chance.choice(stacks),
            name="connection",
            state="S",
            label=Label.VERIFIED,
            lock=chance.choice((None, *range(len(locks)))),
            connection=i,
            query=f"SELECT c FROM t{chance.randrange(50)} WHERE id = ?",
            digest=f"{chance.randrange(50):032x}",
        )
        for i in range(THREADS)
    )
    return Capture(
        backend="bpf",
        processes=(Process(pid=1000, comm="mysqld", exe="/usr/sbin/mysqld"),),
        threads=threads,
        locks=locks,
        modules=(module,),
        time_ns=1_763_714_796 * 10**9 + number * 10**9,
    )
