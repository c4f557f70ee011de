# SPDX-License-Identifier: Apache-2.0
"""What a capture does to the target: gaps, stopped threads, interrupted calls, query latency."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import progress
from tests.bench.check import describe, is_named, right_stacks, verified_right, whole_stacks
from tests.bench.heartbeat import Heartbeat
from tests.bench.load import TEST, Latency, run_sysbench, server_with_heartbeat
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted
from tests.bench.tools import Control, ServingProbe, Taken, Tool, cold_probe, command, peers
from tests.support.servers import SqlServer
from tests.support.stalls.load import sysbench_load
from tests.support.targets import Fact, Target, trouble

__all__ = ["Sizes", "sections"]

NS_PER_MS = 1e6
EXCESS_LIMIT_MS = 1.0
P99_LIMIT = 1.10
# About as long as a cold capture, and as the whole command, use a CPU.
CONTROLS = (Control(50), Control(300))


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 20
    peer_rounds: int = 5
    threads: int = 200
    load_threads: int = 16
    latency_rounds: int = 9
    latency_seconds: int = 10
    latency_peers: tuple[str, ...] = ("gdb", "eu-stack", "eu-stack -q")


QUICK = Sizes(
    rounds=5,
    peer_rounds=1,
    threads=100,
    load_threads=4,
    latency_rounds=2,
    latency_seconds=5,
    latency_peers=(),
)


@dataclass
class Gaps:
    """What was seen of one tool."""

    excess_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    quiet_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    stopped_ns: int | None = None
    right: str = ""


@contextlib.contextmanager
def all_tools(pid: int) -> Iterator[list[Tool]]:
    """Yield the peers and ours, a serving probe among them that has captured once."""
    with ServingProbe(pid) as serving:
        serving.capture(pid)
        yield [*peers(), command(), cold_probe(), serving]


def ours(tool: Tool) -> bool:
    return tool.name.startswith("stallscope")


def often(tool: Tool) -> bool:
    """Return whether a tool is measured in every round."""
    return ours(tool) or isinstance(tool, Control)


def measure_gaps(
    pid: int, heartbeat: Heartbeat, tools: Sequence[Tool], sizes: Sizes, facts: Sequence[Fact]
) -> dict[str, Gaps]:
    """Capture in turns with every tool; the window before each capture is what it is compared to.

    ``facts``, where given, are the threads whose frames must be right.
    """
    seen = {tool.name: Gaps() for tool in tools}
    for nr in range(sizes.rounds):
        for tool in tools:
            if nr >= sizes.peer_rounds and not often(tool):
                continue
            progress(f"gap: {tool.name}, round {nr + 1}")
            gaps = seen[tool.name]
            # Measure the target without a capture for as long as the capture will take.
            idle = time.monotonic_ns()
            time.sleep(max(0.05, 1.5 * (gaps.wall_ms[-1] if gaps.wall_ms else 1000.0) / 1000))
            taken = tool.capture(pid)
            after = heartbeat.count
            heartbeat.wait_tick(after)
            before = max(idle, taken.start_ns - (taken.end_ns - taken.start_ns))
            quiet = heartbeat.longest_gap(before, taken.start_ns)
            gap = heartbeat.longest_gap(taken.start_ns, taken.end_ns)
            gaps.excess_ms.append((gap - quiet) / NS_PER_MS)
            gaps.gap_ms.append(gap / NS_PER_MS)
            gaps.quiet_ms.append(quiet / NS_PER_MS)
            gaps.wall_ms.append(taken.wall_ms)
            if taken.capture is not None:
                gaps.stopped_ns = max(gaps.stopped_ns or 0, taken.capture.stopped_ns)
            gaps.right = examine(tool, taken, facts)
            if left := trouble(pid):
                raise BenchError(f"{tool.name} left behind: {left[:3]}")
    return seen


def examine(tool: Tool, taken: Taken, facts: Sequence[Fact]) -> str:
    """Return how many stacks are right, or of a server what they are; ours must be whole."""
    if isinstance(tool, Control):
        return "-"
    if facts:
        if ours(tool):
            verified_right(facts, taken, tool.name)
        right = f"{right_stacks(facts, taken)} of {len(facts)} right"
        return right if is_named(taken) else right.replace("right", "deep enough, no names")
    if ours(tool):
        whole, threads = whole_stacks(taken)
        if whole < 0.9 * threads:
            raise BenchError(f"{tool.name}: only {whole} of {threads} stacks are whole")
    return describe(taken)


def gap_rows(seen: dict[str, Gaps]) -> tuple[Row, ...]:
    rows = []
    for name, gaps in seen.items():
        cells: dict[str, Figure | str] = {
            "gap added": figure(gaps.excess_ms, "ms"),
            "longest gap": figure(gaps.gap_ms, "ms"),
            "without": figure(gaps.quiet_ms, "ms"),
            "wall": figure(gaps.wall_ms, "ms"),
            "stopped_ns": "-" if gaps.stopped_ns is None else str(gaps.stopped_ns),
            "stacks": gaps.right,
        }
        rows.append(Row(name, cells))
    return tuple(rows)


def gap_goals(seen: dict[str, Gaps]) -> tuple[tuple[str, bool], ...]:
    goals = []
    for name, gaps in seen.items():
        if name.startswith("stallscope"):
            added = figure(gaps.excess_ms, "ms").median
            goals.append((f"{name}: {added:.2f} ms added, 1 ms allowed", added <= EXCESS_LIMIT_MS))
            goals.append((f"{name}: stopped_ns 0", gaps.stopped_ns == 0))
    return tuple(goals)


def target_gaps(sizes: Sizes) -> Section:
    """Measure the heartbeat of a process whose threads are all blocked in known frames."""
    with tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder:
        ticks = Path(folder) / "ticks"
        with (
            Target("threads", str(sizes.threads), "25", "--heartbeat", str(ticks)) as target,
            all_tools(target.pid) as tools,
        ):
            every = [*tools, *CONTROLS]
            seen = measure_gaps(target.pid, Heartbeat(ticks), every, sizes, target.threads)
            target.ask("gap")
    return Section(
        "target-gaps",
        f"Heartbeat in a process of {sizes.threads} blocked threads, 25 functions deep",
        gap_rows(seen),
        (
            "every stack of every stallscope capture has exactly its frames",
            "no thread is left stopped",
        ),
        gap_goals(seen),
    )


def server_gaps(server: SqlServer, heartbeat: Heartbeat, sizes: Sizes) -> Section:
    """Measure the heartbeat inside of a server under load."""
    rate = half_rate(server, sizes)
    with (
        sysbench_load(server, sizes.load_threads, TEST, f"--rate={rate}"),
        all_tools(server.pid) as tools,
    ):
        seen = measure_gaps(server.pid, heartbeat, [*tools, *CONTROLS], sizes, ())
    return Section(
        "server-gaps",
        f"Heartbeat in {server.name} {server.version()}, {sizes.load_threads} sysbench threads,"
        f" {rate} transactions/s",
        gap_rows(seen),
        ("9 in 10 stacks of every stallscope capture reach the start of their thread",),
        gap_goals(seen),
    )


def interrupted(sizes: Sizes) -> Section:
    """Count the threads whose system call returned EINTR because of one capture."""
    rows = []
    goals = []
    for nr in range(len(peers()) + 3):
        with Target("eintr", "25") as target, all_tools(target.pid) as tools:
            tool = tools[nr]
            progress(f"EINTR: {tool.name}")
            before = target.ask("eintr")
            if before["times"]:
                raise BenchError(f"EINTR before {tool.name} captured: {before}")
            taken = tool.capture(target.pid)
            target.wait_asleep()
            counts = target.ask("eintr")["threads"]
            if taken.threads < len(target.threads):
                raise BenchError(f"{tool.name}: {taken.threads} of {len(target.threads)} threads")
        cells: dict[str, Figure | str] = {kind: f"{n} of 25" for kind, n in counts.items()}
        rows.append(Row(tool.name, cells))
        if ours(tool):
            goals.append((f"{tool.name}: no thread saw EINTR", not any(counts.values())))
    return Section(
        "eintr", "Threads that saw EINTR because of one capture", tuple(rows), (), tuple(goals)
    )


class CaptureLoop:
    """Captures once a second in a thread of its own, or as often as it can. A context manager."""

    def __init__(self, tool: Tool | None, pid: int) -> None:
        self.tool, self.pid = tool, pid
        self.captures = 0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> CaptureLoop:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise BenchError(f"capture failed: {self._error}") from self._error

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while self.tool is not None and not self._stop.wait(max(0.0, due - time.monotonic())):
                self.tool.capture(self.pid)
                self.captures += 1
                due += 1.0
        except Exception as error:
            self._error = error


def latency(server: SqlServer, sizes: Sizes) -> Section:
    """Compare sysbench's p99 latency with one capture a second and without, in turns."""
    rate = half_rate(server, sizes)
    with all_tools(server.pid) as every:
        chosen = [t for t in every if t.name in sizes.latency_peers or isinstance(t, ServingProbe)]
        tools: list[Tool | None] = [None, *chosen]
        seen: dict[str, list[Latency]] = {name_of(tool): [] for tool in tools}
        captures: dict[str, int] = dict.fromkeys(seen, 0)
        for nr in range(sizes.latency_rounds):
            # In another order each round: whatever drifts hits all alike.
            for tool in tools[nr % len(tools) :] + tools[: nr % len(tools)]:
                progress(f"latency: {name_of(tool)}, round {nr + 1}")
                with CaptureLoop(tool, server.pid) as loop:
                    result = run_sysbench(server, sizes.load_threads, sizes.latency_seconds, rate)
                seen[name_of(tool)].append(result)
                captures[name_of(tool)] += loop.captures
    return latency_section(server, sizes, rate, seen, captures)


