# SPDX-License-Identifier: Apache-2.0
"""Chrome's Trace Event Format, as Perfetto and chrome://tracing open it: an incident's timeline.

Times are µs since the epoch, which a double holds to a quarter of a µs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from stallscope.base.text import clean, one_line
from stallscope.model.capture import Capture, Thread
from stallscope.model.waitlines import Event, WaitLine
from stallscope.reporters.counts import count_states
from stallscope.reporters.export.source import (
    Entry,
    History,
    Options,
    lock_name,
    process_name,
    rows,
    tool,
)

__all__ = ["render"]

_OWN = 0
"""The pid of tracks that belong to no process."""
_TRACKS = {1: "incident", 2: "triggers", 3: "captures"}
_INCIDENT, _TRIGGERS, _CAPTURES = _TRACKS
_STATES = ("running", "waiting", "idle")
_LONGEST_TEXT = 2000

Args = Mapping[str, str | int | float | None]


def render(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[bytes]:
    """Return triggers, captures, samples and waits, one kind after the other."""
    yield b'{"traceEvents":[\n'
    comma = b""
    for event in _events(entries, histories, options):
        yield comma + msgspec.json.encode(event)
        comma = b",\n"
    other = {"tool": tool(), "title": clean(options.title)}
    yield b'\n],"displayTimeUnit":"ms","otherData":' + msgspec.json.encode(other) + b"}\n"


def _events(
    entries: Iterable[Entry], histories: Iterable[History], options: Options
) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", _OWN, 0, clean(options.title))
    for number, name in _TRACKS.items():
        yield _meta("thread_name", _OWN, number, name)
    names = _Names()
    for history in histories:
        for event in _history(history):
            yield from names.of(event, "", "")
            yield event
    for entry in entries:
        yield from _entry(entry, options, names)


class _Names:
    """Names of processes and threads, each written once."""

    def __init__(self) -> None:
        self._written: set[tuple[int, int]] = set()

    def of(self, event: dict[str, Any], process: str, thread: str) -> Iterator[dict[str, Any]]:
        pid, tid = event["pid"], event["tid"]
        if pid == _OWN:
            return
        if process and (pid, -1) not in self._written:
            self._written.add((pid, -1))
            yield _meta("process_name", pid, 0, process)
        if thread and (pid, tid) not in self._written:
            self._written.add((pid, tid))
            yield _meta("thread_name", pid, tid, thread)


def _entry(entry: Entry, options: Options, names: _Names) -> Iterator[dict[str, Any]]:
    """Yield a capture, its counts of threads by state, and its waits of known length."""
    analysis = entry.analysis
    capture = analysis.capture
    if capture.time_ns is None:  # without a time it cannot be on a timeline
        return
    first = analysis.findings[0] if analysis.findings else None
    args: dict[str, str | int | float | None] = {"capture": clean(entry.name)}
    if first is not None:
        args |= {"verdict": clean(first.title), "confidence": first.confidence}
    name = clean(first.signature or "a stall") if first else "no stall"
    yield _instant(name, _CAPTURES, capture.time_ns, args)
    states = count_states(analysis)
    counts = {state: states[state] for state in _STATES}
    yield _counter("threads", capture.time_ns, counts)
    cause = capture.trigger
    if cause is not None and cause.length_ms is not None:
        what = f"{clean(cause.kind)} {clean(cause.name or '')}".strip()
        waited = {"waiters": cause.waiters, "threshold ms": cause.threshold_ms}
        yield _span(what, cause.pid, cause.tid, capture.time_ns, cause.length_ms, waited)
    for row in rows(entry, options):
        if row.thread.waited_ns:
            event = _waited(row.thread, capture, capture.time_ns, row.state)
            process = process_name(capture, row.thread.process)
            yield from names.of(event, process, clean(row.thread.name))
            yield event


def _waited(thread: Thread, capture: Capture, end_ns: int, state: str) -> dict[str, Any]:
    lock = capture.locks[thread.lock] if thread.lock is not None else None
    known = 0 <= thread.process < len(capture.processes)
    what = f"{lock.kind} {lock_name(lock)}" if lock else clean(thread.activity or state)
    args: dict[str, str | int | float | None] = {"state": state}
    if thread.query:
        args["query"] = one_line(thread.query, _LONGEST_TEXT)
    pid = capture.processes[thread.process].pid if known else 1
    length_ms = (thread.waited_ns or 0) / 1e6
    return _span(what, pid or 1, thread.tid or thread.connection or 0, end_ns, length_ms, args)


def _history(history: History) -> Iterator[dict[str, Any]]:
    incident = history.incident
    yield from _incident(history)
    for fired in incident.triggers:
        args = {"why": clean(fired.why), "value": fired.value, "threshold": fired.threshold}
        yield _instant(clean(fired.trigger), _TRIGGERS, fired.time_ns, args)
    yield from _samples(history)
    yield from _waits(history)


def _incident(history: History) -> Iterator[dict[str, Any]]:
    incident = history.incident
    times = [incident.start_ns, *(fired.time_ns for fired in incident.triggers)]
    times += [entry.time_ns for entry in incident.captures]
    times += [sample.time_ns for sample in history.samples]
    # An ongoing or interrupted incident ends at its last known event.
    end_ns = incident.end_ns or max(times)
    verdict = incident.verdict
    args = {
        "incident": clean(incident.id),
        "verdict": clean(verdict.title) if verdict else "no stall found",
        "ended": "yes" if incident.end_ns is not None else "no",
    }
    length_ms = max(0, end_ns - incident.start_ns) / 1e6
    name = clean((verdict.signature if verdict else None) or "incident")
    yield _span(name, _OWN, _INCIDENT, end_ns, length_ms, args)


def _samples(history: History) -> Iterator[dict[str, Any]]:
    """Yield the numbers that changed; counters of the server are raw."""
    first: dict[tuple[str, str], float] = {}
    moving: set[tuple[str, str]] = set()
    for sample in history.samples:
        for name, value in sample.values.items():
            if first.setdefault((sample.source, name), value) != value:
                moving.add((sample.source, name))
    for sample in history.samples:
        for name, value in sample.values.items():
            if (sample.source, name) in moving and value - value == 0:  # neither NaN nor infinite
                key = f"{clean(sample.source)}: {clean(name)}"
                yield _counter(key, sample.time_ns, {"value": value})


def _waits(history: History) -> Iterator[dict[str, Any]]:
    """Yield each wait once: a long one is reported in flight, and again at its end."""
    offset = _clock_offset(history)
    latest: dict[tuple[int, int], tuple[Event, WaitLine]] = {}
    for line in history.waits:
        if line.final:
            continue
        for kind, waits in line.kinds.items():
            if waits.count or waits.in_flight:
                name = f"waits: {clean(kind)}"
                yield _counter(name, int(line.ts * 1e9), {"total ms": waits.total_ms})
        for event in line.events:
            if event.tid is not None and event.start_ns is not None:
                latest[(event.tid, event.start_ns)] = (event, line)
    for event, line in latest.values():
        end_ns = int(line.ts * 1e9)
        if offset is not None and event.start_ns is not None:
            end_ns = event.start_ns + offset + int(event.length_ms * 1e6)
        args: dict[str, str | int | float | None] = {
            "waiters": event.waiters,
            "owner": event.owner_tid,
            "in flight": "yes" if event.in_flight else "no",
            "stack": clean(" < ".join(event.frames)[:_LONGEST_TEXT]),
        }
        name = f"{clean(event.kind)} {clean(event.name or '')}".strip()
        pid = line.targets[0].pid if len(line.targets) == 1 else history.incident.target.pid
        yield _span(name, pid, event.tid or 0, end_ns, event.length_ms, args)


def _clock_offset(history: History) -> int | None:
    """Return the nanoseconds from CLOCK_MONOTONIC to the wall clock."""
    for sample in history.samples:
        return sample.time_ns - sample.clock_ns
    return None


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _instant(name: str, track: int, time_ns: int, args: Args) -> dict[str, Any]:
    event = {"ph": "i", "name": name, "pid": _OWN, "tid": track, "ts": time_ns / 1e3, "s": "g"}
    return {**event, "cat": _TRACKS[track], "args": args}


def _counter(name: str, time_ns: int, values: Mapping[str, float]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": _OWN, "tid": 0, "ts": time_ns / 1e3, "args": values}


def _span(
    name: str, pid: int, tid: int, end_ns: int, length_ms: float, args: Args
) -> dict[str, Any]:
    start_us = end_ns / 1e3 - length_ms * 1e3
    return {
        "ph": "X",
        "name": name,
        "cat": "wait",
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": length_ms * 1e3,
        "args": args,
    }
