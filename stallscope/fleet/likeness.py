# SPDX-License-Identifier: Apache-2.0
"""Which stalls without a name are one kind of stall."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stallscope.fleet import clip

__all__ = [
    "THRESHOLD",
    "Group",
    "Shape",
    "group",
    "likeness",
    "marked",
    "name_of",
    "names_of",
    "shape_of",
    "united",
    "weights",
]

MAX_FUNCTIONS = 64
THRESHOLD = 0.37
"""From this likeness on two shapes are one kind of stall: docs/fleet-schema.md has how often that
is right, measured with `scripts/bench likeness`."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A shape with what the incidents of it have together."""

    shape: str
    functions: tuple[str, ...]
    first_ms: int
    """When the first of its incidents began."""
    last_ms: int = 0
    incidents: int = 1
    hosts: frozenset[str] = frozenset()
    version: str = ""
    """Of the server in the first one."""


class Group(msgspec.Struct, frozen=True):
    """Shapes that are one kind of stall, the earliest first: it gives the group its name."""

    name: str
    shapes: tuple[Shape, ...]

    @property
    def leader(self) -> Shape:
        """Return the shape that was seen first."""
        return self.shapes[0]

    @property
    def incidents(self) -> int:
        """Return how many incidents have one of its shapes."""
        return sum(one.incidents for one in self.shapes)

    @property
    def hosts(self) -> frozenset[str]:
        """Return on which hosts they were."""
        return frozenset().union(*(one.hosts for one in self.shapes))


def marked(waiters: Iterable[Sequence[str]], blocker: Sequence[str]) -> tuple[str, ...]:
    """Return the functions of a shape, sorted: ``w:`` of waiters, ``b:`` of the blocker.

    ``waiters``: functions of the server in each stack, innermost first, the stack of most threads
    first. Of all together at most ``MAX_FUNCTIONS`` are kept.
    """
    found = dict.fromkeys(f"b:{one}" for one in blocker)
    for stack in waiters:
        found.update(dict.fromkeys(f"w:{one}" for one in stack))
    return tuple(sorted(list(found)[:MAX_FUNCTIONS]))


def shape_of(functions: Iterable[str]) -> str:
    """Return 16 hexadecimal digits: the same for the same set of functions; empty for none."""
    found = sorted(set(functions))
    return clip.digest(found) if found else ""


def name_of(shape: str, digits: int = 4) -> str:
    """Return the name of a stall whose first shape this is: ``unknown-3f2a``."""
    return f"unknown-{shape[:digits]}"


def names_of(leaders: Iterable[str]) -> dict[str, str]:
    """Return the name of each shape that leads a group: 8 digits, or all, where 4 are
    not enough."""
    shapes = list(dict.fromkeys(leaders))
    counts = [(digits, Counter(shape[:digits] for shape in shapes)) for digits in (4, 8)]

    def digits_of(shape: str) -> int:
        return next((d for d, count in counts if count[shape[:d]] == 1), len(shape))

    return {shape: name_of(shape, digits_of(shape)) for shape in shapes}


def weights(shapes: Iterable[Shape]) -> dict[str, float]:
    """Return the weight of each function: the rarer it is among shapes, the more it says."""
    known = list(shapes)
    counts = Counter(name for one in known for name in set(one.functions))
    return {name: math.log(1 + len(known) / count) for name, count in counts.items()}


def likeness(one: Iterable[str], other: Iterable[str], weight: Mapping[str, float]) -> float:
    """Return the weighted Jaccard index of two sets of functions, 0 to 1."""
    left, right = set(one), set(other)
    every = sum(weight.get(name, 1.0) for name in left | right)
    both = sum(weight.get(name, 1.0) for name in left & right)
    return both / every if every else 0.0


def group(shapes: Sequence[Shape], threshold: float = THRESHOLD) -> list[Group]:
    """Return the groups of shapes, that with the latest incident first.

    Only shapes that share a function are compared.
    """
    weight = weights(shapes)
    having: dict[str, list[int]] = {}
    pairs: list[tuple[str, str]] = []
    for index, one in enumerate(shapes):
        near: set[int] = set()
        for name in set(one.functions):
            near.update(having.setdefault(name, []))
            having[name].append(index)
        pairs += (
            (shapes[other].shape, one.shape)
            for other in near
            if likeness(shapes[other].functions, one.functions, weight) >= threshold
        )
    return united(shapes, pairs)


def united(shapes: Sequence[Shape], pairs: Iterable[tuple[str, str]]) -> list[Group]:
    """Return the groups of shapes, of which these pairs are alike, that with the latest incident
    first."""
    parent = {one.shape: one.shape for one in shapes}

    def root(shape: str) -> str:
        while parent[shape] != shape:
            parent[shape] = shape = parent[parent[shape]]
        return shape

    for one, other in pairs:
        if one in parent and other in parent:
            parent[root(one)] = root(other)
    found: dict[str, list[Shape]] = {}
    for each in sorted(shapes, key=lambda one: (one.first_ms, one.shape)):
        found.setdefault(root(each.shape), []).append(each)
    names = names_of(members[0].shape for members in found.values())
    groups = [Group(names[members[0].shape], tuple(members)) for members in found.values()]
    groups.sort(key=lambda one: (-max(each.last_ms for each in one.shapes), one.name))
    return groups
