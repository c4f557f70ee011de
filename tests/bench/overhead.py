# SPDX-License-Identifier: Apache-2.0
"""What the agent costs where nothing waits, by its parts, and whether it is in time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import (
    overhead_attribution,
    overhead_calls,
    overhead_figures,
    overhead_graph,
    overhead_inproc,
    overhead_pairs,
)
from tests.bench.load import SERVERS
from tests.bench.probes import DURABLE
from tests.bench.stats import Section, wanted
from tests.support.servers import SqlServer

__all__ = ["GRAPH", "GRAPH_MINUTES", "Options", "sections", "wanted"]

GRAPH = Path(__file__).resolve().parents[2] / "docs" / "img" / "overhead.svg"
GRAPH_MINUTES = 10.0


@dataclass(frozen=True)
class Options:
    """What the command line says; None is the default."""

    seed: int | None = None
    rounds: int | None = None
    stalls: int | None = None
    svg: Path = GRAPH


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    attribution: overhead_attribution.Sizes = overhead_attribution.FULL
    calls: overhead_calls.Sizes = overhead_calls.FULL
    figures: overhead_figures.Sizes = overhead_figures.FULL
    pairs: overhead_pairs.Sizes = overhead_pairs.FULL
    inproc: overhead_inproc.Sizes = overhead_inproc.FULL

    def with_options(self, options: Options) -> Sizes:
        """Return the sizes that were asked for."""
        attribution, calls, figures = self.attribution, self.calls, self.figures
        pairs, inproc = self.pairs, self.inproc
        if (rounds := options.rounds) is not None:
            attribution = replace(attribution, blocks=rounds)
            calls = replace(calls, blocks=rounds)
            figures = replace(figures, waits=rounds)
            pairs = replace(pairs, blocks=rounds)
            inproc = replace(inproc, blocks=rounds)
        if options.stalls is not None:
            figures = replace(figures, stalls=options.stalls)
        return Sizes(attribution, calls, figures, pairs, inproc)


FULL = Sizes()
QUICK = Sizes(
    overhead_attribution.QUICK,
    overhead_calls.QUICK,
    overhead_figures.QUICK,
    overhead_pairs.QUICK,
    overhead_inproc.QUICK,
)


def sections(
    server_name: str,
    quick: bool,
    only: Sequence[str],
    *,
    minutes: float = GRAPH_MINUTES,
    options: Options | None = None,
) -> Iterator[Section]:
    """Yield the tables that are wanted."""
    options = options or Options()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    sizes = (QUICK if quick else FULL).with_options(options)

    def new_server(*more: str) -> SqlServer:
        return SERVERS[server_name](DURABLE, *more)

    makers: dict[str, Callable[[], Iterator[Section]]] = {
        **overhead_attribution.makers(new_server, sizes.attribution, seed),
        **overhead_calls.makers(sizes.calls, seed),
        **overhead_figures.makers(new_server, sizes.figures, seed),
        **overhead_pairs.makers(new_server, sizes.pairs, seed),
        **overhead_inproc.makers(SERVERS[server_name], sizes.inproc, seed),
        "graph": lambda: overhead_graph.sections(
            new_server(), minutes, options.rounds or 1, options.svg, seed
        ),
    }
    for name in wanted(makers, only):
        yield from makers[name]()
