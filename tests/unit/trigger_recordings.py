# SPDX-License-Identifier: Apache-2.0
"""Recordings of real servers (tests/support/record_samples.py), cut up and combined."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.collectors.triggers import recording
from stallscope.collectors.triggers.recording import Record
from stallscope.model.samples import UNANSWERED, Sample

__all__ = ["FOLDER", "healthy_time", "load", "mark"]

NS = 1_000_000_000
FOLDER = Path(__file__).parents[1] / "data" / "triggers"
GAUGES = frozenset(("Threads_running", "Threads_connected", "Innodb_row_lock_current_waits"))
ALSO_COUNTERS = ("_us",)
LOST = 0.02
JITTER_NS = 30_000_000


def load(name: str) -> list[Record]:
    """Return the records of one recording. Each failed heartbeat in them is of a server that hung;
    they are older than the value that says so."""
    records = list(recording.read(FOLDER / f"{name}.jsonl.zst"))
    return [_owed(record) for record in records]


def _owed(record: Record) -> Record:
    sample = record.sample
    if sample is None or sample.source != "heartbeat" or sample.error is None:
        return record
    owed = msgspec.structs.replace(sample, values={UNANSWERED: sample.elapsed_ms})
    return Record(record.time_ns, record.clock_ns, sample=owed)


def mark(records: Sequence[Record], what: str) -> int:
    """Return the clock at which a mark was set."""
    return next(record.clock_ns for record in records if record.mark == what)


def is_counter(name: str) -> bool:
    return ("." not in name and name not in GAUGES) or name.endswith(ALSO_COUNTERS)


class _Step(msgspec.Struct):
    """A record with its distance from the one before, and with the growth of its counters."""

    record: Record
    after_ns: int
    growth: dict[str, float]


def _segments(records: Sequence[Record]) -> list[list[_Step]]:
    """Cut at the marks: each is one kind of load."""
    found: list[list[_Step]] = []
    latest: dict[str, float] = {}
    clock = records[0].clock_ns
    for record in records:
        if record.mark is not None or not found:
            found.append([])
        if record.mark is not None:
            continue
        values = record.sample.values if record.sample else {}
        counters = {name: value for name, value in values.items() if is_counter(name)}
        growth = {name: value - latest.get(name, value) for name, value in counters.items()}
        latest |= counters
        found[-1].append(_Step(record, record.clock_ns - clock, growth))
        clock = record.clock_ns
    return [segment for segment in found if segment]


def healthy_time(records: Sequence[Record], seconds: int, seed: int) -> Iterator[Record]:
    """Yield such a time of the loads of a recording, in another order each time around.

    All is made some larger or smaller, samples come early, late or not at all, and the wall clock
    jumps.
    """
    randomness = random.Random(seed)
    segments = _segments(records)
    counters: dict[str, float] = {}
    clock, wall = 1000 * NS, 0
    while clock < (1000 + seconds) * NS:
        randomness.shuffle(segments)
        for segment in segments:
            factor = randomness.uniform(0.75, 1.25)
            wall += randomness.choice((0, 0, -3600 * NS, 86400 * NS))
            for step in segment:
                clock += step.after_ns
                late = max(0, int(randomness.gauss(0, 1) * JITTER_NS))
                changed = _changed(step, factor, counters)
                if randomness.random() > LOST:
                    yield _at(step.record, changed, clock + late, wall + clock)


def _changed(step: _Step, factor: float, counters: dict[str, float]) -> dict[str, float]:
    values = dict(step.record.sample.values) if step.record.sample else {}
    for name, growth in step.growth.items():
        much = 1.0 if name.startswith("Uptime") else factor
        counters[name] = counters.get(name, values[name]) + max(0.0, growth) * much
        values[name] = counters[name]
    for name in values.keys() - step.growth.keys():
        if name in GAUGES or name.startswith("processlist."):
            values[name] = float(round(values[name] * factor))
        elif name.startswith("heartbeat."):
            values[name] *= factor
    return values


def _at(record: Record, values: dict[str, float], clock_ns: int, time_ns: int) -> Record:
    if record.sample is None:
        return Record(time_ns, clock_ns, line=record.line)
    old = record.sample
    sample = Sample(old.source, time_ns, clock_ns, values, old.elapsed_ms, old.error)
    return Record(time_ns, clock_ns, sample=sample)
