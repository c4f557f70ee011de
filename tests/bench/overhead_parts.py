# SPDX-License-Identifier: Apache-2.0
"""The parts of what the agent costs a query, as differences of variants, and their sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.blocks import Blocks
from tests.bench.overhead_load import PerQuery
from tests.bench.overhead_variants import (
    AGAIN,
    ALWAYS,
    EMPTY,
    NO_UPROBES,
    NORMAL,
    NOTHING,
    PYTHON,
    SQL,
    STOPPED,
    WAITS,
    WHOLE,
)
from tests.bench.stats import Figure, Interval, Row, figure

__all__ = ["Part", "part_rows", "sides", "variant_rows"]

Side = Mapping[str, Blocks]
"""What was measured of ``server``, ``client`` and ``both``, in µs a query."""


@dataclass(frozen=True)
class Part:
    """A weighted sum of variants."""

    name: str
    weights: Mapping[str, float]

    @classmethod
    def difference(cls, name: str, variant: str, base: str) -> Part:
        """Return what one variant has more than another."""
        return cls(name, {variant: 1.0, base: -1.0})


SUMMANDS = (
    Part.difference("the two places in the kernel, with empty programs", EMPTY, NOTHING),
    Part.difference("the wait programs in them", STOPPED, EMPTY),
    Part.difference("the probe that reads them", NO_UPROBES, STOPPED),
    Part.difference("uprobes", WAITS, NO_UPROBES),
    Part.difference("Python and /proc", PYTHON, NOTHING),
    Part.difference("SQL polling", SQL, PYTHON),
)


def total(name: str, parts: Sequence[Part], factor: float = 1.0) -> Part:
    """Return the sum of parts."""
    weights: dict[str, float] = {}
    for part in parts:
        for variant, weight in part.weights.items():
            weights[variant] = weights.get(variant, 0.0) + factor * weight
    return Part(name, {variant: weight for variant, weight in weights.items() if weight})


def adding_up(measured: Collection[str]) -> list[Part]:
    """Return the lines of the table for these variants.

    The agent that is attached all the time is what the parts are of. Its rest is what they do not
    explain: what only all of them together cost.
    """
    armed = ALWAYS if ALWAYS in measured else WHOLE
    whole = Part.difference(f"{armed}, all of it", armed, NOTHING)
    sum_of_parts = total("sum of these parts", SUMMANDS)
    parts = [
        Part.difference("(noise: nothing again)", AGAIN, NOTHING),
        *SUMMANDS,
        sum_of_parts,
        whole,
        total("all of it less the sum", [whole, total("", [sum_of_parts], -1.0)]),
        Part.difference("of all of it by its priority", armed, NORMAL),
    ]
    if armed == ALWAYS:
        parts.append(Part.difference(f"{WHOLE}, at rest", WHOLE, NOTHING))
    return [part for part in parts if part.weights.keys() <= set(measured)]


def sides(windows: Mapping[str, Sequence[PerQuery]], seed: int) -> Side:
    """Return the figures of the server, of the client, and of both together."""
    return {
        "server": Blocks({n: [w.server_us for w in all_] for n, all_ in windows.items()}, seed),
        "client": Blocks({n: [w.client_us for w in all_] for n, all_ in windows.items()}, seed),
        "both": Blocks(
            {n: [w.server_us + w.client_us for w in all_] for n, all_ in windows.items()}, seed
        ),
    }


def variant_rows(windows: Mapping[str, Sequence[PerQuery]], side: Side) -> tuple[Row, ...]:
    """Return what a query takes with each variant, and how many times as much as with nothing."""
    rows = []
    for name, measured in windows.items():
        cells: dict[str, Figure | Interval | str] = {
            where: side[where].sum({name: 1.0}, "us") for where in ("server", "client")
        }
        if name != NOTHING:
            for where in ("server", "both"):
                cells[f"{where}, of nothing"] = side[where].ratio(name, NOTHING)
        if any(window.tools_percent for window in measured):
            cells["its own CPU"] = figure([window.tools_percent for window in measured], "%")
        if count := sum(window.attached for window in measured):
            cells["attached"] = f"in {count} of {len(measured)}"
        rows.append(Row(name, cells))
    return tuple(rows)


def part_rows(side: Side) -> tuple[Row, ...]:
    """Return what each part adds to a query."""
    return tuple(
        Row(
            part.name,
            {
                "server": side["server"].sum(part.weights, "us"),
                "client": side["client"].sum(part.weights, "us"),
                "both": side["both"].sum(part.weights, "us"),
                "of both with nothing": side["both"].share(part.weights, NOTHING),
            },
        )
        for part in adding_up(side["both"].medians.keys())
    )
