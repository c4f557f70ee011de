# SPDX-License-Identifier: Apache-2.0
"""Whether stalls without a name are grouped by what they are (stallscope/fleet/likeness.py).

Dumps with known causes are analyzed without the signatures of these causes. Where the first finding
is a stall without a name then, its shape is grouped with the others, and each pair of dumps is
judged: together or apart, and whether it has the same cause.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stallscope.analyzers import catalog, engine, importers
from stallscope.base.errors import StallscopeError
from stallscope.fleet import likeness
from stallscope.fleet.analysis import shape_functions
from stallscope.fleet.likeness import Shape
from tests.bench.labelled import Labelled, own, public
from tests.bench.stats import Row, Section

__all__ = ["Dump", "judged", "sections", "shaped"]

NEAR = (frozenset(("mariadb", "mariadb114")), frozenset(("postgres", "postgres17")))
"""Versions of one server that a fleet has at the same time."""
KINDS = {
    "tool": "one stall, dumped by other tools",
    "same": "another stall of the same server version",
    "near": "a near version of the same server",
    "far": "MySQL 5.5, 9.7 and MariaDB; any two public dumps",
}
_ANY = "?"


class Dump(NamedTuple):
    """A dump whose stall has no name without its own signatures."""

    name: str
    causes: frozenset[str]
    source: str
    server: str
    functions: tuple[str, ...]


class Pairs(NamedTuple):
    """Of pairs of dumps of one cause, those that are in one group; and wrong pairs in one."""

    right: int
    missed: int
    wrong: int

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + self.missed)


def shaped(cases: Iterable[Labelled], signatures: catalog.Catalog) -> Iterator[Dump]:
    """Yield those of which the first finding has no name, once their signatures are taken out."""
    for case in cases:
        causes = frozenset(case.expect) - {_ANY}
        if not causes:
            continue
        try:
            captures = importers.load(case.read(), case.name)
            analysis = engine.analyze_together(captures, signatures.without(causes))
        except StallscopeError:
            continue
        if not analysis.findings or analysis.findings[0].signature is not None:
            continue
        functions = shape_functions(analysis, analysis.findings[0])
        if functions:
            server = case.name if case.public else case.source.rpartition("-")[2]
            yield Dump(case.name, causes, case.source, server, functions)


def judged(
    dumps: Sequence[Dump], threshold: float = likeness.THRESHOLD
) -> tuple[dict[str, Pairs], Counter[tuple[str, str]]]:
    """Group the dumps; return the pairs of each kind, and of ``all``, and which are wrong."""
    shapes = {
        likeness.shape_of(one.functions): Shape(
            shape=likeness.shape_of(one.functions), functions=one.functions, first_ms=number
        )
        for number, one in enumerate(dumps)
    }
    groups = likeness.group(list(shapes.values()), threshold)
    group_of = {shape.shape: group.name for group in groups for shape in group.shapes}
    counts: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for one, other in itertools.combinations(dumps, 2):
        names = [group_of[likeness.shape_of(each.functions)] for each in (one, other)]
        together, same = names[0] == names[1], bool(one.causes & other.causes)
        if together and not same:
            first, second = sorted(f"{min(d.causes)} of {d.server}" for d in (one, other))
            wrong[first, second] += 1
        result = "right" if together and same else "missed" if same else "wrong"
        if together or same:
            counts[_kind(one, other), result] += 1
            counts["all", result] += 1
    return {
        kind: Pairs(*(counts[kind, result] for result in ("right", "missed", "wrong")))
        for kind in (*KINDS, "all")
    }, wrong


def _kind(one: Dump, other: Dump) -> str:
    if one.source == other.source:
        return "tool"
    if one.server == other.server:
        return "same"
    return "near" if frozenset((one.server, other.server)) in NEAR else "far"


def sections(_server: str, _quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the tables of this benchmark."""
    signatures = catalog.load()
    for name, cases in (("own", own()), ("public", public())):
        if only and name not in only:
            continue
        dumps = list(shaped(cases, signatures))
        pairs, wrong = judged(dumps)
        rows = [
            Row(
                KINDS.get(kind, kind),
                {
                    "same cause, together": str(found.right),
                    "same cause, apart": str(found.missed),
                    "other cause, together": str(found.wrong),
                    "precision": f"{found.precision:.2f}",
                    "recall": f"{found.recall:.2f}",
                },
            )
            for kind, found in pairs.items()
            if found.right + found.missed + found.wrong
        ]
        yield Section(
            name,
            f"Pairs of {len(dumps)} {name} dumps without their signatures, at a likeness of"
            f" {likeness.THRESHOLD:g}",
            tuple(rows),
            left_out=() if dumps else (f"{name}: no such dumps are here",),
            notes=tuple(f"{a}, {b}: {count} pairs" for (a, b), count in wrong.most_common(8)),
        )
