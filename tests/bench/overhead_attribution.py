# SPDX-License-Identifier: Apache-2.0
"""The CPU time that a query takes server and client beside us, and which part of us costs what."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench import progress
from tests.bench.blocks import schedule
from tests.bench.overhead_load import RATES, TESTS, FixedRate, PerQuery, fixed_rate
from tests.bench.overhead_parts import part_rows, sides, variant_rows
from tests.bench.overhead_variants import (
    AGAIN,
    ALWAYS,
    NOTHING,
    STORAGE,
    WHOLE,
    Variant,
    left_out,
    rests,
    variants,
)
from tests.bench.probe_programs import program_section
from tests.bench.stats import Section
from tests.bench.watchers import probe_storage
from tests.support.servers import SqlServer

__all__ = ["FULL", "QUICK", "Sizes", "cost_goals", "makers", "rate_goal"]

REST_GOAL = 1.01
ARMED_GOAL = 1.05
STORAGE_GOAL = 1.02
RATE_GOAL = 0.05
WHOLES = (NOTHING, AGAIN, WHOLE, ALWAYS)
"""What the goals are about."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    blocks: int = 30
    seconds: float = 2.0
    load_threads: int = 8


FULL = Sizes()
QUICK = Sizes(blocks=5, seconds=1.5)


def makers(
    new_server: Callable[[], SqlServer], sizes: Sizes, seed: int
) -> dict[str, Callable[[], Iterator[Section]]]:
    """Return the tables: of all variants and their parts, and of the whole agent alone."""
    found: dict[str, Callable[[], Iterator[Section]]] = {}
    for test in TESTS:
        found[f"attribution-{test}"] = maker(new_server, f"attribution-{test}", test, sizes, seed)
        found[f"figures-cpu-{test}"] = maker(
            new_server, f"figures-cpu-{test}", test, sizes, seed, *WHOLES
        )
        found[f"storage-{test}"] = maker(
            new_server, f"storage-{test}", test, sizes, seed, NOTHING, AGAIN, STORAGE
        )
        found[f"programs-storage-{test}"] = programs_of_storage(new_server, test, sizes)
    return found


def programs_of_storage(
    new_server: Callable[[], SqlServer], test: str, sizes: Sizes
) -> Callable[[], Iterator[Section]]:
    def measured() -> Iterator[Section]:
        with new_server() as server:
            yield program_section(
                server, test, sizes.load_threads, 10.0, probe_storage(), STORAGE_GOAL
            )

    return measured


def maker(
    new_server: Callable[[], SqlServer], name: str, test: str, sizes: Sizes, seed: int, *names: str
) -> Callable[[], Iterator[Section]]:
    return lambda: sections(new_server(), name, test, sizes, seed, *names)


def sections(
    made: SqlServer, name: str, test: str, sizes: Sizes, seed: int, *names: str
) -> Iterator[Section]:
    """Measure a query beside variants of these names, or beside all and say what each part adds."""
    compared = variants(*names)
    with ExitStack() as stack:
        server = stack.enter_context(made)
        load = stack.enter_context(fixed_rate(server, test, RATES[test], sizes.load_threads))
        windows = measure(load, compared, sizes.blocks, sizes.seconds, random.Random(seed))
        version = f"{server.name} {server.version()}"
    side = sides(windows, seed)
    what = f"{test}, {version}, {sizes.blocks} blocks of windows of {sizes.seconds:g} s"
    yield Section(
        name,
        f"CPU time of a query beside what else runs: {what}",
        variant_rows(windows, side),
        goals=(*cost_goals(test, windows, seed), rate_goal(test, windows)),
        left_out=left_out(),
        notes=(
            f"seed {seed}; {RATES[test]} transactions/s arrive; each block has all variants in"
            " random order",
            "medians of the blocks, and 95 % confidence intervals in square brackets; in round ones"
            " the lowest and the highest",
            "attached: windows at whose end the variant had programs attached to the kernel",
        ),
    )
    if names:
        return
    yield Section(
        f"{name}-parts",
        f"The parts of it: {what}",
        part_rows(side),
        notes=("a part is a difference of the medians above, so that parts add up",),
    )


def measure(
    load: FixedRate,
    compared: Sequence[Variant],
    blocks: int,
    seconds: float,
    chance: random.Random,
) -> dict[str, list[PerQuery]]:
    """Measure each variant once in each block."""
    windows: dict[str, list[PerQuery]] = {variant.name: [] for variant in compared}
    for number, block in enumerate(schedule(compared, blocks, chance), 1):
        for variant in block:
            progress(f"block {number} of {blocks}: {variant}")
            with variant.start(load.server.pid) as pids:
                windows[variant.name].append(load.window(seconds, pids()))
    return windows


def cost_goals(
    test: str, windows: Mapping[str, Sequence[PerQuery]], seed: int
) -> Iterator[tuple[str, bool]]:
    """Yield what the agent may cost the server and the client."""
    both = sides(windows, seed)["both"]
    noise = both.ratio(AGAIN, NOTHING)
    wanted = [(WHOLE, REST_GOAL)] if rests() else []
    if test == "oltp_write_only":
        wanted.append((ALWAYS if rests() else WHOLE, ARMED_GOAL))
    for variant, most in wanted:
        if variant not in windows:
            continue
        ratio = both.ratio(variant, NOTHING)
        text = f"{variant}: {ratio} of nothing, {most:g} allowed (nothing again: {noise})"
        yield text, ratio.value <= most
    if STORAGE in windows:
        server = sides(windows, seed)["server"]
        ratio, noise = server.ratio(STORAGE, NOTHING), server.ratio(AGAIN, NOTHING)
        yield (
            f"{STORAGE}: the server {ratio} of nothing, {STORAGE_GOAL:g} allowed"
            f" (nothing again: {noise})",
            ratio.value <= STORAGE_GOAL,
        )


def rate_goal(test: str, windows: Mapping[str, Sequence[PerQuery]]) -> tuple[str, bool]:
    """Say whether queries arrived as often with each variant: their CPU time depends on it."""
    rates = {name: sum(w.rate for w in all_) / len(all_) for name, all_ in windows.items()}
    usual = rates[NOTHING]
    worst = max(abs(rate / usual - 1) for rate in rates.values())
    return (
        f"{test}: {usual:.0f} queries/s, {100 * worst:.1f} % more or less beside another variant,"
        f" {100 * RATE_GOAL:g} allowed",
        worst <= RATE_GOAL,
    )
