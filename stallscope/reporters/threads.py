# SPDX-License-Identifier: Apache-2.0
"""What threads did over time: a table, and the rows with the most threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.text import clean, end_of_name, without_surrogates
from stallscope.model import threadhistory
from stallscope.model.threadhistory import IDLE, OTHER, RUNNING, Bucket, Top
from stallscope.model.waitlines import ThreadRow, ThreadSample
from stallscope.reporters.lines import Line, clock
from stallscope.reporters.units import number

__all__ = ["SCHEMA", "dumps", "heading", "row_text", "table", "top_lines", "width_of_bucket"]

SCHEMA = "stallscope.history/1"
NS = 10**9
MOST_BUCKETS = 20
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300)
"""Seconds of a bucket."""
_COLUMN = 8
_FIXED = ("threads", "active", RUNNING)
_LEAST = 8
"""The least width of a column of figures, with its space."""
_NAMES = {"uninterruptible": "state-D", "sync_file_range": "sync-range"}
"""Headings that are shorter than their activities."""


def width_of_bucket(samples: Sequence[ThreadSample]) -> int:
    """Return nanoseconds of a bucket so that there are few of them."""
    span = (samples[-1].time_ns - samples[0].time_ns) / NS + 1 if samples else 1
    wanted = span / MOST_BUCKETS
    return next((width for width in _WIDTHS if width >= wanted), _WIDTHS[-1]) * NS


def table(buckets: Sequence[Bucket], width: int) -> Iterator[Line]:
    """Yield the threads by activity over time, the most important ones in columns."""
    sums: dict[str, float] = {}
    for bucket in buckets:
        for name, count in bucket.counts.items():
            if threadhistory.active(name) and name != RUNNING:
                sums[name] = sums.get(name, 0.0) + count * bucket.samples
    kinds = sorted(sums, key=lambda name: -sums[name])
    shown = threadhistory.in_order(_fitting(kinds, width - _COLUMN - len(_FIXED) * _LEAST))
    rest = [name for name in kinds if name not in shown]
    heads = [*_FIXED, *map(heading, shown), *(["others"] if rest else [])]
    widths = [_width(head) for head in heads]
    yield Line(f"{'time':<{_COLUMN}}{_cells(heads, widths)}", "bold")
    for bucket in buckets:
        figures = [
            bucket.threads,
            bucket.active,
            *(bucket.counts.get(name, 0.0) for name in (RUNNING, *shown)),
            *([sum(bucket.counts.get(name, 0.0) for name in rest)] if rest else []),
        ]
        text = _cells(list(map(_mean, figures)), widths)
        yield Line(f"{clock(bucket.time_ns / NS):<{_COLUMN}}{text}")


def _fitting(kinds: Sequence[str], room: int) -> Sequence[str]:
    """Return the first kinds whose columns fit; with others there is a column for those."""
    if sum(map(_width, kinds)) <= room:
        return kinds
    room -= _LEAST
    for count, kind in enumerate(kinds):
        room -= _width(kind)
        if room < 0:
            return kinds[:count]
    return kinds


def heading(activity: str) -> str:
    """Return a short name of an activity."""
    return _NAMES.get(activity, activity)


def _width(name: str) -> int:
    return max(_LEAST, len(heading(name)) + 1)


def _cells(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


def _mean(value: float) -> str:
    """Return an average; a small one never looks like none."""
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}".removesuffix(".0") if value < 100 else number(round(value))


def top_lines(tops: Sequence[Top], samples: int, width: int, most: int) -> Iterator[Line]:
    """Yield the rows with the most threads; idle ones are dim."""
    if not tops:
        return
    yield Line(f"{'threads':>7} {'at most':>7} {'seen':>5}  what they do", "bold")
    for one in tops[:most]:
        share = f"{one.samples / max(1, samples):.0%}"
        head = f"{_mean(one.mean):>7} {number(one.row.count):>7} {share:>5}  "
        active = threadhistory.active(threadhistory.activity(one.row))
        text = head + row_text(one.row, max(10, width - len(head)))
        yield Line(text, "" if active else "dim")
    if len(tops) > most:
        left = sum(one.mean for one in tops[most:])
        yield Line(f"{_mean(left):>7} in {len(tops) - most} other rows", "dim")


def row_text(row: ThreadRow, room: int) -> str:
    """Describe what threads of a row do."""
    activity = threadhistory.activity(row)
    what = activity
    if activity == RUNNING:
        what = "running" + (f" in {clean(row.call)}" if row.call else "")
    elif activity == IDLE:
        what = f"idle in {clean(row.call or '?')}" + (f" ({row.kind})" if row.kind else "")
    elif activity == OTHER:
        what = clean(row.kind or row.call or "the rest, without details")
    elif row.call and row.call != activity:
        what = f"{activity} ({clean(row.call)})"
    channel = f", in {clean(row.channel)}" if row.channel else ""
    if row.name:
        left = max(8, room - len(what) - len(channel) - 1)
        first, _, after = what.partition(" ")
        name = end_of_name(clean(row.name), left)
        what = " ".join(filter(None, (first, name, after)))
    text = what + channel
    return text if len(text) <= room else text[: room - 1] + "…"


def dumps(
    samples: Sequence[ThreadSample], *, source: str, agent: int | None, name: str, pid: int
) -> str:
    """Return one line of JSON."""
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "source": source,
        "agent": agent,
        "target": {"name": name, "pid": pid},
        "samples": [_sample(sample) for sample in samples],
    }
    return msgspec.json.encode(without_surrogates(value)).decode("utf-8")


def _sample(sample: ThreadSample) -> dict[str, Any]:
    counts = threadhistory.activities(sample)
    active = sum(count for name, count in counts.items() if threadhistory.active(name))
    return {
        "time_ns": sample.time_ns,
        "threads": sample.threads,
        "active": active,
        "activity": {name: counts[name] for name in threadhistory.in_order(counts)},
        "rows": msgspec.to_builtins(sample.rows),
    }
