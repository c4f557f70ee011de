# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of threads, thousands of threads a second, and twenty servers on one host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stallscope.collectors import probe
from stallscope.model.capture import Capture, Label
from stallscope.model.waitlines import WaitLine, loads
from tests.bench import progress
from tests.bench.agent_cost import cpu_ns, parts_mb
from tests.bench.check import right_stacks
from tests.bench.soak import say
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.tools import Once, ServingProbe, Taken
from tests.support.agents import agent
from tests.support.servers import MariaDB
from tests.support.servers.clients import idle_connections
from tests.support.targets import Fact, Target, trouble
from tests.support.usage import process_tree, status_kb

__all__ = [
    "FULL",
    "QUICK",
    "Sizes",
    "churn_section",
    "limits_raised",
    "scale_section",
    "servers_section",
    "wrong_stacks",
]

STACK = 16 << 10
"""Of a thread, all of them in one mapping: a guard page each would be too many mappings."""
DEPTH = 25
SPARE_PIDS = 20_000
"""For all that runs in addition to the target."""
MEMORY_MB = 1024
CPU_SECONDS = 10.0
SMALL = (
    "--innodb-buffer-pool-size=8M",
    "--innodb-log-buffer-size=2M",
    "--performance-schema=0",
    "--key-buffer-size=1M",
    "--max-connections=50",
)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    threads: tuple[int, ...] = (20_000, 50_000)
    rate: int = 5_000
    stay: int = 200
    captures: int = 300
    seconds: float = 20
    servers: int = 20
    connections: int = 10
    agent_seconds: float = 60


FULL = Sizes()
QUICK = Sizes(
    threads=(5_000, 20_000),
    rate=2_000,
    captures=50,
    seconds=4,
    servers=4,
    connections=3,
    agent_seconds=10,
)


@contextmanager
def limits_raised(threads: int) -> Iterator[None]:
    """Let the kernel have so many threads more; what was set is set again afterwards."""
    with ExitStack() as stack:
        for name in ("pid_max", "threads-max"):
            file = Path("/proc/sys/kernel") / name
            before = file.read_text().strip()
            if int(before) < threads + SPARE_PIDS:
                stack.callback(file.write_text, before)
                file.write_text(str(threads + SPARE_PIDS))
        yield


def scale_section(sizes: Sizes) -> Section:
    """Capture and analyze targets of very many threads."""
    rows: list[Row] = []
    goals: list[tuple[str, bool]] = []
    for count in sizes.threads:
        progress(f"scale: {count} threads start")
        with (
            limits_raised(count),
            Target("threads", str(count), str(DEPTH), "--stack", str(STACK)) as target,
            tempfile.TemporaryDirectory(prefix="stallscope-scale-") as folder,
        ):
            for backend in ("bpf", "proc"):
                say(f"{count} threads, {backend}")
                row, more = captured(backend, target)
                rows.append(row)
                goals += more
            for name, row, more in commands(target, Path(folder)):
                say(f"{count} threads, {name}")
                rows.append(row)
                goals += more
            if left := trouble(target.pid):
                raise BenchError(f"left behind in the target: {left[:3]}")
    return Section(
        "scale",
        f"Very many threads, {DEPTH} functions deep, on stacks of {STACK >> 10} KiB",
        tuple(rows),
        checks=("no stack that is verified or truncated, and unwound to its end, is wrong",),
        goals=tuple(goals),
    )


def captured(backend: str, target: Target) -> tuple[Row, list[tuple[str, bool]]]:
    """Take one capture with all limits as they are by default."""
    count = len(target.threads) + 1
    argv = [str(probe.find()), "snap", "--backend", backend, "--pid", "PID", "--output", "FILE"]
    taken = Once(f"snap, {backend}", argv).capture(target.pid)
    assert taken.capture is not None
    wrong = wrong_stacks(taken.capture, target.threads)
    if wrong:
        raise BenchError(f"{len(wrong)} wrong stacks: {wrong[:3]}")
    notes = [f"{note.code}: {note.message}" for note in taken.capture.notes]
    snapshot = taken.capture.phases["snapshot_ns"] / 1e9
    row = Row(
        f"{count} threads: stallscope-probe snap, {backend}",
        {
            "wall": figure([taken.wall_ms / 1000], "s"),
            "snapshot": figure([snapshot], "s"),
            "CPU": figure([taken.cpu_ns / 1e9], "s"),
            "memory": figure([taken.max_rss_kb / 1024], "MiB"),
            "captured": labels_of(taken),
            "notes": "; ".join(notes) or "-",
        },
    )
    said = {note.code for note in taken.capture.notes}
    whole = taken.threads >= len(target.threads)
    return row, [
        (
            f"{count} threads, {backend}: {taken.threads} captured, or the limit is named",
            whole or bool(said & {"deadline", "threads-limit"}),
        ),
        (
            f"{count} threads, {backend}: {taken.max_rss_kb / 1024:.0f} MiB, {MEMORY_MB} allowed",
            taken.max_rss_kb <= MEMORY_MB << 10,
        ),
    ]


