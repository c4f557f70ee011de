# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a query beside an agent at rest, and beside the same agent while it is stopped.

An agent that rests has attached nothing, so that a stopped one costs what none costs. To stop one
and to continue it takes no time, unlike its start: there are many more blocks, of windows that are
closer to each other, and the interval is narrower.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import progress
from tests.bench.blocks import schedule
from tests.bench.overhead_attribution import cost_goals, rate_goal
from tests.bench.overhead_load import RATES, TESTS, FixedRate, PerQuery, fixed_rate
from tests.bench.overhead_parts import sides, variant_rows
from tests.bench.overhead_variants import (
    AGAIN,
    ALWAYS_ON,
    NOTHING,
    WHOLE,
    rests,
    settled_agent,
    stopped,
    wait_at_rest,
)
from tests.bench.stats import Section
from tests.support.agents import AgentProcess
from tests.support.servers import SqlServer

__all__ = ["FULL", "QUICK", "Sizes", "makers"]

PAUSE_SECONDS = 0.3
"""What the agent has missed while it was stopped it does at once."""
TRIGGERS = """\
[[trigger]]
name = "heartbeat"
enabled = false
[[trigger]]
name = "no-answer"
enabled = false
"""
"""A stopped agent hears of no answer."""
LOAD_THREADS = 8


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    blocks: int = 300
    seconds: float = 1.0
    """One poll of the agent."""
    stopped_seconds: float = 0.5
    """With the pause it is shorter than the shortest deadline of the agent, which is 1 s."""


FULL = Sizes()
QUICK = Sizes(blocks=10)


def makers(
    new_server: Callable[[], SqlServer], sizes: Sizes, seed: int
) -> dict[str, Callable[[], Iterator[Section]]]:
    """Return the tables of this part."""
    return {f"figures-pairs-{test}": maker(new_server, test, sizes, seed) for test in TESTS}


def maker(
    new_server: Callable[[], SqlServer], test: str, sizes: Sizes, seed: int
) -> Callable[[], Iterator[Section]]:
    return lambda: sections(new_server(), test, sizes, seed)


def sections(made: SqlServer, test: str, sizes: Sizes, seed: int) -> Iterator[Section]:
    """Measure a query with the agent and without, in turns."""
    name = f"figures-pairs-{test}"
    title = f"CPU time of a query of {test} beside the agent at rest, and while it is stopped"
    if not rests():
        why = (
            f"watch has no {ALWAYS_ON}, and never rests: what is attached costs while it is stopped"
        )
        yield Section(name, title, (), left_out=(why,))
        return
    with ExitStack() as stack:
        server = stack.enter_context(made)
        load = stack.enter_context(fixed_rate(server, test, RATES[test], LOAD_THREADS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallscope-bench-")))
        triggers = folder / "triggers.toml"
        triggers.write_text(TRIGGERS)
        watch = stack.enter_context(settled_agent(server.pid, "--triggers", str(triggers)))
        windows = measure(load, watch, sizes, random.Random(seed))
        version = f"{server.name} {server.version()}"
    yield Section(
        name,
        f"{title}: {version}, {sizes.blocks} blocks of windows of {sizes.seconds:g} s,"
        f" {sizes.stopped_seconds:g} s while it is stopped",
        variant_rows(windows, sides(windows, seed)),
        goals=(*cost_goals(test, windows, seed), rate_goal(test, windows)),
        notes=(
            f"seed {seed}; {RATES[test]} transactions/s arrive; nothing: the agent is stopped",
            "medians of the blocks, and 95 % confidence intervals in square brackets; what the"
            " agent does less often than once a second is not in them",
        ),
    )


def measure(
    load: FixedRate, watch: AgentProcess, sizes: Sizes, chance: random.Random
) -> dict[str, list[PerQuery]]:
    """Measure while the agent runs, and twice while it is stopped, in each block."""
    windows: dict[str, list[PerQuery]] = {name: [] for name in (NOTHING, AGAIN, WHOLE)}
    for number, block in enumerate(schedule(list(windows), sizes.blocks, chance), 1):
        progress(f"the agent at rest: block {number} of {sizes.blocks}")
        for name in block:
            wait_at_rest(watch)
            members = watch.members()
            with ExitStack() as stack:
                seconds = sizes.seconds
                if name != WHOLE:
                    stack.enter_context(stopped(members))
                    seconds = sizes.stopped_seconds
                time.sleep(PAUSE_SECONDS)
                windows[name].append(load.window(seconds, members))
    return windows
