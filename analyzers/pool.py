# SPDX-License-Identifier: Apache-2.0
"""What all captures of a burst, and its samples, show of holders.

A cause is often on a CPU for a fraction of a millisecond at a time: one capture shows its victims,
and another the cause.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.stacks import Shape, Stacks
from stallscope.analyzers.waits import IDLE, RUNNING
from stallscope.model.capture import Capture, Sample, Thread

__all__ = ["FEW", "Pool", "Sighting", "Spot", "collect"]

FEW = 5
"""So few captures without samples: one of them with the cause is enough."""
LEAST_COVERAGE = 0.04
"""The least part of the time that a cause must fill: less is what a healthy server does as well."""
LEAST_SIGHTINGS = 3
SPOTS = 5
SPOT_FRAMES = 3
LEAST_SPOT = 0.02


class Sighting(NamedTuple):
    """A thread that was seen in a holder's frames. ``moment``: index of the capture, or None: a
    sample."""

    process: int
    tid: int
    shape: Shape
    entry: int
    """Index of the holder entry of the signature."""
    moment: int | None
    times: int
    state: str


class Spot(NamedTuple):
    """Where holders spend their time: a function, and its share of what was seen of them."""

    where: str
    share: float


def _place(shape: Shape) -> str:
    """Return the frames that best show what a holder does; recursion counts once."""
    names = [name for name, _ in itertools.groupby(shape.significant(len(shape.frames)))]
    return " < ".join(names[:SPOT_FRAMES]) or "no frames"


class _Summary(NamedTuple):
    captures: int
    samples: int
    best: Sighting | None


def _summary(found: Sequence[Sighting]) -> _Summary:
    counts: Counter[int] = Counter()
    for sighting in found:
        counts[id(sighting.shape)] += sighting.times
    return _Summary(
        captures=len({s.moment for s in found if s.moment is not None}),
        samples=sum(s.times for s in found if s.moment is None),
        best=min(
            found,
            key=lambda s: (s.entry, -counts[id(s.shape)], s.moment is None, s.tid),
            default=None,
        ),
    )


class Pool:
    """Holders of each signature, from all captures and samples."""

    def __init__(
        self,
        captures: int,
        sightings: Mapping[str, Sequence[Sighting]],
        *,
        samples: int,
        ticks: float,
        busy: Mapping[str, int],
    ) -> None:
        self.captures = captures
        self.sightings = sightings
        self.samples = samples
        """What ran of this server, sample by sample."""
        self.busy = busy
        """Signature of busy work → samples of it."""
        self.ticks = ticks
        """How often each CPU was sampled."""
        self._summaries: dict[str, _Summary] = {}

    def seen_in(self, signature: str) -> int:
        """Return how many captures show a holder."""
        return self._of(signature).captures

    def sampled(self, signature: str) -> int:
        """Return how many samples are in a holder's frames."""
        return self._of(signature).samples

    def cpu(self, signature: str) -> float:
        """Return the share of what the server runs that its holders, or its busy work, are."""
        counted = self.sampled(signature) + self.busy.get(signature, 0)
        return counted / self.samples if self.samples else 0.0

    def coverage(self, signature: str) -> float:
        """Return for which part of the time a holder is seen."""
        captured = self.seen_in(signature) / max(1, self.captures)
        sampled = min(1.0, self.sampled(signature) / self.ticks) if self.ticks else 0.0
        return max(captured, sampled)

    def covers(self, signature: str) -> bool:
        """Return whether a holder is there often enough to be the cause of a wait."""
        if signature not in self.sightings:
            return False
        few = self.captures <= FEW and not self.samples
        return few or self.coverage(signature) >= LEAST_COVERAGE

    def best(self, signature: str) -> Sighting | None:
        """Return the sighting that shows the holder best: by the first entry that fits, then the
        stack that was seen most often."""
        return self._of(signature).best

    def _of(self, signature: str) -> _Summary:
        known = self._summaries.get(signature)
        if known is None:
            known = self._summaries[signature] = _summary(self.sightings.get(signature, ()))
        return known

    def holders(self, signature: str) -> int:
        """Return how many threads were seen as holders."""
        return len({(s.process, s.tid) for s in self.sightings.get(signature, ())})

    def threads(self, signature: str) -> set[int]:
        """Return the ids of the threads that were seen as holders."""
        return {s.tid for s in self.sightings.get(signature, ())}

    def profile(self, signature: str) -> tuple[Spot, ...]:
        """Return where the holders spend their time, most of it first; nothing of a burst that has
        seen them once or twice, which is chance."""
        found = self.sightings.get(signature, ())
        if self.captures > FEW and sum(s.times for s in found) < LEAST_SIGHTINGS:
            return ()
        sampled = [s for s in found if s.moment is None]
        counts: Counter[str] = Counter()
        for sighting in sampled or found:
            counts[_place(sighting.shape)] += sighting.times
        total = sum(counts.values())
        spots = [Spot(where, count / total) for where, count in counts.most_common(SPOTS)]
        return tuple(spot for spot in spots if spot.share >= LEAST_SPOT)


def collect(
    captures: Sequence[Capture],
    stacks: Sequence[Stacks],
    states: Sequence[Sequence[str]],
    catalog: Catalog,
) -> Pool:
    """Gather the holders of all captures and samples."""
    found: dict[str, list[Sighting]] = {}

    def add(item: Thread | Sample, shape: Shape, moment: int | None, state: str) -> None:
        for signature, entries in shape.holder_of.items():
            entry = catalog.by_id[signature].certain_holder(entries)
            if entry is not None:
                sighting = Sighting(item.process, item.tid, shape, entry, moment, item.count, state)
                found.setdefault(signature, []).append(sighting)

    samples = 0
    busy: Counter[str] = Counter()
    for moment, capture in enumerate(captures):
        for thread, shape, state in zip(
            capture.threads, stacks[moment].shapes, states[moment], strict=True
        ):
            if shape.holder_of and state != IDLE:
                add(thread, shape, moment, state)
        for sample, shape in zip(capture.samples, stacks[moment].samples, strict=True):
            samples += sample.count
            for signature in shape.waiter_of:
                if signature.busy:
                    busy[signature.id] += sample.count
            if shape.holder_of:
                add(sample, shape, None, RUNNING)
    ticks = sum(c.sample_window_ns / c.sample_period_ns for c in captures if c.sample_period_ns)
    return Pool(len(captures), found, samples=samples, ticks=ticks, busy=busy)
