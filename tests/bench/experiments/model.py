# SPDX-License-Identifier: Apache-2.0
"""What an experiment is, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from tests.bench.barchart import Bars
from tests.bench.linechart import Chart
from tests.bench.stats import Section

__all__ = ["SCHEMA", "Case", "Drawing", "Experiment", "Found", "Result", "Sizes", "Verdict"]

SCHEMA: Final = "stallscope.experiment/1"


class Sizes(NamedTuple):
    """How long is measured."""

    seconds: float = 1.5
    """Of one window."""
    windows: int = 3
    quick: bool = False
    """The smallest set-up that still runs: it shows that the experiment works, and no effect."""

    def of(self, whole: int, small: int) -> int:
        """Return the size of something of the set-up."""
        return small if self.quick else whole


class Verdict(msgspec.Struct, frozen=True):
    """What a command of stallscope said during the experiment."""

    command: str
    says: tuple[str, ...]
    """Lines, without what changes from run to run where that says nothing."""
    missing: str = ""
    """Why the command said nothing."""


class Drawing(msgspec.Struct, frozen=True):
    """A picture: docs/img/experiment-NAME.svg. One of ``lines`` and ``bars`` is there."""

    name: str
    text: str
    """What a reader who does not see it has to know."""
    lines: Chart | None = None
    bars: Bars | None = None


class Found(msgspec.Struct, frozen=True):
    """What an experiment found. ``ours`` and ``after`` are short: cells of the first table."""

    ours: str
    after: str
    shows: str
    """Whether it shows the seed's effect: yes, partly, no."""
    verdicts: tuple[Verdict, ...]
    tables: tuple[Section, ...]
    drawings: tuple[Drawing, ...] = ()
    why: str = ""
    """Why the numbers are not the seed's."""


class Result(msgspec.Struct, frozen=True):
    """What is kept of one run, as NAME.json."""

    schema: Literal["stallscope.experiment/1"]
    experiment: str
    date: str
    kernel: str
    cpus: int
    seconds: float
    """That it took."""
    load: float | None
    """Load average before it; None: unknown."""
    quick: bool
    found: Found


class Case(NamedTuple):
    """What the seed measured: its number, and where it is written."""

    number: str
    source: str


class Experiment(NamedTuple):
    """One row of docs/experiments.md."""

    name: str
    title: str
    seed: Case
    story: str
    """What is set up, and what is measured."""
    fix: str
    measure: Callable[[Sizes], Found]
    needs: tuple[str, ...]
    """Servers (STALLSCOPE_REQUIRE's names), without which it cannot run."""