def half_rate(server: SqlServer, sizes: Sizes) -> int:
    """Return half of the transactions a second that the server can do: it must not be the CPUs'
    queue that is measured.
    """
    fastest = run_sysbench(server, sizes.load_threads, sizes.latency_seconds, 0)
    return max(1, int(fastest.transactions_per_s / 2))


def name_of(tool: Tool | None) -> str:
    return "no capture" if tool is None else tool.name


def latency_section(
    server: SqlServer,
    sizes: Sizes,
    rate: int,
    seen: dict[str, list[Latency]],
    captures: dict[str, int],
) -> Section:
    base = figure([run.p99_ms for run in seen["no capture"]], "ms").median
    rows = []
    goals = []
    for name, runs in seen.items():
        p99 = figure([run.p99_ms for run in runs], "ms")
        ratio = p99.median / base
        cells: dict[str, Figure | str] = {
            "p99": p99,
            "of none": f"{ratio:.2f}",
            "max": figure([run.max_ms for run in runs], "ms"),
            "transactions/s": figure([run.transactions_per_s for run in runs], ""),
            "captures": str(captures[name]),
        }
        rows.append(Row(name, cells))
        if name.startswith("stallscope"):
            goals.append((f"{name}: p99 {ratio:.2f} of without, 1.10 allowed", ratio <= P99_LIMIT))
    title = (
        f"sysbench p99 with one capture a second: {server.name}, {sizes.load_threads} threads,"
        f" {rate} transactions/s arriving, {sizes.latency_rounds} rounds of"
        f" {sizes.latency_seconds} s each"
    )
    return Section("latency", title, tuple(rows), (), tuple(goals))


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure and yield one table after the other; ``only`` picks them by id."""
    sizes = QUICK if quick else Sizes()
    names = wanted(("target-gaps", "eintr", "server-gaps", "latency"), only)
    if "target-gaps" in names:
        yield target_gaps(sizes)
    if "eintr" in names:
        yield interrupted(sizes)
    if {"server-gaps", "latency"} & set(names):
        with server_with_heartbeat(server_name) as (server, heartbeat):
            if "server-gaps" in names:
                yield server_gaps(server, heartbeat, sizes)
            if "latency" in names:
                yield latency(server, sizes)
