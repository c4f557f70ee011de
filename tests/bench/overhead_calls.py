# SPDX-License-Identifier: Apache-2.0
"""What the agent adds to one call, in the process that it watches and in another one."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.bench import progress
from tests.bench.blocks import Blocks, schedule
from tests.bench.overhead_variants import (
    AGAIN,
    ALWAYS_ON,
    EMPTY,
    NOTHING,
    Variant,
    rests,
    start_agent,
    variants,
)
from tests.bench.probe_cost import CALLS as ALL_CALLS
from tests.bench.stats import Figure, Interval, Row, Section
from tests.support.targets import Target

__all__ = ["FULL", "QUICK", "Sizes", "makers"]

CALLS = ("getppid", "futex_wait")
REST_GOAL = 1.02
AT_REST, ATTACHED = "agent at rest", "agent attached"
HERE, ELSEWHERE = "watches this process", "watches another"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    blocks: int = 20
    repeats: int = 5
    batches: int = 300
    """Of 2,000 or 200 calls (tests/targets/costs.c); their median counts."""


FULL = Sizes()
QUICK = Sizes(blocks=3, repeats=3, batches=150)


@dataclass(frozen=True)
class State:
    """Who watches what while calls are timed."""

    name: str
    variant: Variant
    other: bool = False


def states() -> list[State]:
    """Return what is compared; the first is nothing."""
    found = [State(variant.name, variant) for variant in variants(NOTHING, AGAIN, EMPTY)]
    agents: list[tuple[str, tuple[str, ...]]] = [(ATTACHED, ("--no-sql",))]
    if rests():
        agents = [(AT_REST, ("--no-sql",)), (ATTACHED, ("--no-sql", ALWAYS_ON))]
    for name, options in agents:
        variant = Variant(name, start_agent(*options))
        found.append(State(f"{name}, {ELSEWHERE}", variant, other=True))
        found.append(State(f"{name}, {HERE}", variant))
    return found


def makers(sizes: Sizes, seed: int) -> dict[str, Callable[[], Iterator[Section]]]:
    """Return the tables of this part."""
    return {"calls": lambda: sections(sizes, seed)}


def sections(sizes: Sizes, seed: int) -> Iterator[Section]:
    """Time calls in all states, in blocks."""
    compared, chance = states(), random.Random(seed)
    taken: dict[str, dict[str, list[float]]] = {
        call: {state.name: [] for state in compared} for call in CALLS
    }
    with Target("costs") as asked, Target("costs") as other:
        for number, block in enumerate(schedule(compared, sizes.blocks, chance), 1):
            for state in block:
                progress(f"calls: block {number} of {sizes.blocks}: {state.name}")
                with state.variant.start(other.pid if state.other else asked.pid):
                    for call in CALLS:
                        taken[call][state.name].append(time_call(asked, call, sizes))
    yield section_of(taken, sizes, seed)


def time_call(asked: Target, call: str, sizes: Sizes) -> float:
    """Return what a call takes, in ns."""
    return statistics.median(
        float(asked.ask(f"{call} {sizes.batches}")["ns"]) for _ in range(sizes.repeats)
    )


def section_of(
    taken: Mapping[str, Mapping[str, Sequence[float]]], sizes: Sizes, seed: int
) -> Section:
    """Make the table: a row for each state, and what is allowed at rest."""
    blocks = {call: Blocks(of_call, seed) for call, of_call in taken.items()}
    rows, goals = [], []
    for name in next(iter(taken.values())):
        cells: dict[str, Figure | Interval | str] = {}
        for call, one in blocks.items():
            cells[ALL_CALLS[call]] = one.sum({name: 1.0}, "ns")
            cells[f"{call}, of nothing"] = "-" if name == NOTHING else one.ratio(name, NOTHING)
            if name.startswith(AT_REST):
                ratio = one.ratio(name, NOTHING)
                text = f"{name}: {call} {ratio} of nothing, {REST_GOAL:g} allowed"
                goals.append((text, ratio.value <= REST_GOAL))
        rows.append(Row(name, cells))
    return Section(
        "calls",
        f"One call of a process, {sizes.blocks} blocks",
        tuple(rows),
        goals=tuple(goals),
        left_out=() if goals else (f"{AT_REST}: watch has no {ALWAYS_ON}, and never rests",),
        notes=(
            f"seed {seed}; medians of the blocks and 95 % confidence intervals; the threads of the"
            " process are bound to one CPU",
        ),
    )
