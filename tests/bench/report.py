# SPDX-License-Identifier: Apache-2.0
"""How long an HTML report takes to write and to open, and how large it is."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Label, Lock, LockKind, Module, Process, Thread
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry
from stallscope.model.samples import Sample
from stallscope.store import Store
from tests.bench import progress
from tests.bench.stats import BenchError, Figure, Row, Section, figure

__all__ = ["incident", "sections", "server"]

CHECKOUT = Path(__file__).resolve().parents[2]
STALLSCOPE = CHECKOUT / "scripts" / "stallscope"
SEED = 20_101_018
START_NS = 1_795_261_984_250_000_000
RUNS, QUICK_RUNS = 9, 3
SMALL = 500
LARGE, CAPTURES = 2_000, 100
STACKS = 120
STATEMENTS = 150
GOAL_WRITE_S = 1.0
GOAL_OPEN_S = 2.0
GOAL_MB = 10.0
SECONDS = 600


def _stacks(chance: random.Random) -> list[tuple[Frame, ...]]:
    """Return stacks as a server has them: common roots, leaves that differ."""
    module = Module(0, "/usr/sbin/mysqld", 0x400000, 0x2000000, 0, "ab" * 20)

    def frame(name: str) -> Frame:
        at = chance.randrange(1 << 24)
        return Frame(name, module=module, pc=0x400000 + at, offset=at, symbol_offset=at % 999)

    outer = "do_command(THD*)", "do_handle_one_connection(THD*)", "start_thread", "clone"
    roots = [frame(name) for name in outer]
    middle = [frame(f"Sql_layer_{i}::execute(THD*, TABLE_LIST*, unsigned int)") for i in range(60)]
    leaves = [frame(f"row_{i}_search_mvcc(unsigned char*, row_prebuilt_t*)") for i in range(60)]
    wait = [frame(name) for name in ("__lll_lock_wait", "pthread_mutex_lock")]
    return [
        (*wait, *chance.sample(leaves, 4), *chance.sample(middle, 12), *roots)
        for _ in range(STACKS)
    ]


def server(threads: int, chance: random.Random, *, captures: int = 1) -> Iterator[Capture]:
    """Yield captures of one stalled server: threads stay, part of them moves on between two."""
    stacks = _stacks(chance)
    statements = [
        f"SELECT c{i} FROM sbtest{i % 32} JOIN t{i} USING (id) WHERE id = ? AND k BETWEEN ? AND ?"
        for i in range(STATEMENTS)
    ]
    places = [(chance.choice(stacks), chance.choice(statements)) for _ in range(threads)]
    for number in range(captures):
        for index in range(0, threads, 5):  # every fifth is elsewhere each time
            moved = (index + number) % threads
            places[moved] = (chance.choice(stacks), chance.choice(statements))
        lock = Lock(0, 0xD000, LockKind.MUTEX, owner_tid=1000, waiters=threads - 1,
                    symbol="LOCK_open")  # fmt: skip
        yield Capture(
            backend="bpf",
            processes=(Process(1000, comm="mysqld", exe="/usr/sbin/mysqld",
                               strings={"server_version": "5.5.9"}),),
            threads=tuple(
                Thread(1000 + i, stack, name="mysqld", state="S", label=Label.VERIFIED,
                       lock=0 if i else None, connection=i, command="Query", query=query,
                       user="app", database="shop")
                for i, (stack, query) in enumerate(places)
            ),
            locks=(lock,),
            time_ns=START_NS + number * 10**9,
            snapshot_ns=4_000_000,
        )  # fmt: skip


def incident(dest: Path, threads: int, captures: int, seed: int) -> Path:
    """Keep an incident as large as they get, with 400 status variables a second of it."""
    chance = random.Random(seed)
    fired = Fired("threads-running", "Threads_running 1990 > 400", START_NS, 1990.0, 400.0)
    about = Incident(
        id="20261121T145012.345Z-mysqld-1000",
        start_ns=START_NS,
        end_ns=START_NS + captures * 10**9,
        target=TargetEntry(1000, "mysqld", server="mysql", version="5.5.9"),
        triggers=(fired,),
    )
    with Store.open(dest).begin(about) as folder:
        for number, capture in enumerate(server(threads, chance, captures=captures)):
            progress(f"incident: capture {number + 1} of {captures}")
            entry = CaptureEntry("", capture.time_ns or 0, "burst", "threads-running")
            folder.add_capture(capturefile.dumps(capture), entry)
        for second in range(-60, captures + 60):
            values = {f"Status_{i}": float(chance.randrange(1 << 20)) for i in range(400)}
            values["Threads_running"] = float(chance.randrange(2000))
            clock = 10**12 + second * 10**9
            folder.append_samples(
                [Sample("status", START_NS + second * 10**9, clock, values=values)]
            )
        folder.finish(folder.incident)
        return folder.path


def _write(source: Path, page: Path) -> tuple[float, float]:
    """Run the whole command; return its seconds, and those of CPU time."""
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [STALLSCOPE, "report", source, "-o", page, "--force"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    took = time.perf_counter() - start
    if done.returncode != 0:
        raise BenchError(f"stallscope report: {done.stderr.strip()}")
    after = os.times()
    cpu = after.children_user + after.children_system
    return took, cpu - before.children_user - before.children_system


def _open(page: Path, runs: int, captures: int) -> list[tuple[float, float]]:
    """Return the seconds from opening the page in Chromium to its script having drawn it all.

    And those of CPU time of the page's main thread.
    """
    sys.path.insert(0, str(CHECKOUT))
    try:
        from tests.support.browser import READY, chromium
    except ImportError as error:
        raise BenchError(f"{error}: run scripts/setup --all") from error
    took = []
    with chromium() as browser:
        for number in range(runs + 1):
            progress(f"opening {page.name}: {number + 1} of {runs + 1}")
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            tab = context.new_page()
            tab.goto("about:blank")  # so that its process is there
            tools = context.new_cdp_session(tab)
            tools.send("Performance.enable", {"timeDomain": "threadTicks"})
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector(READY, state="attached")
            # Two frames: what the script made is on the screen.
            tab.evaluate("() => new Promise(done => requestAnimationFrame("
                         "() => requestAnimationFrame(done)))")  # fmt: skip
            wall = time.perf_counter() - start
            metrics = tools.send("Performance.getMetrics")["metrics"]
            cpu = next(item["value"] for item in metrics if item["name"] == "TaskDuration")
            if number:  # the first also starts the browser's processes
                took.append((wall, cpu))
            shown = tab.locator("article.capture").count()
            if shown != captures:
                raise BenchError(f"{page.name} shows {shown} captures, not {captures}")
            context.close()
    return took


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the one table. Nothing here depends on a server."""
    del server_name, only
    runs = QUICK_RUNS if quick else RUNS
    with tempfile.TemporaryDirectory(prefix="stallscope-bench-") as name:
        folder = Path(name)
        rows, goals = [], []
        capture = next(server(SMALL, random.Random(SEED)))
        small = folder / "small.jsonl.zst"
        capturefile.write(capture, small)
        cells = _measure(small, folder / "small.html", runs, 1)
        rows.append(Row(f"{SMALL} threads, 1 capture", dict(cells)))
        goals.append((f"{SMALL} threads are written in {GOAL_WRITE_S:g} s (whole command)",
                      cells["write"].median < GOAL_WRITE_S))  # fmt: skip
        large = incident(folder / "store", LARGE, CAPTURES, SEED)
        cells = _measure(large, folder / "large.html", runs, CAPTURES, writes=1 if quick else 3)
        rows.append(Row(f"{LARGE:,} threads, {CAPTURES} captures", dict(cells)))
        goals.append((f"{LARGE:,} threads and {CAPTURES} captures open in {GOAL_OPEN_S:g} s",
                      cells["open"].median < GOAL_OPEN_S))  # fmt: skip
        goals.append((f"they take less than {GOAL_MB:g} MB", cells["size"].median < GOAL_MB))
    progress("")
    yield Section(
        id="report",
        title="The HTML report: written, opened in Chromium",
        rows=tuple(rows),
        checks=("each page shows all its captures",),
        goals=tuple(goals),
        notes=(f"captures are made up: {STACKS} stacks of 22 frames, {STATEMENTS} statements, a"
               f" fifth of the threads moves between two; seed {SEED}",
               "open: from the address to the second frame after the script has drawn everything",
               f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs at the end"),
    )  # fmt: skip


def _measure(
    source: Path, page: Path, runs: int, captures: int, *, writes: int | None = None
) -> dict[str, Figure]:
    took = []
    for number in range(writes or runs):
        progress(f"writing {page.name}: {number + 1} of {writes or runs}")
        took.append(_write(source, page))
    opened = _open(page, runs, captures)
    return {
        "write": figure([wall for wall, _ in took], "s"),
        "CPU of it": figure([cpu for _, cpu in took], "s"),
        "open": figure([wall for wall, _ in opened], "s"),
        "CPU of the page": figure([cpu for _, cpu in opened], "s"),
        "size": figure([page.stat().st_size / 1e6], "MB"),
    }
