# SPDX-License-Identifier: Apache-2.0
"""What lasts: thousands of captures and hours of the agent, and what the tool holds by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.bench import endurance_agent, endurance_captures, endurance_scale
from tests.bench.stats import BenchError, Section, wanted

__all__ = ["AGENT_MINUTES", "sections"]

AGENT_MINUTES = endurance_agent.AGENT_MINUTES


def sections(server: str, quick: bool, only: Sequence[str], minutes: float) -> Iterator[Section]:
    """Yield the tables that are wanted: captures, scale, churn, servers, agent."""
    if server != "mariadb":
        raise BenchError(f"endurance is measured on mariadb, not on {server}")
    large = endurance_scale.QUICK if quick else endurance_scale.FULL
    makers: dict[str, Callable[[], Section]] = {
        "captures": lambda: endurance_captures.captures_section(
            endurance_captures.QUICK if quick else endurance_captures.FULL
        ),
        "scale": lambda: endurance_scale.scale_section(large),
        "churn": lambda: endurance_scale.churn_section(large),
        "servers": lambda: endurance_scale.servers_section(large),
        "agent": lambda: endurance_agent.agent_section(minutes),
    }
    for name in wanted(makers, only):
        yield makers[name]()
