# SPDX-License-Identifier: Apache-2.0
"""What changed between two captures, or between two sets of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallscope.analyzers.series import Sample, Stack

__all__ = ["Change", "Diff", "Side", "diff"]

LEAST = 0.5
"""Threads a sample: smaller changes of a stack are not reported."""


class Side(msgspec.Struct, frozen=True):
    """One of the two. ``verdicts``: (signature or None, samples), the most frequent first."""

    samples: int
    threads: float
    """On average in a sample, as all figures here."""
    active: float
    verdicts: tuple[tuple[str | None, int], ...]
    quiet: int


class Change(msgspec.Struct, frozen=True):
    """Threads in a stack, or in a subsystem, before and after."""

    frames: Stack
    before: float
    after: float

    @property
    def delta(self) -> float:
        return self.after - self.before


class Diff(msgspec.Struct, frozen=True):
    """``before`` and ``after``, and the stacks whose threads became more, fewer, new or gone."""

    before: Side
    after: Side
    new: tuple[Change, ...]
    more: tuple[Change, ...]
    fewer: tuple[Change, ...]
    gone: tuple[Change, ...]
    stuck: tuple[int, ...]
    """TIDs that have the same stack on both sides, in all samples."""


def diff(before: Sequence[Sample], after: Sequence[Sample], *, frames: int | None = None) -> Diff:
    """Compare two sets of samples by stacks. ``frames``: compare only that many innermost
    frames."""
    one, other = _mean(before, frames), _mean(after, frames)
    changes = [
        Change(stack, round(one.get(stack, 0.0), 2), round(other.get(stack, 0.0), 2))
        for stack in dict.fromkeys((*one, *other))
    ]
    changes = [change for change in changes if abs(change.delta) >= LEAST]
    changes.sort(key=lambda change: (-abs(change.delta), change.frames))
    return Diff(
        before=_side(before),
        after=_side(after),
        new=tuple(c for c in changes if not c.before),
        more=tuple(c for c in changes if c.before and c.delta > 0),
        fewer=tuple(c for c in changes if c.after and c.delta < 0),
        gone=tuple(c for c in changes if not c.after),
        stuck=_stuck([*before, *after]),
    )


def _mean(samples: Sequence[Sample], frames: int | None) -> Mapping[Stack, float]:
    """Return the threads in each stack, on average in a sample."""
    sums: dict[Stack, float] = {}
    for item in samples:
        for stack, count in item.stacks.items():
            sums[stack[:frames]] = sums.get(stack[:frames], 0.0) + count
    return {stack: count / len(samples) for stack, count in sums.items()}


def _side(samples: Sequence[Sample]) -> Side:
    counts: dict[str | None, int] = {}
    for item in samples:
        if item.title is not None:
            counts[item.signature] = counts.get(item.signature, 0) + 1
    return Side(
        samples=len(samples),
        threads=round(sum(item.threads for item in samples) / len(samples), 2),
        active=round(sum(sum(item.stacks.values()) for item in samples) / len(samples), 2),
        verdicts=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0] or ""))),
        quiet=sum(item.title is None for item in samples),
    )


def _stuck(samples: Sequence[Sample]) -> tuple[int, ...]:
    first = samples[0].by_thread
    return tuple(
        sorted(
            tid
            for tid, stack in first.items()
            if all(item.by_thread.get(tid) == stack for item in samples[1:])
        )
    )
