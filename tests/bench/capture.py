# SPDX-License-Identifier: Apache-2.0
"""What a capture costs: time, memory, how many stacks are proven, and whether anything is lost."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stallscope.model.capture import Label
from tests.bench import progress
from tests.bench.check import verified_right
from tests.bench.load import SERVERS
from tests.bench.pause import all_tools, examine, ours
from tests.bench.soak import say
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.tools import COLD_PROBE, ServingProbe, Taken, Tool
from tests.support import kills
from tests.support.exactstacks import KINDS, Kind, Seen, available, capture_stacks
from tests.support.servers import MySQL55, SqlServer, Unavailable
from tests.support.servers.clients import idle_connections
from tests.support.stalls.load import sysbench_load
from tests.support.targets import Fact, Target, trouble

__all__ = ["Sizes", "sections"]

COLD_LIMIT_MS = 300.0
WARM_LIMIT_MS = 30.0
GDB_RATIO = 30.0
VERIFIED_LIMIT = 0.99
GROWTH_LIMIT = 1.5
EXACT_STACKS = "exact-stacks"
"""An hour long: by its name alone."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    threads: int = 1000
    rounds: int = 10
    peer_rounds: int = 3
    connections: int = 400
    busy_captures: int = 50
    growth: tuple[int, ...] = (1000, 5000, 20000)
    growth_rounds: int = 5
    kills: int = 3000
    exact_captures: int = 10000
    mysql55_captures: int = 1000
    mysql55_connections: int = 100


QUICK = Sizes(
    threads=1000,
    rounds=3,
    peer_rounds=1,
    connections=50,
    busy_captures=5,
    growth=(1000, 2000, 5000),
    growth_rounds=2,
    kills=100,
    exact_captures=200,
    mysql55_captures=50,
    mysql55_connections=20,
)


def race(
    pid: int, tools: Sequence[Tool], sizes: Sizes, facts: Sequence[Fact]
) -> tuple[dict[str, list[Taken]], dict[str, str]]:
    """Capture in turns with every tool; return the captures and what of their stacks is right."""
    seen: dict[str, list[Taken]] = {tool.name: [] for tool in tools}
    right: dict[str, str] = {}
    for nr in range(sizes.rounds):
        for tool in tools:
            if nr >= sizes.peer_rounds and not ours(tool):
                continue
            progress(f"wall time: {tool.name}, round {nr + 1}")
            taken = tool.capture(pid)
            right[tool.name] = examine(tool, taken, facts)
            seen[tool.name].append(taken)
    return seen, right


def medians(seen: dict[str, list[Taken]]) -> dict[str, float]:
    """Return the median wall time of each tool in milliseconds."""
    return {name: figure([t.wall_ms for t in taken], "ms").median for name, taken in seen.items()}


def race_rows(seen: dict[str, list[Taken]], right: dict[str, str]) -> tuple[Row, ...]:
    fastest = medians(seen)
    ours_ms = fastest[next(name for name in seen if "serve" in name)]
    rows = []
    for name, taken in seen.items():
        cells: dict[str, Figure | str] = {
            "wall": figure([t.wall_ms for t in taken], "ms"),
            "times serve": f"{fastest[name] / ours_ms:.1f}",
            "CPU": figure([t.cpu_ns / 1e6 for t in taken], "ms"),
            "peak RSS": figure([t.max_rss_kb / 1024 for t in taken], "MiB"),
            "stacks": right[name],
        }
        rows.append(Row(name, cells))
    return tuple(rows)


def race_goals(seen: dict[str, list[Taken]]) -> tuple[tuple[str, bool], ...]:
    wall = medians(seen)
    warm = next(ms for name, ms in wall.items() if "serve" in name)
    cold = wall[COLD_PROBE]
    goals = [
        (f"second capture of a running probe {warm:.1f} ms, 30 allowed", warm <= WARM_LIMIT_MS),
        (f"cold capture {cold:.0f} ms, 300 allowed", cold <= COLD_LIMIT_MS),
    ]
    if "gdb" in wall:
        for what, ms in (("running probe", warm), ("cold", cold)):
            ratio = wall["gdb"] / ms
            goals.append((f"{what}: {ratio:.0f} times gdb, 30 wanted", ratio >= GDB_RATIO))
    if "eu-stack -q" in wall:
        ratio = wall["eu-stack -q"] / warm
        goals.append((f"running probe: {ratio:.1f} times eu-stack -q, 1 wanted", ratio > 1))
    return tuple(goals)


def wall_time(sizes: Sizes) -> Section:
    """Time every tool on one process whose stacks are known."""
    with (
        Target("threads", str(sizes.threads), "25") as target,
        all_tools(target.pid) as tools,
    ):
        seen, right = race(target.pid, tools, sizes, target.threads)
    return Section(
        "wall",
        f"One capture of {sizes.threads} threads, 25 functions deep",
        race_rows(seen, right),
        ("every stack of every stallscope capture has exactly its frames",),
        race_goals(seen),
    )


