# SPDX-License-Identifier: Apache-2.0
"""Firefox Profiler's processed format: src/types/profile.ts of firefox-devtools/profiler.

Each thread is a track with a sample for each capture; captures and waits for locks are markers.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from stallscope.base.text import clean
from stallscope.model.capture import Capture, Lock, Thread
from stallscope.reporters.export.firefoxtables import Tables
from stallscope.reporters.export.source import (
    Entry,
    Options,
    lock_name,
    process_name,
    rows,
    tool,
)

__all__ = ["VERSION", "render"]

VERSION = 70
"""The newest documented version; the profiler converts older ones when it opens them."""
_GECKO_VERSION = 36

_INSTANT, _INTERVAL = 0, 1  # MarkerPhase of src/types/gecko-profile.ts

_APART_MS = 1000.0
"""The distance of captures whose times are not known."""

_MARKER_SCHEMA = [
    {
        "name": "Wait",
        "tooltipLabel": "waits for {marker.data.lock}",
        "tableLabel": "{marker.data.lock}",
        "chartLabel": "{marker.data.lock}",
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "fields": [
            {"key": "lock", "label": "Lock", "format": "string"},
            {"key": "kind", "label": "Kind", "format": "string"},
            {"key": "owner", "label": "Owner", "format": "string"},
            {"key": "captures", "label": "Seen in captures", "format": "integer"},
        ],
    },
    {
        "name": "Capture",
        "tooltipLabel": "{marker.data.capture}",
        "tableLabel": "{marker.data.verdict}",
        "chartLabel": "{marker.data.verdict}",
        "display": ["marker-chart", "marker-table"],
        "fields": [
            {"key": "capture", "label": "Capture", "format": "string"},
            {"key": "verdict", "label": "Verdict", "format": "string"},
        ],
    },
]


class _Moment(msgspec.Struct, frozen=True, gc=False):
    """A thread in one capture. ``capture`` is its number; ``waited`` is in ms."""

    capture: int
    stack: int
    count: int
    lock: tuple[str, str, str] | None
    """The lock's name, kind and owner."""
    waited: float


class _Track:
    def __init__(self, pid: int, process: str, thread: Thread) -> None:
        self.pid = pid
        self.process = process
        self.tid = thread.tid
        self.name = clean(thread.name) or "thread"
        self.moments: list[_Moment] = []


class _Mark(msgspec.Struct, frozen=True):
    """A marker. ``start`` and ``end`` in ms; without an end it is a moment."""

    kind: str
    start: float
    end: float | None
    data: dict[str, str | int]


class _Seen(msgspec.Struct, frozen=True):
    """The data of a capture that the profile needs."""

    name: str
    time_ns: int | None
    verdict: str


def render(entries: Iterable[Entry], options: Options) -> Iterator[bytes]:
    """Return one profile: a track for each thread of each process."""
    tables = Tables()
    tracks: dict[tuple[int, int, str], _Track] = {}
    seen: list[_Seen] = []
    for entry in entries:
        findings = entry.analysis.findings
        verdict = clean(findings[0].title) if findings else "no stall found"
        time_ns = entry.analysis.capture.time_ns
        _add(tracks, entry, options, tables, len(seen))
        seen.append(_Seen(clean(entry.name), time_ns, verdict))
    start_ns, times = _times(seen)
    ordered = sorted(tracks.values(), key=lambda track: (track.pid, track.tid != track.pid))
    yield b'{"threads":['
    marked: set[int] = set()
    for number, track in enumerate(ordered):
        marks = list(_waits(track.moments, times))
        if track.pid not in marked:
            marks += _captures(seen, times)
        marked.add(track.pid)
        yield (b"," if number else b"") + msgspec.json.encode(_thread(track, times, marks, tables))
    rest = {
        "meta": _meta(options, tables, start_ns, sorted(times)),
        "libs": tables.libraries(),
        "shared": tables.shared(),
    }
    yield b"]," + msgspec.json.encode(rest)[1:]


def _add(
    tracks: dict[tuple[int, int, str], _Track],
    entry: Entry,
    options: Options,
    tables: Tables,
    number: int,
) -> None:
    capture = entry.analysis.capture
    locks = [_lock(lock) for lock in capture.locks]
    stacks: dict[tuple[tuple[int, int], str], int] = {}
    for row in rows(entry, options):
        thread = row.thread
        key = (row.key, row.state) if row.key else None
        stack = stacks.get(key) if key else None
        if stack is None:
            stack = tables.stack(row)
            if key:
                stacks[key] = stack
        pid = _pid(capture, thread)
        # Threads without an id can only be distinguished by their names.
        who = (pid, thread.tid, "" if thread.tid else thread.name)
        track = tracks.get(who)
        if track is None:
            track = tracks[who] = _Track(pid, process_name(capture, thread.process), thread)
        lock = locks[thread.lock] if thread.lock is not None else None
        waited = (thread.waited_ns or 0) / 1e6
        track.moments.append(_Moment(number, stack, thread.count, lock, waited))


