# SPDX-License-Identifier: Apache-2.0
"""How large the benchmarks of a fleet are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stallscope.fleet.shipping.sender import Pace

__all__ = ["Options", "sized"]

RESULTS = Path("build/fleet-bench")


class Options(msgspec.Struct, frozen=True):
    """Sizes; ``--quick`` makes all of them smaller."""

    agents: int = 3_000
    """Of the minute."""
    incidents: int = 1_000_000
    hosts: int = 3_000
    """That have those incidents in 24 hours."""
    growth: tuple[int, ...] = (10, 100, 1_000, 10_000)
    """Hosts."""
    growth_s: float = 30.0
    """Seconds for which each of them ships."""
    window: float = 60.0
    """Seconds in which each agent of the minute has an incident."""
    runs: int = 5
    """Of each question."""
    agent_incidents: int = 300
    """Of the one agent whose CPU is measured."""
    seed: int = 1
    pace: Pace | None = None
    """Of the agents of the minute; None: that of real ones."""
    results: Path = RESULTS
    page: bool = False
    """Print the tables of the latest results, and measure nothing."""


def sized(
    *,
    quick: bool,
    hosts: int | None = None,
    incidents: int | None = None,
    seed: int | None = None,
    results: Path | None = None,
    page: bool = False,
) -> Options:
    """Return the sizes that somebody asks for."""
    base = Options(page=page, seed=seed or 1, results=(results or RESULTS).absolute())
    if quick:
        base = msgspec.structs.replace(
            base,
            agents=200,
            incidents=20_000,
            hosts=200,
            growth=(10, 100),
            growth_s=6.0,
            window=20.0,
            agent_incidents=60,
        )
    if hosts is not None:
        growth = tuple(one for one in base.growth if one <= hosts) or (hosts,)
        base = msgspec.structs.replace(base, agents=hosts, hosts=hosts, growth=growth)
    if incidents is not None:
        base = msgspec.structs.replace(base, incidents=incidents)
    return base
