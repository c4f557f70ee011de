# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a query in a server with the in-process library, and in servers without.

A library cannot be taken out of a server again. So servers with and without it run at the same
time, under the same load, and a window measures all of them at once: the speed of the machine is
the same for all. Where the memory of a server lies differs, so each block starts them again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from stallscope.collectors import rings as find_rings
from tests.bench import progress
from tests.bench.inproc_load import three_servers
from tests.bench.overhead_attribution import rate_goal
from tests.bench.overhead_load import RATES, TESTS, PerQuery, fixed_rate
from tests.bench.overhead_parts import sides, variant_rows
from tests.bench.overhead_variants import AGAIN, NOTHING
from tests.bench.stats import BenchError, Section
from tests.support.servers import SqlServer

__all__ = ["FULL", "QUICK", "Sizes", "makers"]

LIBRARY = "the in-process library"
GOAL = 1.02
LOAD_THREADS = 4


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    blocks: int = 30
    seconds: float = 4.0


FULL = Sizes()
QUICK = Sizes(blocks=3, seconds=2.0)


def makers(
    kind: type[SqlServer], sizes: Sizes, seed: int
) -> dict[str, Callable[[], Iterator[Section]]]:
    """Return the table of this part."""
    return {"figures-inproc": lambda: sections(kind, sizes, seed)}


def sections(kind: type[SqlServer], sizes: Sizes, seed: int) -> Iterator[Section]:
    """Measure a query of each load with the library and without, at the same time."""
    windows: dict[str, dict[str, list[PerQuery]]] = {
        test: {name: [] for name in (NOTHING, AGAIN, LIBRARY)} for test in TESTS
    }
    version = ""
    chance = random.Random(seed)
    for number in range(sizes.blocks):
        progress(f"the library: servers {number + 1} of {sizes.blocks}")
        with three_servers(kind, swapped=chance.random() < 0.5) as (plain, second, ours, ring):
            version = f"{plain.name} {plain.version()}"
            servers = {NOTHING: plain, AGAIN: second, LIBRARY: ours}
            for test in TESTS:
                begun = find_rings.read(ring).waits
                for name, window in at_once(servers, test, sizes.seconds).items():
                    windows[test][name].append(window)
                if find_rings.read(ring).waits == begun:
                    raise BenchError(f"the library has seen no wait of {test}")
    for test in TESTS:
        yield section_of(test, version, windows[test], sizes, seed)


def at_once(servers: dict[str, SqlServer], test: str, seconds: float) -> dict[str, PerQuery]:
    """Load all servers at the same rate, and measure each of them in the same window."""
    rate = RATES[test] // len(servers)
    with ExitStack() as stack:
        loads = {
            name: stack.enter_context(fixed_rate(server, test, rate, LOAD_THREADS))
            for name, server in servers.items()
        }
        threads = stack.enter_context(ThreadPoolExecutor(len(loads)))
        measured = {name: threads.submit(load.window, seconds) for name, load in loads.items()}
        return {name: window.result() for name, window in measured.items()}


def section_of(
    test: str, version: str, windows: dict[str, list[PerQuery]], sizes: Sizes, seed: int
) -> Section:
    """Return the table of one load."""
    side = sides(windows, seed)
    ratio, noise = (side["server"].ratio(name, NOTHING) for name in (LIBRARY, AGAIN))
    text = f"{LIBRARY}: {ratio} of nothing, {GOAL:g} allowed (nothing again: {noise})"
    return Section(
        f"figures-inproc-{test}",
        f"CPU time of a query of {test} in servers with and without the in-process library:"
        f" {version}, {sizes.blocks} blocks of a window of {sizes.seconds:g} s",
        variant_rows(windows, side),
        goals=((text, ratio.value <= GOAL), rate_goal(test, windows)),
        notes=(
            f"seed {seed}; {RATES[test] // len(windows)} transactions/s arrive at each of the"
            " servers, which are measured at the same time",
            "medians of the blocks, and 95 % confidence intervals in square brackets",
        ),
    )
