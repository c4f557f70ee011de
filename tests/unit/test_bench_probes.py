# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of scripts/bench probes, and how it reads what programs print."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator

import msgspec
import pytest

from stallscope.model.capture import Capture, Trigger
from stallscope.model.waitlines import SCHEMA, Event
from tests.bench import throughput
from tests.bench.events import events
from tests.bench.probe_exact import differences
from tests.bench.probe_latency import THRESHOLD_MS, lateness, match, percentile
from tests.bench.stats import BenchError
from tests.bench.throughput import Plan, Trial, Window, alternate, cpu_ratios, ratios
from tests.bench.tools import Taken
from tests.bench.watchers import (
    NOTHING,
    PROBE_WAITS,
    Seen,
    Watcher,
    Watching,
    bpftrace_seen,
    first_complaint,
    lines_seen,
    offcputime_seen,
    probe_seen,
    why_not,
)
from tests.support.known_waits import Call

__all__: list[str] = []

MS = 1_000_000
BPFTRACE = """\
Attaching 15 probes...
beat
beat

@count[tracepoint:syscalls:sys_exit_futex]: 4711
@count[tracepoint:syscalls:sys_exit_fsync]: 23
@files[tracepoint:syscalls:sys_exit_fsync, 7]:
[128K, 256K)           9 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|

@futex[140,
    __lll_lock_wait+48
]:
[1K, 2K)               3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
"""
OFFCPUTIME = """\
    [Missed User Stack]
    schedule
    work
    -                target-storm (13350)
        1061

    schedule
    __lll_lock_wait_private
    -                target-storm (13351)
        20
"""


def call(tid: int, start: int, length: int) -> Call:
    return Call(tid, start, length, 0, 0, 1, 0)


def event(tid: int, start: int, length: int, received: int = 0, in_flight: bool = False) -> Event:
    return Event(
        "mutex",
        in_flight=in_flight,
        tid=tid,
        start_ns=start,
        length_ms=length / MS,
        received_ns=received,
    )


def lines_of(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(keepends=True)))


def test_counts_of_peers_are_read() -> None:
    assert bpftrace_seen(lines_of(BPFTRACE)) == Seen({"futex": 4711, "fsync": 23})
    assert bpftrace_seen(lines_of(BPFTRACE)).total == 4734
    assert bpftrace_seen(lines_of("Attaching 15 probes...\nbeat\n")).total == 0
    assert offcputime_seen(lines_of(OFFCPUTIME)) == Seen({"stacks": 2})
    assert offcputime_seen([]).total == 0
    assert lines_seen(lines_of("TIME(s)  CALL\n1.5  fsync\n\n2.5  fsync\n")).total == 2
    assert lines_seen(lines_of("TIME(s)  CALL\n")).total == 0


def waits_line(**fields: object) -> str:
    value = {"type": "waits", "schema": SCHEMA, "ts": 1.0, "seconds": 2.0, "kinds": {}}
    text = json.dumps({**value, "keys": [], "lost": {}, **fields}, separators=(",", ":"))
    return text + "\n"


def kind(count: int) -> dict[str, float]:
    return {"count": count, "total_ms": 1.0, "max_ms": 1.0}


def test_totals_of_the_probe_are_those_of_its_final_line() -> None:
    first = waits_line(kinds={"mutex": kind(5)})
    last = waits_line(kinds={"mutex": kind(31), "fsync": kind(0)}, final=True)
    text = '{"type":"ready"}\n' + first + last
    assert probe_seen(lines_of(text)) == Seen({"mutex": 31}, 2.0)
    with pytest.raises(BenchError, match="no final line"):
        probe_seen(lines_of(first))