def server_time(server: SqlServer, sizes: Sizes) -> Section:
    """Time every tool on a server with many busy connections."""
    with all_tools(server.pid) as tools:
        seen, right = race(server.pid, tools, sizes, ())
    return Section(
        "server-wall",
        f"One capture of {server.name} {server.version()}, {sizes.connections} busy connections",
        race_rows(seen, right),
        ("9 in 10 stacks of every stallscope capture reach the start of their thread",),
    )


def busy(server: SqlServer, sizes: Sizes) -> Section:
    """Count the labels of captures of a server whose threads all work."""
    with ServingProbe(server.pid) as serving:
        serving.capture(server.pid)
        taken = []
        for nr in range(sizes.busy_captures):
            progress(f"labels: capture {nr + 1}")
            taken.append(serving.capture(server.pid))
    cells: dict[str, Figure | str] = {"threads": figure([t.threads for t in taken], "")}
    for label in taken[0].labels:
        cells[label] = figure([100 * t.labels[label] / t.threads for t in taken], "%")
    passes = [thread.passes for t in taken if t.capture for thread in t.capture.threads]
    cells["passes"] = figure(passes, "")
    verified = figure([t.labels["verified"] / t.threads for t in taken], "").median
    return Section(
        "busy",
        f"Labels on {server.name} under {sizes.connections} busy sysbench connections",
        (Row(serving.name, cells),),
        (),
        ((f"{100 * verified:.1f} % verified, 99 wanted", verified >= VERIFIED_LIMIT),),
    )


def growth(sizes: Sizes) -> Section:
    """Measure time and memory of captures of more and more threads."""
    rows = []
    per_thread: list[tuple[float, float]] = []
    for count in sizes.growth:
        progress(f"growth: {count} threads")
        with (
            Target("threads", str(count), "25") as target,
            ServingProbe(target.pid) as serving,
        ):
            first = serving.capture(target.pid)
            taken = [serving.capture(target.pid) for _ in range(sizes.growth_rounds)]
            for one in (first, *taken):
                verified_right(target.threads, one, serving.name)
        wall = figure([t.wall_ms for t in taken], "ms")
        rss = figure([t.max_rss_kb / 1024 for t in taken], "MiB")
        per_thread.append((wall.median / count, rss.median / count))
        cells: dict[str, Figure | str] = {
            "first": figure([first.wall_ms], "ms"),
            "later": wall,
            "later, a thread": figure([1000 * wall.median / count], "us"),
            "peak RSS": rss,
            "RSS, a thread": figure([1024 * rss.median / count], "KiB"),
        }
        rows.append(Row(f"{count} threads", cells))
    slower = max(time for time, _ in per_thread[1:]) / per_thread[0][0]
    larger = max(rss for _, rss in per_thread[1:]) / per_thread[0][1]
    return Section(
        "growth",
        "Captures of more and more threads, 25 functions deep",
        tuple(rows),
        ("every stack has exactly its frames",),
        (
            (f"time a thread {slower:.2f} of the smallest, 1.5 allowed", slower <= GROWTH_LIMIT),
            (f"memory a thread {larger:.2f} of the smallest, 1.5 allowed", larger <= GROWTH_LIMIT),
        ),
    )


def killed(sizes: Sizes, ways: Sequence[kills.Way] = kills.WAYS) -> Section:
    """Kill the probe at random moments of all that it does."""
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    rows = []
    goals = []
    for way in ways:
        hit, interrupted = killed_in(way, sizes.kills, rng, seed)
        cells: dict[str, Figure | str] = {
            "kills": str(sizes.kills),
            "while it ran": str(hit),
            "threads left stopped or traced": "0",
            "targets lost": "0",
            "left in the kernel": "0",
            "calls that saw EINTR": "-" if way.inside or way.stops else str(interrupted),
        }
        rows.append(Row(way.name, cells))
        goals += [
            (
                f"{way.name}: {hit} of {sizes.kills} while it ran, half wanted",
                hit * 2 >= sizes.kills,
            ),
            (f"{way.name}: {interrupted} calls saw EINTR", way.stops or interrupted == 0),
        ]
    return Section(
        "kills",
        "SIGKILL of stallscope-probe at random moments, 62 threads and more",
        tuple(rows),
        (
            "after each kill: no tracer, no stopped thread, no process of the probe, every target"
            " answers, and its code is that of its file",
            "every fourth is stopped first, and the kernel has none of its BPF objects later",
            "every hundredth is followed by a capture with all frames of all threads",
        ),
        tuple(goals),
        notes=(f"seed {seed}",),
    )


