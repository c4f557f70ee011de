# SPDX-License-Identifier: Apache-2.0
"""What the threads of a server did, second by second: the last minutes in fixed memory."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import msgspec

from stallscope.model.waitkinds import IDLE_KINDS, KINDS
from stallscope.model.waitlines import ThreadRow, ThreadSample

__all__ = [
    "IDLE",
    "KEPT_SECONDS",
    "MAX_ROWS",
    "OTHER",
    "RUNNING",
    "UNINTERRUPTIBLE",
    "Bucket",
    "ThreadHistory",
    "Top",
    "active",
    "activities",
    "activity",
    "buckets",
    "in_order",
    "top",
]

NS = 10**9
KEPT_SECONDS = 900
MAX_SAMPLES = KEPT_SECONDS + 100
"""Seconds are not exact: some more samples than seconds are kept."""
MAX_STEP_NS = 300 * NS
"""More between two samples is a clock that was set, or a time without a probe."""
MAX_SAMPLE_ROWS = 64
"""Rows of one sample; the probe sends at most 49."""
MAX_ROWS = 2048
"""Different rows at one time, over all samples."""
MAX_TEXT = 128
"""Characters of a name."""

RUNNING = "running"
UNINTERRUPTIBLE = "uninterruptible"
"""In the kernel without a known kind of wait: a page fault, an unknown call."""
IDLE = "idle"
OTHER = "other"
"""Not known."""

Key = tuple[str | None, str | None, str | None, str | None, str | None]
"""A row without its count."""

_MOST = (1 << 32) - 1
_OTHER: Key = (None, None, None, None, None)


def activity(row: ThreadRow) -> str:
    """Return what threads of a row do: a kind of wait, or one of the four names above."""
    if row.state is None:
        return OTHER
    if row.state == "R":
        return RUNNING
    if row.kind is not None and row.kind not in IDLE_KINDS:
        return row.kind if row.kind in KINDS else OTHER
    return UNINTERRUPTIBLE if row.state == "D" else IDLE


def active(name: str) -> bool:
    """Return whether threads of this activity are active: they run, or wait for something that is
    no client, no timer and no work."""
    return name not in (IDLE, OTHER)


def activities(sample: ThreadSample) -> Counter[str]:
    """Return how many threads of a sample have each activity."""
    found: Counter[str] = Counter()
    for row in sample.rows:
        found[activity(row)] += row.count
    return found


def in_order(counts: Iterable[str]) -> list[str]:
    """Return activities in the order in which they are always shown."""
    known = (RUNNING, *KINDS, UNINTERRUPTIBLE, OTHER, IDLE)
    return sorted(counts, key=lambda name: (known.index(name) if name in known else 0, name))


class Top(msgspec.Struct, frozen=True):
    """A row over several samples. ``row.count``: the most threads of one sample."""

    row: ThreadRow
    mean: float
    """Threads on average over all samples."""
    samples: int
    """In how many samples it was."""


class Bucket(msgspec.Struct, frozen=True):
    """Threads by activity on average in a part of an interval."""

    time_ns: int
    samples: int
    threads: float
    counts: dict[str, float]

    @property
    def active(self) -> float:
        """Return how many threads were active."""
        return sum(count for name, count in self.counts.items() if active(name))


def top(samples: Iterable[ThreadSample]) -> list[Top]:
    """Return the rows of some samples: active ones first, the most threads on average first."""
    total: Counter[Key] = Counter()
    most: Counter[Key] = Counter()
    seen: Counter[Key] = Counter()
    count = 0
    for sample in samples:
        count += 1
        for row in sample.rows:
            key = _key(row)
            total[key] += row.count
            most[key] = max(most[key], row.count)
            seen[key] += 1
    found = [Top(ThreadRow(most[key], *key), total[key] / count, seen[key]) for key in total]
    found.sort(key=lambda one: (not active(activity(one.row)), -one.mean, str(_key(one.row))))
    return found


def buckets(samples: Iterable[ThreadSample], width_ns: int) -> list[Bucket]:
    """Return threads by activity over time; a bucket without samples is left out."""
    sums: dict[int, tuple[Counter[str], int, int]] = {}
    for sample in samples:
        at = sample.time_ns // width_ns * width_ns
        counts, threads, number = sums.get(at, (Counter(), 0, 0))
        counts.update(activities(sample))
        sums[at] = (counts, threads + sample.threads, number + 1)
    return [
        Bucket(at, number, threads / number, {name: n / number for name, n in counts.items()})
        for at, (counts, threads, number) in sorted(sums.items())
    ]


class _Packed(msgspec.Struct, frozen=True, gc=False):
    """A sample: numbers of rows and their counts, in turn."""

    time_ns: int
    passed_ns: int
    """The time that had passed since the first sample, whatever the clock was set to."""
    threads: int
    rows: array[int]


class ThreadHistory:
    """The samples of the last ``seconds``, whatever the target does to its names.

    Each different row is kept once, for as long as a sample has it. Rows beyond ``MAX_ROWS`` lose
    their names, and beyond that are counted in the row of which nothing is known.
    """

    def __init__(self, seconds: int = KEPT_SECONDS) -> None:
        self._span_ns = seconds * NS
        self._samples: deque[_Packed] = deque()
        self._numbers: dict[Key, int] = {}
        self._rows: list[Key] = []
        self._uses = array("I")
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def rows(self) -> int:
        """Return how many different rows are kept."""
        return len(self._numbers)

    def add(self, sample: ThreadSample) -> None:
        """Add a sample, after those before, whatever its time is: clocks are set."""
        passed_ns = 0
        if self._samples:
            last = self._samples[-1]
            step_ns = sample.time_ns - last.time_ns
            passed_ns = last.passed_ns + (step_ns if 0 <= step_ns <= MAX_STEP_NS else 0)
        oldest = passed_ns - self._span_ns
        while self._samples and (
            self._samples[0].passed_ns <= oldest or len(self._samples) >= MAX_SAMPLES
        ):
            self._release(self._samples.popleft())
        rows = array("I")
        for number, count in self._numbered(sample).items():
            self._uses[number] += 1
            rows.extend((number, min(count, _MOST)))
        self._samples.append(_Packed(sample.time_ns, passed_ns, sample.threads, rows))

    def since(self, time_ns: int, until_ns: int | None = None) -> Iterator[ThreadSample]:
        """Yield the samples from a moment on, oldest first, up to before ``until_ns``."""
        for packed in tuple(self._samples):
            if packed.time_ns >= time_ns and (until_ns is None or packed.time_ns < until_ns):
                yield self._unpack(packed)

    def latest(self) -> ThreadSample | None:
        """Return the last sample."""
        return self._unpack(self._samples[-1]) if self._samples else None

    def clear(self) -> None:
        """Forget everything."""
        while self._samples:
            self._release(self._samples.pop())

    def _unpack(self, packed: _Packed) -> ThreadSample:
        numbers = packed.rows
        rows = tuple(
            ThreadRow(numbers[at + 1], *self._rows[numbers[at]]) for at in range(0, len(numbers), 2)
        )
        return ThreadSample(packed.time_ns, packed.threads, rows)

    def _numbered(self, sample: ThreadSample) -> dict[int, int]:
        """Return the counts of a sample by the number of the row."""
        found: dict[int, int] = {}
        for place, row in enumerate(sample.rows):
            key = _OTHER if place >= MAX_SAMPLE_ROWS else _cut(row)
            number = self._number(key)
            found[number] = found.get(number, 0) + row.count
        return found

    def _number(self, key: Key) -> int:
        for known in (key, (*key[:1], None, key[2], None, None), _OTHER):
            number = self._numbers.get(known)
            if number is not None:
                return number
            # Some places are kept for rows without names: they have few different values.
            most = MAX_ROWS if known is key and any(key[3:]) else MAX_ROWS + 512
            if len(self._numbers) < most or known is _OTHER:
                return self._insert(known)
        raise AssertionError("the last one is always taken")

    def _insert(self, key: Key) -> int:
        if self._free:
            number = self._free.pop()
            self._rows[number] = key
        else:
            number = len(self._rows)
            self._rows.append(key)
            self._uses.append(0)
        self._numbers[key] = number
        return number

    def _release(self, packed: _Packed) -> None:
        for at in range(0, len(packed.rows), 2):
            number = packed.rows[at]
            self._uses[number] -= 1
            if not self._uses[number]:
                del self._numbers[self._rows[number]]
                self._rows[number] = _OTHER
                self._free.append(number)


def _key(row: ThreadRow) -> Key:
    return (row.state, row.call, row.kind, row.name, row.channel)


def _cut(row: ThreadRow) -> Key:
    state = None if row.state is None else row.state[:1]
    kind = row.kind if row.kind in KINDS else _short(row.kind)
    return (state, _short(row.call), kind, _short(row.name), _short(row.channel))


def _short(text: str | None) -> str | None:
    return None if text is None else text[:MAX_TEXT]