def test_the_cause_of_a_programs_complaint_is_reported() -> None:
    said = (
        "sh: 1: modprobe: not found\nUnable to find kernel headers.\n"
        'Traceback (most recent call last):\n  File "x", line 1\n'
    )
    assert first_complaint(said) == "Unable to find kernel headers."
    assert first_complaint("a word\n") == "a word"
    assert first_complaint("") == "it does not say why"
    assert len(first_complaint("error " * 100)) == 160


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 99, 5.0), (range(1, 101), 99, 99), (range(1, 301), 99, 297), ([3, 1, 2], 50, 2)],
)
def test_percentile_is_a_value_of_the_list(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_lateness_counts_from_the_threshold_by_the_clock_of_the_thread() -> None:
    calls = [call(7, 1000 * MS, 25 * MS), call(7, 2000 * MS, 25 * MS)]
    passes = THRESHOLD_MS * MS
    seen = [
        # Reported in flight, and again when it has ended: the first counts.
        event(7, 1000 * MS + 500, passes, 1000 * MS + passes + MS, in_flight=True),
        event(7, 1000 * MS + 500, 25 * MS, 1026 * MS),
        event(8, 2000 * MS + 500, passes, 2000 * MS, in_flight=True),
        event(7, 2000 * MS + 500, 25 * MS, 2026 * MS),
    ]
    assert lateness(calls, seen) == [1.0, 26.0 - THRESHOLD_MS]
    with pytest.raises(BenchError, match="no event"):
        lateness(calls, seen[:2])


WALL_NS = 5_000 * MS


def taken(tid: int, began_ns: int, read_ns: int) -> Taken:
    trigger = Trigger("threshold", "mutex", tid=tid, delay_ms=0.5)
    capture = Capture("bpf", (), (), time_ns=began_ns + WALL_NS, trigger=trigger)
    return Taken(read_ns - 1, read_ns, (), capture=capture)


def test_capture_belongs_to_the_wait_in_its_trigger() -> None:
    """Also where it is finished after the next wait has begun."""
    passes = THRESHOLD_MS * MS
    calls = [call(7, 100 * MS, 30 * MS), call(7, 131 * MS, 30 * MS), call(7, 162 * MS, 30 * MS)]
    first = taken(7, 100 * MS + passes + MS // 2, 100 * MS + passes + 26 * MS)
    last = taken(7, 162 * MS + passes + 20 * MS, 1_000 * MS)
    late = match(calls, [first, last], WALL_NS)
    assert [one.finished_ms for one in late] == [26.0, 1_000.0 - 162.0 - THRESHOLD_MS]
    with pytest.raises(BenchError, match="of no wait"):
        match(calls, [taken(8, 175 * MS, 176 * MS)], WALL_NS)
    with pytest.raises(BenchError, match="of no wait"):
        match(calls, [last, taken(7, 175 * MS, 176 * MS)], WALL_NS)
    with pytest.raises(BenchError, match="which wait"):
        match(calls, [Taken(1, 2, (), capture=Capture("bpf", (), ()))], WALL_NS)


def test_each_wait_has_exactly_one_event() -> None:
    calls = [call(7, 1000, 5 * MS), call(7, 10 * MS, 5 * MS)]
    seen = [
        event(7, 2000, 4 * MS),
        event(7, 2000, 2 * MS, in_flight=True),
        event(7, 10 * MS, 5 * MS + 1000),
    ]
    assert differences(calls, seen) == pytest.approx([1.0, 0.001])
    with pytest.raises(BenchError, match="2 events"):
        differences(calls, [*seen, event(7, 3000, MS)])
    with pytest.raises(BenchError, match="0 events"):
        differences(calls, seen[2:])


def test_a_preempted_thread_may_have_read_the_clock_too_late() -> None:
    late = Call(7, 1000, 9 * MS, 0, 0, 1, involuntary=1)
    assert differences([late], [event(7, 2000, 5 * MS)]) == [0.0]
    assert differences([late], [event(7, 2000, 12 * MS)]) == [3.0]


def test_events_are_read_from_lines_of_their_own_and_from_totals() -> None:
    one = event(7, 1, MS, 3, in_flight=True)
    encoded = msgspec.to_builtins(one)
    text = [
        '{"type":"ready"}\n',
        json.dumps({"type": "event", "event": encoded}) + "\n",
        waits_line(),
        waits_line(events=[encoded, encoded]),
    ]
    assert events(lines_of("".join(text))) == [one] * 3


def test_ratio_is_taken_within_each_pair() -> None:
    trial = Trial(
        on=[Window(90.0, 33.0), Window(45.0, 55.0)], off=[Window(100.0, 30.0), Window(50.0, 50.0)]
    )
    assert ratios(trial) == [0.9, 0.9]
    assert cpu_ratios(trial) == pytest.approx([1.1, 1.1])


def watcher(name: str, script: str) -> Watcher:
    """Return a program that says READY, waits for its input to end, and then prints ``script``."""
    code = f"import sys; print('READY', flush=True); sys.stdin.read(); {script}"
    return Watcher(
        name,
        (sys.executable, "-I", "-S", "-c", code),
        lambda _pid, output: "READY\n" in output,
        bpftrace_seen,
        ends_with_input=True,
    )


def test_windows_with_and_without_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a peer that is measured less often takes its turns, with one that counts."""
    counting = watcher("counting", "print('@count[tracepoint:syscalls:sys_exit_fsync]: 23')")
    monkeypatch.setattr(throughput, "PEERS", (counting,))
    windows: Iterator[float] = iter(range(1, 100))
    ours = dataclasses.replace(counting, name=PROBE_WAITS)
    plan = Plan(pairs=3, peer_pairs=2, seconds=0)
    watchers = [ours, counting, NOTHING]
    seen = alternate(os.getpid(), watchers, lambda: Window(next(windows), 1.0), plan)
    order = {
        name: ([on.rate for on in trial.on], [off.rate for off in trial.off])
        for name, trial in seen.items()
    }
    # On first, then off first, and so on.
    assert order == {
        PROBE_WAITS: ([1, 8, 11], [2, 7, 12]),
        "counting": ([3, 10], [4, 9]),
        NOTHING.name: ([5], [6]),
    }
    assert seen["counting"].kinds == {"fsync": 46}


def test_a_watcher_that_counts_nothing_is_no_measurement() -> None:
    with Watching(watcher("blind", "pass"), os.getpid()) as watching:
        pass
    with pytest.raises(BenchError, match="blind has seen nothing"):
        watching.seen()


def test_a_peer_that_cannot_start_says_why() -> None:
    code = "import sys; sys.exit('Unable to find kernel headers.')"
    broken = Watcher(
        "broken",
        (sys.executable, "-I", "-S", "-c", code),
        lambda _pid, output: "READY" in output,
        bpftrace_seen,
    )
    assert why_not(broken) == "Unable to find kernel headers."
    absent = Watcher("absent", ("no-such-program-here",), lambda *_: True, bpftrace_seen)
    assert why_not(absent) == "no no-such-program-here here: run scripts/setup --tests"
    assert why_not(watcher("good", "pass")) is None