def killed_in(way: kills.Way, count: int, rng: random.Random, seed: int) -> tuple[int, int]:
    """Kill the probe that often; return how often it still ran, and calls that saw EINTR."""
    hit = done = 0
    with kills.victims(way) as victims:
        try:
            for done, alive in enumerate(kills.kill_many(victims, count, rng), 1):
                hit += alive
                progress(f"kills: {way.name}, {done} of {count}")
                if done % 100 == 0:
                    victims.capture_right()
                if done % 500 == 0:
                    say(f"{way.name}: {done} kills, {hit} while it ran, seed {seed}")
        except kills.KillError as error:
            raise BenchError(f"{way.name}, kill {done} of seed {seed}: {error}") from error
        return hit, victims.interrupted()


def exact_row(kind: Kind, seen: Seen) -> Row:
    cells: dict[str, Figure | str] = {"captures": str(seen.captures)}
    for label in (Label.VERIFIED, Label.TRUNCATED, Label.RUNNING, Label.RACED):
        cells[label] = str(sum(seen.count(label, how) for how in ("right", "wrong", "none")))
    reasons = sorted(seen.reasons.items())
    cells["raced by"] = ", ".join(f"{reason} {count}" for reason, count in reasons) or "-"
    cells["exact, in part read later"] = str(seen.live)
    cells["exact and wrong"] = str(seen.wrong_count)
    cells["refused"] = str(seen.refused)
    cells["capture"] = figure(seen.elapsed_ms, "ms")
    return Row(kind.name, cells)


def exact_stacks(sizes: Sizes) -> Section:
    """Capture targets whose stacks are hard to copy exactly, and check each stack."""
    rows, goals, left_out = [], [], []
    for kind in KINDS.values():
        if missing := available(kind):
            left_out.append(f"{kind.name}: {missing}")
            continue

        def report(nr: int, name: str = kind.name) -> None:
            if nr % 100 == 0:
                progress(f"exact stacks: {name}, capture {nr}")

        seen = capture_stacks(kind, "bpf", sizes.exact_captures, report)
        if seen.harm:
            raise BenchError(f"{kind.name}: {'; '.join(seen.harm)}")
        if seen.wrong:
            progress("")
            print(f"bench: {kind.name}: {seen.wrong[0]}", file=sys.stderr)
        rows.append(exact_row(kind, seen))
        goal = f"{kind.name}: {seen.wrong_count} of {seen.exact} exact stacks wrong, 0 allowed"
        goals.append((goal, seen.wrong_count == 0))
    return Section(
        EXACT_STACKS,
        "Stacks in several places or written to by others, threads and programs that come and go",
        tuple(rows),
        (
            "each stack that is said to be exact is an unbroken part of a chain of the target's",
            "no call of the target was interrupted, no thread is stopped or traced, it runs on",
        ),
        tuple(goals),
        tuple(left_out),
    )


def mysql55(sizes: Sizes) -> Section:
    """Capture MySQL 5.5.9 again and again while connections sit idle."""
    with (
        MySQL55() as server,
        idle_connections(server, sizes.mysql55_connections) as connections,
        ServingProbe(server.pid) as serving,
    ):
        before = server.status("Aborted_clients")
        taken = []
        for nr in range(sizes.mysql55_captures):
            progress(f"MySQL 5.5.9: capture {nr + 1}")
            taken.append(serving.capture(server.pid))
        lost = 0
        for connection in connections:
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
            except Exception:
                lost += 1
        lost += server.status("Aborted_clients") - before
        if left := trouble(server.pid):
            raise BenchError(f"left behind in mysqld: {left[:3]}")
    verified = [100 * t.labels["verified"] / t.threads for t in taken]
    cells: dict[str, Figure | str] = {
        "captures": str(len(taken)),
        "wall": figure([t.wall_ms for t in taken], "ms"),
        "verified": figure(verified, "%"),
        "connections lost": str(lost),
    }
    return Section(
        "mysql55",
        f"{len(taken)} captures of MySQL 5.5.9 with {sizes.mysql55_connections} idle connections",
        (Row(serving.name, cells),),
        ("each idle connection answers a query afterwards",),
        (("no connection lost", lost == 0),),
    )


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure and yield one table after the other; ``only`` picks them by id."""
    sizes = QUICK if quick else Sizes()
    alone: dict[str, Callable[[Sizes], Section]] = {
        "wall": wall_time,
        "growth": growth,
        "kills": killed,
        EXACT_STACKS: exact_stacks,
        "mysql55": mysql55,
    }
    if ways := [way for way in kills.WAYS if f"kills-{way.id}" in only]:
        yield killed(sizes, ways)
    for name, measure in alone.items():
        if name in only or (not only and name != EXACT_STACKS):
            try:
                yield measure(sizes)
            except Unavailable as error:
                yield Section(name, f"{name}: not measured, {error}", ())
    under_load: dict[str, Callable[[SqlServer, Sizes], Section]] = {
        "server-wall": server_time,
        "busy": busy,
    }
    if not only or any(name in only for name in under_load):
        with (
            SERVERS[server_name]() as server,
            sysbench_load(server, sizes.connections),
        ):
            for name, measure_load in under_load.items():
                if not only or name in only:
                    yield measure_load(server, sizes)
