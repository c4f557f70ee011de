# SPDX-License-Identifier: Apache-2.0
"""How long each question takes, on each engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from stallscope.base.errors import StallscopeError
from stallscope.fleet.questions.asking import QUESTIONS, Asked, ask
from tests.bench import progress
from tests.bench.fleet_options import Options
from tests.bench.fleet_places import FolderPlace, Place
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.support.fleet.simulated import NEW_VERSION, OLD_VERSION, Fleet

__all__ = ["Timed", "asked", "by_rows_section", "of_folder", "questions_section", "timed"]

GOAL_S = 1.0


class Timed(NamedTuple):
    """The times of one question on one engine, in seconds, and how many rows the answer has."""

    engine: str
    question: str
    seconds: tuple[float, ...]
    rows: int


def asked(fleet: Fleet) -> Asked:
    """Return what is asked of a simulated fleet: all of its time."""
    return Asked(fleet.since_ms, fleet.until_ms, version=NEW_VERSION, against=OLD_VERSION)


def timed(
    place: Place, name: str, fleet: Fleet, runs: int, only: Sequence[str] = ()
) -> list[Timed]:
    """Ask all questions so often, each time with a new engine, as a command does."""
    found = []
    for question in only or QUESTIONS:
        progress(f"questions, {name}: {question}")
        seconds, rows = [], 0
        for _ in range(runs):
            start = time.perf_counter()
            try:
                with closing(place.engine()) as engine:
                    rows = len(ask(engine, question, asked(fleet)).rows)
            except StallscopeError as error:
                raise BenchError(f"{question} on {name}: {error}") from None
            seconds.append(time.perf_counter() - start)
        found.append(Timed(name, question, tuple(seconds), rows))
    return found


def questions_section(times: Sequence[Timed], options: Options) -> Section:
    """Return the table: a line for each question, a column for each engine."""
    engines = list(dict.fromkeys(one.engine for one in times))
    questions = list(dict.fromkeys(one.question for one in times))
    known = {(one.engine, one.question): one for one in times}
    rows, goals = [], []
    for question in questions:
        cells: dict[str, Figure | str] = {}
        for engine in engines:
            one = known.get((engine, question))
            cells[engine] = "-" if one is None else figure(one.seconds, "s")
        rows.append(Row(question, dict(cells)))
    for engine in engines:
        found = [figure(one.seconds, "s").median for one in times if one.engine == engine]
        if "not compacted" not in engine:
            goals.append(
                (
                    f"{engine}: the slowest takes {max(found):.2f} s; goal {GOAL_S:g} s",
                    max(found) <= GOAL_S,
                )
            )
    empty = [f"{one.question} on {one.engine}" for one in times if not one.rows]
    return Section(
        "questions",
        f"Questions about {options.incidents} incidents of {options.hosts} hosts in 24 hours",
        tuple(rows),
        checks=(f"answers without a row: {', '.join(empty) or 'none'}",),
        goals=tuple(goals),
        notes=(
            "each with a new connection, or a folder that was not read yet; the start of the"
            " command (./scripts/bench cli) is not in it",
        ),
    )


def by_rows_section(steps: Sequence[tuple[int, Sequence[Timed]]]) -> Section:
    """Return how the questions take longer with more incidents: medians."""
    questions = list(dict.fromkeys(one.question for _, times in steps for one in times))
    known = {(rows, one.question): one for rows, times in steps for one in times}
    rows = []
    for question in questions:
        cells = {
            f"{count} incidents": figure(known[count, question].seconds, "s")
            for count, _ in steps
            if (count, question) in known
        }
        rows.append(Row(question, cells))
    return Section("questions-rows", "Questions as incidents become more, ClickHouse", tuple(rows))


def of_folder(place: FolderPlace, fleet: Fleet, question: str) -> Timed:
    """Return the time of one question on a folder that is not compacted."""
    return timed(place, "folder, not compacted", fleet, 1, (question,))[0]