def labels_of(taken: Taken) -> str:
    return ", ".join(f"{count} {label}" for label, count in taken.labels.items() if count)


def wrong_stacks(capture: Capture, facts: Sequence[Fact]) -> list[str]:
    """Return the stacks that say they are exact and whole, and have other frames than they had."""
    expected = {fact.tid: fact.expected() for fact in facts}
    own = {name for names in expected.values() for name in names}
    wrong = []
    for thread in capture.threads:
        if thread.tid not in expected or thread.unwind != "complete":
            continue
        if thread.label not in (Label.VERIFIED, Label.TRUNCATED):
            continue
        names = [frame.symbol for frame in thread.frames if frame.symbol in own]
        if names != expected[thread.tid]:
            wrong.append(f"{thread.tid}: {names}")
    return wrong


def commands(target: Target, folder: Path) -> Iterator[tuple[str, Row, list[tuple[str, bool]]]]:
    """Run what a user runs: a snap with its verdict, and the analysis of a saved capture."""
    file = folder / "capture.jsonl.zst"
    count = len(target.threads) + 1
    words = {
        "stallscope snap": ("snap", "-p", str(target.pid), "-o", str(file)),
        "stallscope analyze": ("analyze", str(file)),
    }
    for name, arguments in words.items():
        progress(f"scale: {name}")
        begun = time.monotonic()
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stallscope", *arguments], stdout=output, stderr=output
            )
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        text = (folder / "output").read_text(errors="replace")
        if process.returncode not in (0, 3):
            raise BenchError(f"{name} ({process.returncode}): {text[-500:]}")
        cpu = used.ru_utime + used.ru_stime
        memory = used.ru_maxrss / 1024
        row = Row(
            f"{count} threads: {name}",
            {
                "wall": figure([wall], "s"),
                "CPU": figure([cpu], "s"),
                "memory": figure([memory], "MiB"),
                "captured": f"{len(text.splitlines())} lines",
            },
        )
        yield (
            name,
            row,
            [
                (
                    f"{count} threads: {name}: {cpu:.1f} s of CPU, {CPU_SECONDS:g} allowed",
                    cpu <= CPU_SECONDS,
                )
            ],
        )


CHURN = ["churn_wait", *(f"level_{nr}" for nr in reversed(range(6))), "churn_main"]
"""A thread that comes and goes: a stack of it is an end of this, as it calls and returns."""


def churn_section(sizes: Sizes) -> Section:
    """Capture a target whose threads come and go, and count its waits."""
    rows: list[Row] = []
    goals: list[tuple[str, bool]] = []
    arguments = (str(sizes.rate), str(sizes.stay), "2000", "cond")
    with Target("churn", *arguments) as target:
        for backend in ("bpf", "proc"):
            row, more = churned(backend, target, sizes)
            rows.append(row)
            goals += more
        row, more = counted(target, sizes)
        rows.append(row)
        goals += more
        if left := trouble(target.pid):
            raise BenchError(f"left behind in the target: {left[:3]}")
    return Section(
        "churn",
        f"{sizes.rate} threads a second that come, wait 2 ms for a condition variable, and go,"
        f" in addition to {sizes.stay} that stay",
        tuple(rows),
        checks=(
            "each capture has every frame of each thread that stays",
            "no verified stack of a thread that comes and goes is anything but what it calls",
        ),
        goals=tuple(goals),
    )


