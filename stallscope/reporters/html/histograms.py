# SPDX-License-Identifier: Apache-2.0
"""Lines of the wait programs as histograms: how long waits for locks and disks took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from stallscope.analyzers.names import normalize
from stallscope.model.waitkinds import FILE_KINDS, IDLE_KINDS, LOCK_KINDS
from stallscope.model.waitlines import Key, Notice, WaitLine
from stallscope.reporters.html.pack import shown
from stallscope.reporters.lines import short_name
from stallscope.reporters.units import duration, number, size

__all__ = ["Bar", "Histogram", "KeyRow", "build", "files", "keys"]

MAX_KEYS = 30
MOST_TICKS = 7
"""So many labels fit below a drawing."""
LEAST_SHARE = 0.001
"""Of the longest wait: what has less, and was never above its threshold, is left out."""
WIDTH, HEIGHT = 360, 96
"""Size of a drawing, in its own units."""


class Bar(msgspec.Struct, frozen=True):
    """Waits of one power of two, as drawn."""

    x: float
    y: float
    width: float
    height: float
    count: int
    label: str
    slow: bool
    """Over the threshold."""


class Histogram(msgspec.Struct, frozen=True):
    """How long the waits of one kind took; texts are ready to be shown."""

    kind: str
    lock: bool
    """A lock; otherwise a file."""
    count: int
    over: int
    in_flight: int
    total: str
    longest: str
    longest_ms: float
    threshold: str
    bytes: str
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]


class KeyRow(msgspec.Struct, frozen=True):
    """A lock or file of the table."""

    kind: str
    name: str
    count: str
    over: int
    total: str
    longest: str
    in_flight: int
    owner: int | None
    waiter: str
    holder: str


class _Sum:
    def __init__(self) -> None:
        self.count = self.over = self.in_flight = self.bytes = 0
        self.total_ms = self.max_ms = 0.0
        self.threshold_ms: float | None = None
        self.buckets: Counter[int] = Counter()


def _lines(lines: Iterable[WaitLine | Notice]) -> list[WaitLine]:
    """Return the lines to add up: the totals of a run, or else its intervals."""
    found = [line for line in lines if isinstance(line, WaitLine)]
    final = [line for line in found if line.final]
    return final[-1:] or found


def build(lines: Sequence[WaitLine | Notice]) -> list[Histogram]:
    """Return a histogram of each kind of wait, locks first, the longest total first."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for line in _lines(lines):
        for kind, waits in line.kinds.items():
            if kind in IDLE_KINDS or not (waits.count or waits.in_flight):
                continue
            item = sums[kind]
            item.count += waits.count
            item.over += waits.over
            item.bytes += waits.bytes or 0
            item.in_flight = max(item.in_flight, waits.in_flight)
            item.total_ms += waits.total_ms
            item.max_ms = max(item.max_ms, waits.max_ms)
            item.threshold_ms = waits.threshold_ms
            for start, _, count in waits.histogram:
                item.buckets[max(0, start.bit_length() - 1)] += count
    done = [_histogram(kind, item) for kind, item in sums.items()]
    return sorted(done, key=lambda h: (not h.lock, -h.longest_ms, h.kind))


def _histogram(kind: str, item: _Sum) -> Histogram:
    bars, ticks = _draw(item)
    return Histogram(
        kind=shown(kind),
        lock=kind in LOCK_KINDS,
        count=item.count,
        over=item.over,
        in_flight=item.in_flight,
        total=duration(item.total_ms),
        longest=duration(item.max_ms),
        longest_ms=item.max_ms,
        threshold="" if item.threshold_ms is None else duration(item.threshold_ms),
        bytes=size(item.bytes) if item.bytes else "",
        bars=bars,
        ticks=ticks,
    )


def _draw(item: _Sum) -> tuple[tuple[Bar, ...], tuple[tuple[float, str], ...]]:
    if not item.buckets:
        return (), ()
    low, high = min(item.buckets), max(item.buckets)
    high = max(high, low + 7)
    step = WIDTH / (high - low + 1)
    most = max(item.buckets.values())
    limit_ns = (item.threshold_ms or 0.0) * 1e6
    bars = []
    for power, count in sorted(item.buckets.items()):
        # A bar is never too small to see: one long wait among a million short ones matters.
        height = max(3.0, HEIGHT * count / most)
        start, end = 1 << power, (1 << (power + 1)) - 1
        bars.append(
            Bar(
                x=round((power - low) * step + step * 0.08, 2),
                y=round(HEIGHT - height, 2),
                width=round(step * 0.84, 2),
                height=round(height, 2),
                count=count,
                label=f"{duration(start / 1e6)} to {duration((end + 1) / 1e6)}",
                slow=bool(limit_ns) and end >= limit_ns,
            )
        )
    every = -(-(high - low + 1) // MOST_TICKS)
    ticks = tuple(
        (round((power - low) * step, 2), duration((1 << power) / 1e6))
        for power in range(low, high + 1, every)
    )
    return tuple(bars), ticks


def files(lines: Sequence[WaitLine | Notice]) -> dict[int, str]:
    """Return what threads waited for in files when they waited longer than the threshold: TID →
    ``fsync of /var/lib/mysql/ib_logfile0``."""
    found: dict[int, str] = {}
    for line in lines:
        for key in line.keys if isinstance(line, WaitLine) else ():
            if key.kind in FILE_KINDS:
                found |= {w.tid: f"{key.kind} of {key.name}" for w in key.waiters if w.tid}
    return found


def keys(lines: Sequence[WaitLine | Notice]) -> tuple[list[KeyRow], int]:
    """Return the locks and files that were waited for longest, and how many others there are."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    count: Counter[tuple[str, str]] = Counter()
    over: Counter[tuple[str, str]] = Counter()
    longest: dict[tuple[str, str], float] = defaultdict(float)
    waiting: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], Key] = {}
    for line in _lines(lines):
        for key in line.keys:
            if key.kind in IDLE_KINDS:
                continue
            at = (key.kind, key.name)
            total[at] += key.total_ms
            count[at] += key.count
            over[at] += key.over
            longest[at] = max(longest[at], key.longest_ms)
            waiting[at] = max(waiting[at], key.in_flight)
            if at not in latest or len(key.waiters) >= len(latest[at].waiters):
                latest[at] = key
    waited = {at: max(total[at], longest[at]) for at in latest}
    least = LEAST_SHARE * max(waited.values(), default=0.0)
    ordered = sorted(latest, key=lambda at: (-waited[at], at))
    ordered = [at for at in ordered if waited[at] >= least or over[at] or waiting[at]][:MAX_KEYS]
    rows = [
        KeyRow(
            kind=shown(at[0]),
            name=shown(at[1]),
            count=number(count[at]),
            over=over[at],
            total=duration(total[at]),
            longest=duration(longest[at]),
            in_flight=waiting[at],
            owner=latest[at].owner_tid,
            waiter=_excerpt(latest[at].waiters[0].frames) if latest[at].waiters else "",
            holder=_excerpt(latest[at].holders[0].frames) if latest[at].holders else "",
        )
        for at in ordered
    ]
    return rows, len(latest) - len(rows)


def _excerpt(frames: Sequence[str]) -> str:
    return " < ".join(short_name(normalize(frame)) for frame in frames[:8])
