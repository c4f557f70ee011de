# SPDX-License-Identifier: Apache-2.0
"""The timeline in Chrome's Trace Event Format, by the rules that its description has.

Perfetto's own trace processor cannot be had from a package registry, so its reader is not run.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from stallscope.reporters.export import chrometrace
from stallscope.reporters.export.source import Entry, History, Options
from tests.unit.exports import SECOND, counted, dumps, entry, history, hostile, series, total

START = 1_763_714_796 * SECOND
_NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
}


def trace(entries: Iterable[Entry], histories: Iterable[History] = ()) -> list[dict[str, Any]]:
    """Return the events, each of which keeps the rules of its phase."""
    value = json.loads(b"".join(chrometrace.render(entries, histories, Options())))
    assert value["displayTimeUnit"] in ("ms", "ns")
    events = value["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        assert _NEEDED[event["ph"]] <= event.keys()
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert math.isfinite(event["ts"])
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert set(event["args"]) == {"name"}
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        elif event["ph"] == "C":
            assert event["args"]
            assert all(math.isfinite(number) for number in event["args"].values())
        else:
            assert event["dur"] >= 0
    return events


def of(events: list[dict[str, Any]], phase: str, name: str = "") -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == phase and (not name or e["name"] == name)]


def test_total() -> None:
    for entries in (series(3), [entry(hostile("x"))]):
        counters = of(trace(entries), "C", "threads")
        assert [sum(event["args"].values()) for event in counters] == [total([e]) for e in entries]


def test_captures_are_instants() -> None:
    instants = of(trace(series(3)), "i")
    assert [event["ts"] for event in instants] == [
        pytest.approx((START + 123_456_789 + number * SECOND) / 1e3) for number in range(3)
    ]
    # Of two waiters alone their own wait is surer than its cause.
    assert [event["name"] for event in instants] == [
        "table-open-lock",
        "innodb-table-stats",
        "innodb-table-stats",
    ]


def test_a_dump_without_time_is_not_on_it() -> None:
    assert {event["ph"] for event in trace([*dumps(), counted()])} == {"M"}


def test_an_incident() -> None:
    events = trace(series(1), [history()])
    (whole,) = of(events, "X", "table-open-lock")
    assert (whole["ts"], whole["dur"]) == ((START + SECOND) / 1e3, 3e6)
    (fired,) = of(events, "i", "threads-running")
    assert fired["ts"] == (START + SECOND) / 1e3
    assert fired["args"]["why"] == "LOCK_open 187 > 40"
    running = of(events, "C", "status: Threads_running")
    assert [event["args"]["value"] for event in running] == [3, 4, 5, 6, 7]
    # What never changed says nothing on a timeline.
    assert not of(events, "C", "status: Uptime_always")


def test_a_wait_is_one_span_at_the_time_of_its_clock() -> None:
    (wait,) = of(trace([], [history()]), "X", "mutex LOCK_open")
    # It began 1001 s after boot, a second after the first sample, and was reported twice.
    assert wait["ts"] == (START + SECOND) / 1e3
    assert wait["dur"] == 400_000
    assert (wait["pid"], wait["tid"]) == (100, 101)
    assert wait["args"]["in flight"] == "no"


def test_the_wait_that_a_capture_was_taken_for() -> None:
    (wait,) = of(trace(series(1)), "X", "mutex LOCK_open")
    assert wait["dur"] == pytest.approx(201_250)


def test_threads_are_named_once() -> None:
    events = trace([entry(hostile("worker", "other"))] * 3)
    names = Counter(e["args"]["name"] for e in of(events, "M") if e["pid"] == 1)
    assert names == {"worker": 2}  # the process, and the one thread whose wait has a length
    (first, *_) = of(events, "X")
    assert first["name"] == "mutex worker"
    assert first["dur"] == 1e6


def test_a_number_that_is_none() -> None:
    made = history("nothing")
    for sample, value in zip(made.samples, (math.nan, math.inf, -math.inf, 1.0, 2.0), strict=True):
        sample.values["odd"] = value
    odd = of(trace([], [made]), "C", "status: odd")
    assert [event["args"]["value"] for event in odd] == [1, 2]
