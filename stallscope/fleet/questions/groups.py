# SPDX-License-Identifier: Apache-2.0
"""Stalls without a name, in groups of those that are alike: fleet/likeness.py, in SQL.

An engine has few shapes of many incidents. It makes of each function that several shapes have a
list of these shapes, and of the lists the pairs; the weights of the functions that both have are
added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from stallscope.fleet.destination import Engine
from stallscope.fleet.dialect import Dialect
from stallscope.fleet.likeness import THRESHOLD, Group, Shape, united
from stallscope.fleet.questions.sqltext import during, select
from stallscope.fleet.questions.values import newest_last, text, whole

__all__ = ["MOST_SHAPES", "Groups", "groups", "without_name"]

MOST_SHAPES = 500
_UNIT = 1_000_000
"""Weights are whole numbers of millionths, so that all engines add up the same."""


class Groups(msgspec.Struct, frozen=True):
    """The groups, that with the latest incident first. ``more``: there are more shapes, which are
    in none."""

    found: tuple[Group, ...] = ()
    more: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was left out."""
        if not self.more:
            return ()
        return (f"only the {MOST_SHAPES} most frequent shapes of unknown stalls have groups",)

    def kind(self, dialect: Dialect) -> str:
        """Return in SQL what kind of stall an incident is: its signature, or its group."""
        names = {shape.shape: group.name for group in self.found for shape in group.shapes}
        if not names:
            return "signature"
        other = dialect.text("unknown")
        known = dialect.mapped("shape", names, other)
        return f"CASE WHEN signature = {other} THEN {known} ELSE signature END"


def without_name(dialect: Dialect) -> str:
    """Return a condition: a stall without a name whose shape is known."""
    return f"signature = {dialect.text('unknown')} AND shape <> ''"


def groups(engine: Engine, since_ms: int, until_ms: int) -> Groups:
    """Return the groups of all stalls without a name between two moments."""
    known = _shapes(engine, since_ms, until_ms)
    if not known:
        return Groups()
    shapes = {one.shape: one for one in known[:MOST_SHAPES]}
    source = _functions(engine.dialect, list(shapes.values()))
    functions = defaultdict(list)
    columns = ("shape", "one_function")
    for row in engine.rows(select(columns, source, group=columns, order="shape, one_function")):
        functions[text(row["shape"])].append(text(row["one_function"]))
    complete = [
        msgspec.structs.replace(one, functions=tuple(functions[one.shape]))
        for one in shapes.values()
    ]
    pairs: list[tuple[str, str]] = []
    if len(complete) > 1:
        query = _alike(engine.dialect, source, len(complete))
        pairs = [(text(row["shape_a"]), text(row["shape_b"])) for row in engine.rows(query)]
    return Groups(tuple(united(complete, pairs)), len(known) > MOST_SHAPES)


def _shapes(engine: Engine, since_ms: int, until_ms: int) -> list[Shape]:
    """Return the most frequent shapes, one more than is used, without their functions."""
    dialect = engine.dialect
    where = during(dialect, since_ms, until_ms, without_name(dialect))
    most = select(
        ("shape", "count(*) AS incidents", "min(start_ms) AS first_ms", "max(start_ms) AS last_ms"),
        dialect.latest("incidents"),
        where=where,
        group=("shape",),
        order="incidents DESC, shape",
        limit=MOST_SHAPES + 1,
    )
    rows = engine.rows(most)
    if not rows:
        return []
    versions = _first_versions(engine, [whole(row["first_ms"]) for row in rows])
    return [
        Shape(
            shape=text(row["shape"]),
            functions=(),
            first_ms=whole(row["first_ms"]),
            last_ms=whole(row["last_ms"]),
            incidents=whole(row["incidents"]),
            version=versions.get((text(row["shape"]), whole(row["first_ms"])), ""),
        )
        for row in rows
    ]


def _first_versions(engine: Engine, starts: Sequence[int]) -> dict[tuple[str, int], str]:
    """Return the version of the first incident of each shape; of several at once the oldest."""
    columns = ("shape", "start_ms", "version")
    query = select(
        columns,
        engine.dialect.latest("incidents"),
        where=_begun(engine.dialect, starts),
        group=columns,
        order=", ".join(columns),
    )
    found: dict[tuple[str, int], str] = {}
    for row in engine.rows(query):
        key = (text(row["shape"]), whole(row["start_ms"]))
        found[key] = min(
            found.get(key, text(row["version"])), text(row["version"]), key=newest_last
        )
    return found


def _begun(dialect: Dialect, starts: Sequence[int]) -> str:
    """Return a condition: stalls without a name that began at these moments. An engine finds them
    by the key of the table, and reads no arrays of others."""
    few = sorted(set(starts))
    moments = f"start_ms IN ({', '.join(map(str, few))})"
    return during(dialect, few[0], few[-1] + 1, f"{moments} AND {without_name(dialect)}")


def _functions(dialect: Dialect, shapes: Sequence[Shape]) -> str:
    """Return a subquery in brackets: each function of each shape, and of others that were first
    seen at the same moment."""
    where = _begun(dialect, [one.first_ms for one in shapes])
    source = dialect.table("incidents", ("shape", "shape_functions"), where)
    return dialect.exploded(source, "shape_functions", "one_function", ("shape",))


def _alike(dialect: Dialect, source: str, count: int) -> str:
    """Return a query for the pairs of shapes that are alike: the weighted Jaccard index of their
    functions is THRESHOLD or more. ``source``: each function of each of ``count`` shapes."""
    rarity = f"floor(log10(1 + {count} / count(DISTINCT shape)) * {_UNIT} + 0.5) AS weight"
    lists = select(
        ("one_function", rarity, f"{dialect.distinct('shape')} AS shapes"),
        source,
        group=("one_function",),
    )
    left = dialect.exploded(f"({lists})", "shapes", "shape_a", ("weight", "shapes"))
    pairs = dialect.exploded(left, "shapes", "shape_b", ("weight", "shape_a"))
    shared = select(
        ("shape_a", "shape_b", "sum(weight) AS shared"),
        pairs,
        where="shape_a < shape_b",
        group=("shape_a", "shape_b"),
    )
    for side in ("a", "b"):
        each = dialect.exploded(f"({lists})", "shapes", f"shape_{side}", ("weight",))
        totals = select(
            (f"shape_{side}", f"sum(weight) AS total_{side}"), each, group=(f"shape_{side}",)
        )
        shared = f"SELECT * FROM ({shared}) AS p JOIN ({totals}) AS w USING (shape_{side})"
    return select(
        ("shape_a", "shape_b"),
        f"({shared})",
        where=f"shared >= {THRESHOLD} * (total_a + total_b - shared)",
        order="shape_a, shape_b",
    )
