# SPDX-License-Identifier: Apache-2.0
"""Samples of one server over time: what persists, what moves, what comes and goes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stallscope.analyzers.analysis import Analysis

__all__ = [
    "Sample",
    "Series",
    "Stack",
    "StackCounts",
    "Stuck",
    "Together",
    "Verdict",
    "related",
    "sample",
    "series",
    "together",
]

MAX_STUCK = 20
MAX_STACKS = 20

Stack = tuple[str, ...]


class Sample(msgspec.Struct, frozen=True):
    """What is kept of one analysis. ``stacks``: stack → threads that are not idle."""

    name: str
    time_ns: int | None
    threads: int
    signature: str | None
    title: str | None
    """None: no finding."""
    confidence: float
    blocker: int | None
    stacks: Mapping[Stack, int]
    by_thread: Mapping[int, Stack]
    """TID → stack, of the threads that have a TID and are not idle."""
    tids: frozenset[int]


class Verdict(msgspec.Struct, frozen=True):
    """A first finding, and in how many samples it was that. ``blockers``: TID → samples."""

    signature: str | None
    title: str
    samples: int
    first: str
    last: str
    confidence: float
    """The highest."""
    blockers: dict[int, int]


class Together(msgspec.Struct, frozen=True):
    """The verdict of all samples together: in how many of them it is."""

    signature: str | None
    title: str
    confidence: float
    threads: int
    blocker: int | None
    samples: int


class Stuck(msgspec.Struct, frozen=True):
    """Threads that stood in one stack in each sample that has them, and in all of them."""

    tids: tuple[int, ...]
    frames: Stack


class StackCounts(msgspec.Struct, frozen=True):
    """Threads in one stack, sample by sample."""

    frames: Stack
    counts: tuple[int, ...]


class Series(msgspec.Struct, frozen=True):
    """All samples together, in order of time."""

    samples: int
    names: tuple[str, ...]
    quiet: int
    """Samples without a finding."""
    verdicts: tuple[Verdict, ...]
    stuck: tuple[Stuck, ...]
    moved: int
    """Threads that were in another stack in a later sample."""
    came: int
    """Threads that the first sample has not, and a later one has."""
    went: int
    persists: tuple[StackCounts, ...]
    """Stacks of every sample."""
    comes_and_goes: tuple[StackCounts, ...]
    together: Together | None = None
    """None: no stall, or the samples are of several servers."""


def together(analysis: Analysis | None) -> Together | None:
    """Return the verdict of samples that were analyzed together."""
    if analysis is None or not analysis.findings:
        return None
    first = analysis.findings[0]
    return Together(
        signature=first.signature,
        title=first.title,
        confidence=first.confidence,
        threads=first.threads,
        blocker=first.blocker.tid if first.blocker is not None else None,
        samples=first.seen.captures if first.seen is not None else 1,
    )


def sample(analysis: Analysis, name: str) -> Sample:
    """Keep of an analysis what a series needs, and let the capture go."""
    capture = analysis.capture
    stacks: Counter[Stack] = Counter()
    by_thread: dict[int, Stack] = {}
    for group in analysis.groups:
        if group.idle:
            continue
        stacks[group.frames] += group.count
        for index in group.threads:
            if capture.threads[index].tid:
                by_thread[capture.threads[index].tid] = group.frames
    first = analysis.findings[0] if analysis.findings else None
    return Sample(
        name=name,
        time_ns=capture.time_ns,
        threads=sum(thread.count for thread in capture.threads),
        signature=first.signature if first else None,
        title=first.title if first else None,
        confidence=first.confidence if first else 0.0,
        blocker=first.blocker.tid if first and first.blocker and first.blocker.tid else None,
        stacks=dict(stacks),
        by_thread=by_thread,
        tids=frozenset(thread.tid for thread in capture.threads if thread.tid),
    )


def related(samples: Sequence[Sample]) -> bool:
    """Return whether these can be samples of one server: most neighbours have a thread in
    common."""
    pairs = list(itertools.pairwise(samples))
    common = sum(bool(one.tids & other.tids) for one, other in pairs)
    return bool(pairs) and 2 * common >= len(pairs)


def series(samples: Sequence[Sample], verdict: Together | None = None) -> Series:
    """Put samples in order of their time, where all have one, and compare them.

    ``verdict``: that of all of them together.
    """
    ordered = list(samples)
    if all(item.time_ns is not None for item in ordered):
        ordered.sort(key=lambda item: item.time_ns or 0)
    persists, comes = _courses(ordered)
    moved, came, went = _movement(ordered)
    return Series(
        samples=len(ordered),
        names=tuple(item.name for item in ordered),
        quiet=sum(item.title is None for item in ordered),
        verdicts=_verdicts(ordered),
        stuck=_stuck(ordered),
        moved=moved,
        came=came,
        went=went,
        persists=persists,
        comes_and_goes=comes,
        together=verdict,
    )


def _verdicts(samples: Sequence[Sample]) -> tuple[Verdict, ...]:
    found: dict[str, list[Sample]] = {}
    for item in samples:
        if item.title is not None:
            found.setdefault(item.signature or "", []).append(item)
    verdicts = [
        Verdict(
            signature=signature or None,
            title=items[0].title or "",
            samples=len(items),
            first=items[0].name,
            last=items[-1].name,
            confidence=max(item.confidence for item in items),
            blockers=dict(Counter(i.blocker for i in items if i.blocker is not None).most_common()),
        )
        for signature, items in found.items()
    ]
    return tuple(sorted(verdicts, key=lambda v: (-v.samples, -v.confidence)))


def _stuck(samples: Sequence[Sample]) -> tuple[Stuck, ...]:
    """Return the threads that all samples have in the same stack, the largest groups first."""
    if len(samples) < 2:
        return ()
    same: dict[Stack, list[int]] = {}
    for tid, stack in samples[0].by_thread.items():
        if all(item.by_thread.get(tid) == stack for item in samples[1:]):
            same.setdefault(stack, []).append(tid)
    groups = [Stuck(tuple(sorted(tids)), stack) for stack, tids in same.items()]
    groups.sort(key=lambda group: (-len(group.tids), group.frames))
    return tuple(groups[:MAX_STUCK])


def _movement(samples: Sequence[Sample]) -> tuple[int, int, int]:
    """Return how many threads moved between stacks, came and went."""
    if not samples:
        return 0, 0, 0
    moved: set[int] = set()
    for one, other in itertools.pairwise(samples):
        moved.update(
            tid
            for tid in one.tids & other.tids
            if one.by_thread.get(tid) != other.by_thread.get(tid)
        )
    first, last = samples[0].tids, samples[-1].tids
    seen = frozenset().union(*(item.tids for item in samples))
    return len(moved), len(seen - first), len(seen - last)


def _courses(samples: Sequence[Sample]) -> tuple[tuple[StackCounts, ...], tuple[StackCounts, ...]]:
    """Return the stacks of all samples, and those of some, most threads first."""
    courses = [
        StackCounts(stack, tuple(item.stacks.get(stack, 0) for item in samples))
        for stack in dict.fromkeys(stack for item in samples for stack in item.stacks)
    ]
    courses.sort(key=lambda course: (-sum(course.counts), course.frames))
    persists = [course for course in courses if all(course.counts)]
    comes = [course for course in courses if not all(course.counts)]
    return tuple(persists[:MAX_STACKS]), tuple(comes[:MAX_STACKS])