def _pid(capture: Capture, thread: Thread) -> int:
    known = 0 <= thread.process < len(capture.processes)
    return capture.processes[thread.process].pid if known else 0


def _lock(lock: Lock) -> tuple[str, str, str]:
    owner = f"thread {lock.owner_tid}" if lock.owner_tid else "unknown"
    return lock_name(lock), str(lock.kind), owner


def _times(seen: Sequence[_Seen]) -> tuple[int, list[float]]:
    """Return the first time in ns since the epoch, and each capture's in ms after it."""
    known = [item.time_ns for item in seen if item.time_ns is not None]
    if len(known) < len(seen) or not known:
        return min(known, default=0), [number * _APART_MS for number in range(len(seen))]
    first = min(known)
    return first, [(time_ns - first) / 1e6 for time_ns in known]


def _waits(moments: Sequence[_Moment], times: Sequence[float]) -> Iterator[_Mark]:
    """Yield a mark for each wait, across captures in which the thread is in the same wait."""
    open_: _Mark | None = None
    for moment in sorted(moments, key=lambda moment: times[moment.capture]):
        now = times[moment.capture]
        if open_ is not None and (moment.lock is None or open_.data["lock"] != moment.lock[0]):
            yield open_
            open_ = None
        if moment.lock is None:
            continue
        name, kind, owner = moment.lock
        start = now - moment.waited if open_ is None else open_.start
        count = 1 if open_ is None else int(open_.data["captures"]) + 1
        data: dict[str, str | int] = {"lock": name, "kind": kind, "owner": owner}
        open_ = _Mark("Wait", max(0.0, start), now, {**data, "captures": count})
    if open_ is not None:
        yield open_


def _captures(seen: Sequence[_Seen], times: Sequence[float]) -> Iterator[_Mark]:
    for item, now in zip(seen, times, strict=True):
        yield _Mark("Capture", now, None, {"capture": item.name, "verdict": item.verdict})


def _thread(
    track: _Track, times: Sequence[float], marks: list[_Mark], tables: Tables
) -> dict[str, Any]:
    moments = sorted(track.moments, key=lambda moment: times[moment.capture])
    marks.sort(key=lambda mark: mark.start)
    return {
        "processType": "default",
        "processName": track.process,
        "processStartupTime": 0,
        "processShutdownTime": None,
        "registerTime": 0,
        "unregisterTime": None,
        "pausedRanges": [],
        "name": track.name,
        "isMainThread": track.tid == track.pid,
        "pid": str(track.pid),
        "tid": track.tid,
        "showMarkersInTimeline": True,
        "samples": {
            "stack": [moment.stack for moment in moments],
            "time": [times[moment.capture] for moment in moments],
            "weight": [moment.count for moment in moments],
            "weightType": "samples",
            "length": len(moments),
        },
        "markers": {
            "name": [tables.string(mark.kind) for mark in marks],
            "startTime": [mark.start for mark in marks],
            "endTime": [mark.end for mark in marks],
            "phase": [_INSTANT if mark.end is None else _INTERVAL for mark in marks],
            "category": [0] * len(marks),
            "data": [{"type": mark.kind, **mark.data} for mark in marks],
            "length": len(marks),
        },
    }


def _meta(
    options: Options, tables: Tables, start_ns: int, times: Sequence[float]
) -> dict[str, Any]:
    apart = [later - one for one, later in itertools.pairwise(times) if later > one]
    return {
        "interval": statistics.median(apart) if apart else 1.0,
        "startTime": start_ns / 1e6,
        "processType": 0,
        "product": clean(options.title),
        "importedFrom": tool(),
        "stackwalk": 1,
        "version": _GECKO_VERSION,
        "preprocessedProfileVersion": VERSION,
        "categories": tables.categories(),
        "markerSchema": _MARKER_SCHEMA,
        "symbolicated": True,
        "sourceCodeIsNotOnSearchfox": True,
        "keepProfileThreadOrder": True,
        "usesOnlyOneStackType": True,
    }
