# SPDX-License-Identifier: Apache-2.0
"""One probe that is asked for captures by the thousand while threads come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import progress
from tests.bench.check import verified_right
from tests.bench.footprint import Bounds, Footprint, footprint, growth_goals, milestones
from tests.bench.soak import say
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.tools import ServingProbe
from tests.support.targets import Target, trouble
from tests.support.usage import process_tree

__all__ = ["FULL", "QUICK", "Sizes", "captures_section"]


@dataclass(frozen=True)
class Sizes:
    """How much is captured."""

    captures: int = 10_000
    stay: int = 200
    rate: int = 500
    """Threads that the target makes and ends a second."""
    samples: int = 100
    slower: float = 1.5
    """That the last captures may take, of the first."""


FULL = Sizes()
QUICK = Sizes(captures=400, stay=50, rate=200, samples=20)

WATCH = ("--watch", "--interval", "3600000")


def captures_section(sizes: Sizes) -> Section:
    """Ask a plain probe, and one that also watches waits."""
    rows: list[Row] = []
    goals: list[tuple[str, bool]] = []
    with Target("churn", str(sizes.rate), str(sizes.stay)) as target:
        for name, options in (("serve", ()), ("serve --watch", WATCH)):
            with ServingProbe(target.pid, *options) as serving:
                walls, samples = many(serving, target, sizes, name)
                members = process_tree(serving.process_id)
            gone(members, name)
            rows += milestone_rows(name, samples, walls)
            goals += [(f"{name}: {text}", met) for text, met in growth_goals(samples, Bounds())]
            quarter = len(walls) // 4
            first = figure(walls[quarter // 2 : quarter], "ms").median
            last = figure(walls[-quarter:], "ms").median
            goals.append(
                (
                    f"{name}: {last:.1f} ms a capture in the last quarter, {first:.1f} ms in the"
                    f" first, {sizes.slower:g} times allowed",
                    last <= sizes.slower * first,
                )
            )
        if left := trouble(target.pid):
            raise BenchError(f"left behind in the target: {left[:3]}")
    return Section(
        "captures",
        f"{sizes.captures} captures by one probe, of {sizes.stay} threads that stay and"
        f" {sizes.rate} a second that come and go",
        tuple(rows),
        checks=(
            "each capture has every frame of each thread that stays",
            "no process of the probe is left when it was asked to quit",
        ),
        goals=tuple(goals),
    )


def many(
    serving: ServingProbe, target: Target, sizes: Sizes, name: str
) -> tuple[list[float], list[dict[str, Footprint]]]:
    """Ask for captures; return the time of each, and what was held meanwhile."""
    walls: list[float] = []
    samples: list[dict[str, Footprint]] = []
    every = max(1, sizes.captures // sizes.samples)
    for number in range(sizes.captures):
        if number % every == 0:
            progress(f"{name}: capture {number} of {sizes.captures}")
            samples.append(held(serving))
        if number % (sizes.captures // 4) == 0:
            say(f"{name}, {number} captures: {described(held(serving))}")
        taken = serving.capture(target.pid)
        verified_right(target.threads, taken, name)
        walls.append(taken.wall_ms)
    samples.append(held(serving))
    return walls, samples


def held(serving: ServingProbe) -> dict[str, Footprint]:
    probe, *workers = process_tree(serving.process_id)
    return {"probe": footprint([probe]), "workers": footprint(workers)}


def described(sample: dict[str, Footprint]) -> str:
    return "; ".join(f"{role}: {what}" for role, what in sample.items())


def milestone_rows(
    name: str, samples: Sequence[dict[str, Footprint]], walls: Sequence[float]
) -> list[Row]:
    rows = []
    for index in milestones(samples):
        captures = round(index * len(walls) / (len(samples) - 1))
        around = walls[max(0, captures - 50) : captures + 50]
        cells: dict[str, Figure | str] = {
            **{role: str(what) for role, what in samples[index].items()},
            "wall": figure(around, "ms"),
        }
        rows.append(Row(f"{name}, {captures} captures", cells))
    return rows


def gone(members: Sequence[int], name: str) -> None:
    """Assert that the probe and its workers have ended."""
    for pid in members:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                raise BenchError(f"{name}: process {pid} of the probe is left")
