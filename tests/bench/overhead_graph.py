# SPDX-License-Identifier: Apache-2.0
"""CPU time per query over minutes with two stalls in them, with the agent and without."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import progress
from tests.bench.blocks import schedule
from tests.bench.linechart import Band, Chart, Line, draw
from tests.bench.overhead_load import RATES, FixedRate, fixed_rate
from tests.bench.overhead_variants import rests, settled_agent
from tests.bench.stats import BenchError, Figure, Interval, Row, Section, figure
from tests.support.agents import AgentProcess
from tests.support.bpf_objects import attached
from tests.support.servers import SqlServer
from tests.support.servers.clients import idle_connections, running_statements

__all__ = ["Point", "merged", "sections"]

TEST = "oltp_write_only"
LOAD_THREADS = 8
STALLS = (0.3, 0.7)
"""When the stalls begin, as a share of the whole time."""
STALL_SHARE = 1 / 60
POINTS = 150
WAITERS = 20
HELD = (
    "CREATE DATABASE IF NOT EXISTS shop",
    "CREATE TABLE IF NOT EXISTS shop.held (id INT PRIMARY KEY) ENGINE=InnoDB",
)
WITH, WITHOUT = "with the agent", "without"


@dataclass(frozen=True)
class Point:
    """A window of the course."""

    at: float
    """Its middle, in seconds from the start."""
    us: float
    """CPU time of a query, server and client."""
    attached: bool = False


def stall_times(seconds: float) -> list[tuple[float, float]]:
    """Return when the stalls begin and end."""
    return [(seconds * share, seconds * (share + STALL_SHARE)) for share in STALLS]


def sections(
    made: SqlServer, minutes: float, rounds: int, svg: Path, seed: int
) -> Iterator[Section]:
    """Measure both courses, in each round one after the other, draw them, and sum them up."""
    seconds, chance = minutes * 60, random.Random(seed)
    taken: dict[str, list[Point]] = {WITHOUT: [], WITH: []}
    captured = 0
    with ExitStack() as stack:
        server = stack.enter_context(made)
        load = stack.enter_context(fixed_rate(server, TEST, RATES[TEST], LOAD_THREADS))
        for name in (name for block in schedule(list(taken), rounds, chance) for name in block):
            with ExitStack() as inner:
                watch = None
                if name == WITH:
                    watch = inner.enter_context(settled_agent(server.pid))
                taken[name] += course(load, watch, seconds, name)
                if watch is not None:
                    captured += len({one["id"] for one in watch.of("stall")})
        version = f"{server.name} {server.version()}"
    courses = {name: merged(points, seconds / POINTS) for name, points in taken.items()}
    svg.parent.mkdir(parents=True, exist_ok=True)
    svg.write_text(draw(chart_of(courses[WITHOUT], courses[WITH], seconds, version)))
    notes = (
        f"seed {seed}; {rounds} courses each, in random order; {len(STALLS)} stalls of"
        f" {STALL_SHARE * seconds:.0f} s in each, of a table that the load does not use",
        f"drawn to {svg}",
    )
    wanted = rounds * len(STALLS)
    yield Section(
        "graph",
        f"CPU time of a query of {TEST} over {seconds:.0f} s, {version}",
        course_rows(courses, stall_times(seconds)),
        left_out=() if rests() else ("the agent at rest: it is attached all the time as it is",),
        goals=((f"{captured} incidents of {wanted} stalls", captured == wanted),),
        notes=notes,
    )


def merged(points: Sequence[Point], step: float) -> list[Point]:
    """Return one point for each step of time that has any: the median of all courses there."""
    steps: dict[int, list[Point]] = {}
    for point in points:
        steps.setdefault(int(point.at / step), []).append(point)
    return [
        Point(
            statistics.median(point.at for point in there),
            statistics.median(point.us for point in there),
            any(point.attached for point in there),
        )
        for _, there in sorted(steps.items())
    ]


@contextmanager
def stall(server: SqlServer) -> Iterator[None]:
    """Let statements wait for a table that the load does not use: its own work goes on."""
    server.execute(*HELD)
    with idle_connections(server, 1) as (holder,), holder.cursor() as cursor:
        cursor.execute("LOCK TABLES shop.held WRITE")
        with running_statements(server, "shop", ["SELECT * FROM held"] * WAITERS):
            yield


def course(load: FixedRate, watch: AgentProcess | None, seconds: float, name: str) -> list[Point]:
    """Measure window after window while another thread makes the stalls."""
    begun = time.monotonic()
    over = threading.Event()
    failed: list[BaseException] = []

    def make_stalls() -> None:
        try:
            for start, end in stall_times(seconds):
                if over.wait(max(0.0, begun + start - time.monotonic())):
                    return
                with stall(load.server):
                    over.wait(max(0.0, begun + end - time.monotonic()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=make_stalls)
    thread.start()
    points = []
    try:
        while (now := time.monotonic()) < begun + seconds:
            progress(f"graph, {name}: {now - begun:.0f} of {seconds:.0f} s")
            window = load.window(seconds / POINTS)
            middle = (now + time.monotonic()) / 2 - begun
            is_attached = watch is not None and attached(watch.members()) > 0
            points.append(Point(middle, window.server_us + window.client_us, is_attached))
    finally:
        over.set()
        thread.join()
    if failed:
        raise BenchError(f"a stall could not be made: {failed[0]}")
    return points


def spans(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return from when to when wait programs were attached, one after the other."""
    found: list[tuple[float, float]] = []
    for before, point in itertools.pairwise([Point(0.0, 0.0), *points]):
        if not point.attached:
            continue
        start = before.at
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, point.at))
    return found


def chart_of(
    without: Sequence[Point], beside: Sequence[Point], seconds: float, version: str
) -> Chart:
    """Return both courses in one chart, with the stalls and the time in which we were attached."""
    lines = [
        Line(name, [(point.at / 60, point.us) for point in points])
        for name, points in ((WITHOUT, without), (WITH, beside))
    ]
    bands = [Band("a stall", start / 60, end / 60) for start, end in stall_times(seconds)]
    bands += [Band("wait programs attached", a / 60, b / 60) for a, b in spans(beside)]
    title = f"CPU time of a query, {TEST}, {version}, {RATES[TEST]} transactions/s arriving"
    return Chart(title, "minutes", "µs, server and client", lines, bands)


def course_rows(
    courses: Mapping[str, Sequence[Point]], stalls: Sequence[tuple[float, float]]
) -> tuple[Row, ...]:
    """Return what a query took on the whole, in the stalls, and while nothing was attached."""
    rows = []
    for name, points in courses.items():
        during = [p.us for p in points if any(start <= p.at <= end for start, end in stalls)]
        at_rest = [p.us for p in points if not p.attached]
        cells: dict[str, Figure | Interval | str] = {
            "all": figure([p.us for p in points], "us"),
            "in the stalls": figure(during, "us") if during else "-",
        }
        if name == WITH:
            cells["not attached"] = figure(at_rest, "us") if at_rest else "-"
            cells["attached for"] = f"{sum(end - start for start, end in spans(points)):.0f} s"
        rows.append(Row(name, cells))
    return tuple(rows)
