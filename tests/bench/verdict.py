# SPDX-License-Identifier: Apache-2.0
"""Whether one burst names a live stall, whether it is silent on healthy servers, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.bench import verdict_cost, verdict_healthy, verdict_sampling, verdict_stalls
from tests.bench.stats import Section

__all__ = ["sections"]

PARTS = ("stalls", "healthy", "sampling", "cost")


@dataclass(frozen=True)
class Sizes:
    """How much is measured. ``bursts``: of each stall; ``healthy``: of each server and load."""

    bursts: int = 20
    healthy: int = 12
    rounds: int = 20


FULL = Sizes()
QUICK = Sizes(bursts=3, healthy=3, rounds=5)


def sections(
    server_name: str, quick: bool, only: Sequence[str], bursts: int | None = None
) -> Iterator[Section]:
    """Measure all of it, or the parts that ``only`` names; a stall's own name is a part.

    ``bursts`` of each stall, and of each healthy server and load, if it is given.
    """
    sizes = QUICK if quick else FULL
    if bursts is not None:
        sizes = replace(sizes, bursts=bursts, healthy=bursts)
    stalls = [name for name in only if name not in PARTS and not name.startswith("healthy-")]
    if not only or "stalls" in only or stalls:
        yield verdict_stalls.section(stalls, sizes.bursts)
    servers = [name.removeprefix("healthy-") for name in only if name.startswith("healthy-")]
    if not only or "healthy" in only or servers:
        yield verdict_healthy.section(servers, sizes.healthy)
    if not only or "sampling" in only:
        yield verdict_sampling.section(sizes.bursts)
    if not only or "cost" in only:
        yield from verdict_cost.sections(sizes.rounds)
