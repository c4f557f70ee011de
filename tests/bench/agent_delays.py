# SPDX-License-Identifier: Apache-2.0
"""From the breach of a threshold to the finished capture, by triggers over SQL and by the probe."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import progress
from tests.bench.probe_latency import percentile
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.agents import AgentProcess, agent
from tests.support.known_waits import known_waits, make
from tests.support.servers import MariaDB
from tests.support.servers.clients import idle_connections, running_statements
from tests.support.stalls.load import sysbench_load

__all__ = ["FULL", "QUICK", "Sizes", "probe_section", "sql_section"]

SQL_GOAL_MS = 100.0
PROBE_GOAL_MS = 60.0
BREACH = 10
"""Statements that sleep make the breach."""
SLEEP = "SELECT SLEEP(3600)"
LOAD = "oltp_read_write"
SETTINGS = """\
defaults = false
poll-interval = 0.1
captures-an-hour = 100000
[burst]
captures = 1
"""
SQL_TRIGGER = f"""
[[trigger]]
name = "sleepers"
variable = 'state("User sleep")'
threshold = {BREACH - 1}
cycles = 1
clear-cycles = 1
interval = 0.1
sleep = 0
run-time = 0
"""
PROBE_TRIGGER = """
[[trigger]]
name = "wait"
wait = "mutex"
threshold = 50
clear-cycles = 1
sleep = 0
run-time = 0
"""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    captures: int = 100
    connections: int = 400
    load_threads: int = 16
    waiters: int = 5


FULL = Sizes()
QUICK = Sizes(captures=20, connections=100, load_threads=8)


def delays(watch: AgentProcess, name: str) -> list[float]:
    """Return the delays of all first captures of a trigger so far."""
    return [
        entry["breach_to_done_ms"]
        for incident in watch.of("end")
        for entry in incident["captures"]
        if entry.get("trigger") == name and entry.get("breach_to_done_ms") is not None
    ]


def row(name: str, values: Sequence[float]) -> Row:
    cells: dict[str, Figure | str] = {
        "median": figure(values, "ms"),
        "p90": f"{percentile(values, 90):.1f} ms",
        "p99": f"{percentile(values, 99):.1f} ms",
        "captures": str(len(values)),
    }
    return Row(name, cells)


def section(
    name: str, title: str, found: dict[str, list[float]], goal: float, notes: tuple[str, ...]
) -> Section:
    goals = tuple(
        (
            f"{where}: p99 {percentile(values, 99):.1f} ms, {goal:g} ms allowed",
            percentile(values, 99) <= goal,
        )
        for where, values in found.items()
    )
    rows = tuple(row(where, values) for where, values in found.items())
    return Section(name, title, rows, goals=goals, notes=notes)


def sql_section(sizes: Sizes) -> Section:
    """Measure a trigger on a state of the processlist: with idle connections, and with load."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(MariaDB())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallscope-bench-")))
        triggers = folder / "triggers.toml"
        triggers.write_text(SETTINGS + SQL_TRIGGER)
        stack.enter_context(idle_connections(server, sizes.connections))
        for where in ("idle", "busy"):
            if where == "busy":
                stack.enter_context(sysbench_load(server, sizes.load_threads, LOAD))
                where = f"{LOAD} by {sizes.load_threads} threads"
            with agent(server, folder / where.split()[0], "--triggers", triggers) as watch:
                for number in range(sizes.captures):
                    progress(f"delay of SQL triggers: {where}, {number + 1}")
                    with running_statements(server, "mysql", [SLEEP] * BREACH):
                        _wait_for(watch, "stall", number + 1)
                    _wait_for(watch, "end", number + 1)
                found[where] = delays(watch, "sleepers")
    return section(
        "delay-sql",
        f"A trigger over SQL, {sizes.connections} connections, polled at 10 Hz",
        found,
        SQL_GOAL_MS,
        ("counted from the start of the sample with the breach",),
    )


def probe_section(sizes: Sizes) -> Section:
    """Measure a trigger on waits for a mutex, which the probe captures by itself."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallscope-bench-")))
        triggers = folder / "triggers.toml"
        triggers.write_text(SETTINGS + PROBE_TRIGGER)
        idle = sizes.connections
        target = stack.enter_context(known_waits(folder, sizes.waiters, idle))
        watch = stack.enter_context(
            agent(target.pid, folder / "store", "--triggers", triggers, "--no-sql")
        )
        for number in range(sizes.captures):
            progress(f"delay of probe triggers: {number + 1}")
            make(target, f"hold mutex {sizes.waiters}")
            _wait_for(watch, "stall", number + 1)
            make(target, "release")
            _wait_for(watch, "end", number + 1)
        found = {f"{idle} threads, waits for a mutex": delays(watch, "wait")}
    return section(
        "delay-probe",
        "A trigger on waits that the probe sees, threshold 50 ms",
        found,
        PROBE_GOAL_MS,
        ("counted from the moment at which the wait passed the threshold",),
    )


def _wait_for(watch: AgentProcess, event: str, count: int) -> None:
    def notified() -> bool:
        return len({incident["id"] for incident in watch.of(event)}) >= count

    try:
        watch.wait(notified, f"{event} {count}")
    except AssertionError as error:
        raise BenchError(str(error)) from error