def churned(backend: str, target: Target, sizes: Sizes) -> tuple[Row, list[tuple[str, bool]]]:
    walls: list[float] = []
    lost: list[float] = []
    verified: list[float] = []
    stays = {fact.tid for fact in target.threads}
    before = target.ask("made")
    codes: Counter[str] = Counter()
    with ServingProbe(target.pid, backend=backend) as serving:
        for number in range(sizes.captures):
            progress(f"churn: {backend}, capture {number + 1}")
            taken = serving.capture(target.pid)
            assert taken.capture is not None
            if (right := right_stacks(target.threads, taken)) != len(stays):
                raise BenchError(f"{backend}: {right} of {len(stays)} stacks are right")
            walls.append(taken.wall_ms)
            lost.append(sum(process.threads_lost for process in taken.capture.processes))
            verified.append(sum(came_right(taken.capture, target.pid, stays)))
            codes.update(note.code for note in taken.capture.notes)
        memory = sum(status_kb(pid, "VmHWM") for pid in process_tree(serving.process_id)) / 1024
    after = target.ask("made")
    rate = (after["made"] - before["made"]) / (after["ns"] - before["ns"]) * 1e9
    cells: dict[str, Figure | str] = {
        "threads a second": f"{rate:.0f}",
        "wall": figure(walls, "ms"),
        "threads that come and go, verified": figure(verified, ""),
        "threads lost": figure(lost, ""),
        "memory": figure([memory], "MiB"),
        "notes": ", ".join(f"{code} {count}" for code, count in codes.items()) or "-",
    }
    return Row(f"{sizes.captures} captures, {backend}", cells), [
        (
            f"{backend}: {sum(verified):.0f} stacks of threads that come and go, 0 wrong",
            # These threads end before the backend proc would read them twice.
            sum(verified) > 0 or backend == "proc",
        )
    ]


def came_right(capture: Capture, pid: int, stays: set[int]) -> Iterator[bool]:
    """Yield for each thread that came and will go that it is verified; raise where it is wrong."""
    for thread in capture.threads:
        if thread.tid == pid or thread.tid in stays or thread.label is not Label.VERIFIED:
            continue
        if thread.unwind != "complete":
            continue
        names = [frame.symbol for frame in thread.frames if frame.symbol in CHURN]
        maker = any(frame.symbol == "maker_main" for frame in thread.frames)
        if names != CHURN[len(CHURN) - len(names) :]:
            raise BenchError(f"a wrong stack: {[str(frame) for frame in thread.frames]}")
        yield not maker and bool(names)


