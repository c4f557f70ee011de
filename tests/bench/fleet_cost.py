# SPDX-License-Identifier: Apache-2.0
"""What shipping costs a host: CPU time of its threads, and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench import progress
from tests.bench.fleet_one_agent import LINE_EVERY_S, WATCH_EVERY_S, Given, Measured, Work
from tests.bench.fleet_options import Options
from tests.bench.fleet_places import Place
from tests.bench.stats import BenchError, Row, Section
from tests.support.fleet.realincidents import load

__all__ = ["GOAL_PERCENT", "agent_cost", "cost_section"]

GOAL_PERCENT = 0.1
AN_HOUR = 3600.0
INCIDENTS_AN_HOUR = 14
BEATS_AN_HOUR = 60
WAITS_AN_HOUR = 6
KINDS = ("mysql97", "mariadb", "postgres17")
GIVEN = 12
SECONDS = 600


def agent_cost(place: Place, options: Options, work: Path) -> Measured:
    """Measure one agent. Raises: BenchError."""
    progress(f"agent: {options.agent_incidents} incidents to {place.name}")
    work.mkdir()
    real = [one for one in load() if one.kind in KINDS][:GIVEN]
    given = tuple(
        Given(one.incident, msgspec.Raw(msgspec.json.encode(one.facts)), one.samples)
        for one in real
    )
    count = options.agent_incidents
    file = work / "work.json"
    file.write_bytes(msgspec.json.encode(Work(str(work), place.url, given, count, count)))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.bench.fleet_one_agent", str(file)],
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode:
        raise BenchError(f"the agent of {place.name}: {done.stderr.decode()[-500:].strip()}")
    return msgspec.json.decode(done.stdout, type=Measured)


def share_percent(one: Measured) -> float:
    """Return the share of a core in an hour with 14 incidents."""
    hour = (
        INCIDENTS_AN_HOUR * (one.incident_s + 2 * one.call_incident_s)
        + (BEATS_AN_HOUR + WAITS_AN_HOUR) * one.beat_s
        + AN_HOUR / WATCH_EVERY_S * one.call_watch_s
        + AN_HOUR / LINE_EVERY_S * one.call_line_s
    )
    return 100 * hour / AN_HOUR


def cost_section(found: Sequence[tuple[str, Measured]], options: Options) -> Section:
    """Return the table."""
    rows = []
    for name, one in found:
        rows.append(
            Row(
                name,
                {
                    "CPU of a core": f"{share_percent(one):.3f} %",
                    "an incident": f"{1000 * one.incident_s:.2f} ms",
                    "a heartbeat": f"{1000 * one.beat_s:.2f} ms",
                    "a line of waits": f"{1e6 * one.call_line_s:.0f} µs",
                    "a look at the server": f"{1e6 * one.call_watch_s:.0f} µs",
                    "memory": f"{one.memory / 1e6:.1f} MB",
                    "of it code": f"{one.memory_modules / 1e6:.1f} MB",
                },
            )
        )
    shares = [share_percent(one) for _, one in found]
    return Section(
        "agent",
        "What shipping costs a host: a heartbeat a minute, 14 incidents an hour",
        tuple(rows),
        goals=(
            (
                f"{max(shares):.3f} % of a core; goal {GOAL_PERCENT:g} %",
                max(shares) <= GOAL_PERCENT,
            ),
        ),
        notes=(
            f"CPU time of the threads that ship, over {options.agent_incidents} incidents and as"
            " many heartbeats; an incident is shipped when it is named and at its end, with its"
            " samples",
            "also in the sum: waits each ten minutes, as a heartbeat; a line of waits a second and"
            " a look at the server each five, in the agent's loop",
        ),
    )
