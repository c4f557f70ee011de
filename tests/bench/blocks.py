# SPDX-License-Identifier: Apache-2.0
"""Variants that are measured in blocks: the order of rounds, and what the blocks say.

A block has each variant once, in random order, so that a drift of the machine falls on all of them
alike. Medians of the blocks are compared. The confidence interval comes from drawing blocks again,
with replacement (the percentile bootstrap): a block is drawn as a whole, since its rounds share the
state of the machine. Differences of medians add up, medians of differences do not.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tests.bench.stats import BenchError, Interval

__all__ = ["Blocks", "Medians", "schedule"]

T = TypeVar("T")

Medians = Mapping[str, float]
"""Of each variant."""

RESAMPLES = 2000
OUTSIDE = 0.025
"""The share of the resamples that is on each side of the interval."""


def schedule(variants: Sequence[T], blocks: int, chance: random.Random) -> list[list[T]]:
    """Return so many blocks, each with all variants in an order of its own."""
    return [chance.sample(variants, len(variants)) for _ in range(blocks)]


class Blocks:
    """What was measured: for each variant a value of each block."""

    def __init__(
        self, values: Mapping[str, Sequence[float]], seed: int, resamples: int = RESAMPLES
    ) -> None:
        lengths = {len(of_variant) for of_variant in values.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise BenchError(f"blocks of different lengths, or none: {sorted(lengths)}")
        self.count = lengths.pop()
        self.medians: Medians = {name: statistics.median(all_) for name, all_ in values.items()}
        chance = random.Random(seed)
        self._again: list[Medians] = []
        for _ in range(resamples):
            drawn = chance.choices(range(self.count), k=self.count)
            self._again.append(
                {
                    name: statistics.median([all_[nr] for nr in drawn])
                    for name, all_ in values.items()
                }
            )

    def interval(self, of: Callable[[Medians], float], unit: str) -> Interval:
        """Return a figure of the medians, such as a difference of two, and its interval."""
        again = sorted(map(of, self._again))
        cut = int(len(again) * OUTSIDE)
        return Interval(of(self.medians), again[cut], again[-1 - cut], unit)

    def sum(self, weights: Mapping[str, float], unit: str) -> Interval:
        """Return a weighted sum of medians: with +1 and -1 the difference of two variants."""
        return self.interval(lambda medians: weighted(medians, weights), unit)

    def ratio(self, variant: str, to: str) -> Interval:
        """Return how many times as large a variant is as another."""
        return self.interval(lambda medians: medians[variant] / medians[to], "x")

    def share(self, weights: Mapping[str, float], of: str) -> Interval:
        """Return a weighted sum in percent of a variant."""
        return self.interval(lambda medians: 100 * weighted(medians, weights) / medians[of], "%")


def weighted(medians: Medians, weights: Mapping[str, float]) -> float:
    return sum(weight * medians[name] for name, weight in weights.items())