def counted(target: Target, sizes: Sizes) -> tuple[Row, list[tuple[str, bool]]]:
    """Count the waits of threads that come and go: each has exactly one."""
    words = ["waits", "--pid", str(target.pid), "--kind", "cond", "--interval", "1000"]
    early = target.ask("made")
    with subprocess.Popen(
        [str(probe.find()), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if b'"ready"' not in process.stdout.readline():
            raise BenchError("stallscope-probe waits is not ready")
        begun = target.ask("made")
        progress("churn: waits")
        end = time.monotonic() + sizes.seconds
        memory = []
        lines = []
        while time.monotonic() < end:
            lines.append(process.stdout.readline())
            memory.append(sum(status_kb(pid, "VmRSS") for pid in process_tree(process.pid)))
        ended = target.ask("made")
        process.stdin.write(b"quit\n")
        process.stdin.close()
        lines += process.stdout.readlines()
        late = target.ask("made")
    final = loads(lines[-1], "waits", len(lines))
    if not isinstance(final, WaitLine) or not final.final:
        raise BenchError(f"no totals: {lines[-1][:100]!r}")
    count = final.kinds["cond"].count
    # Those that lived from one to the other were all seen, and no others than those that lived.
    fewest, most = ended["ended"] - begun["made"], late["made"] - early["ended"]
    lost = {key: number for key, number in final.lost.items() if number}
    half = len(memory) // 2
    grown = max(memory[half:]) - max(memory[: max(half, 1)])
    rate = (ended["made"] - begun["made"]) / (ended["ns"] - begun["ns"]) * 1e9
    cells: dict[str, Figure | str] = {
        "threads a second": f"{rate:.0f}",
        "waits": f"{count} counted, {fewest} to {most} made",
        "lost": ", ".join(f"{key} {number}" for key, number in lost.items()) or "0",
        "memory": figure([kb / 1024 for kb in memory], "MiB"),
    }
    return Row(f"{sizes.seconds:g} s of waits", cells), [
        (f"waits: {count} counted, {fewest} to {most} made", fewest <= count <= most),
        (f"waits: no record lost: {lost or 'none'}", not lost),
        (f"waits: {grown} KiB more in the second half, 2048 allowed", grown <= 2048),
    ]


def servers_section(sizes: Sizes) -> Section:
    """Start many servers; say which there are, capture them in turn and at once, watch one."""
    rows: list[Row] = []
    with ExitStack() as stack:
        running: list[MariaDB] = []
        for number in range(sizes.servers):
            progress(f"servers: {number + 1} start")
            server = stack.enter_context(MariaDB(*SMALL))
            stack.enter_context(idle_connections(server, sizes.connections))
            running.append(server)
        say(f"{len(running)} servers run")
        pids = [server.pid for server in running]
        rows.append(listed(pids))
        rows.append(in_turn(pids))
        rows.append(at_once(pids))
        rows += watched(running, sizes)
        for server in running:
            if left := trouble(server.pid):
                raise BenchError(f"left behind in a server: {left[:3]}")
            if not server.answers():
                raise BenchError("a server does not answer")
    return Section(
        "servers",
        f"{sizes.servers} MariaDB servers on one host, {sizes.connections} idle connections each",
        tuple(rows),
        checks=(
            "snap -p mariadbd names each of them, and takes none by chance",
            "no thread of a server is left stopped, and all of them answer",
        ),
    )


def listed(pids: Sequence[int]) -> Row:
    """Ask for a server by a name that many have."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stallscope", "snap", "-p", "mariadbd", "--no-sql"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    missing = [pid for pid in pids if str(pid) not in done.stderr]
    if missing or done.returncode == 0:
        raise BenchError(
            f"snap -p mariadbd ({done.returncode}) leaves out {missing}: {done.stderr}"
        )
    return Row("snap -p mariadbd: which there are", {"wall": figure([1000 * seconds], "ms")})


def in_turn(pids: Sequence[int]) -> Row:
    argv = [str(probe.find()), "snap", "--backend", "bpf", "--pid", "PID", "--output", "FILE"]
    taken = [Once("snap", argv).capture(pid) for pid in pids]
    return Row(
        "stallscope-probe snap, one after the other",
        {
            "wall": figure([one.wall_ms for one in taken], "ms"),
            "CPU": figure([one.cpu_ns / 1e6 for one in taken], "ms"),
            "memory": figure([one.max_rss_kb / 1024 for one in taken], "MiB"),
            "threads": figure([one.threads for one in taken], ""),
            "verified": figure([100 * one.labels["verified"] / one.threads for one in taken], "%"),
        },
    )


def at_once(pids: Sequence[int]) -> Row:
    """Capture all of them by one probe that serves."""
    more = [word for pid in pids[1:] for word in ("--pid", str(pid))]
    with ServingProbe(pids[0], *more) as serving:
        taken = [serving.capture(pids[0]) for _ in range(10)]
        memory = sum(status_kb(pid, "VmHWM") for pid in process_tree(serving.process_id)) / 1024
    for one in taken:
        assert one.capture is not None
        found = {process.pid for process in one.capture.processes}
        if found != set(pids):
            raise BenchError(f"processes missing: {set(pids) - found}")
    return Row(
        "stallscope-probe serve, all at once",
        {
            "wall": figure([one.wall_ms for one in taken], "ms"),
            "CPU": figure([one.cpu_ns / 1e6 for one in taken], "ms"),
            "memory": figure([memory], "MiB"),
            "threads": figure([one.threads for one in taken], ""),
            "verified": figure([100 * one.labels["verified"] / one.threads for one in taken], "%"),
        },
    )


def watched(servers: Sequence[MariaDB], sizes: Sizes) -> list[Row]:
    """Measure the agent of one of several servers while two more agents run."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder, ExitStack() as stack:
        for number, name in enumerate(("one agent", "three agents, each")):
            for index in range(1 if number == 0 else 2):
                store = Path(folder) / f"store-{number}-{index}"
                watch = stack.enter_context(agent(servers[number + index], store))
            progress(f"servers: {name}")
            time.sleep(2)
            begun, before = time.monotonic(), cpu_ns(watch)
            memory = []
            while time.monotonic() < begun + sizes.agent_seconds:
                time.sleep(1)
                memory.append(sum(parts_mb(watch).values()))
            seconds = time.monotonic() - begun
            after = cpu_ns(watch)
            cells: dict[str, Figure | str] = {
                "CPU": ", ".join(
                    f"{part} {(after[part] - before[part]) / seconds / 1e7:.2f} %" for part in after
                ),
                "memory": figure(memory, "MiB"),
            }
            rows.append(Row(f"stallscope watch, {name}", cells))
    return rows
