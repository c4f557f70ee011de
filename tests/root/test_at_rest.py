# SPDX-License-Identifier: Apache-2.0
"""A probe at rest: nothing is attached until a wait is long, and no long wait is missed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.root.support import assert_unharmed
from tests.support.bpf_objects import attached, held, loaded
from tests.support.known_waits import Call, Made, known_waits, make
from tests.support.servers import wait_until
from tests.support.targets import Target
from tests.support.usage import process_cpu_ns
from tests.support.watching import Line, Watcher, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

THRESHOLD_MS = 200
LATE_MS = 100
"""After its threshold a wait is reported within this time, as a rule."""
MOST_LATE_MS = 300
"""And always within this one: a pass that cost more than usual, as on a busy machine, puts the next
one off, for all passes together may take 0.4 % of a core."""
HELD_MS = 500
LULL_SECONDS = 1.5
"""Without a long wait, so that the next one is news: more than a second."""
MAX_CPU_NS = 200_000_000
"""Of a probe at rest in a second; its passes take 4 ms."""
AT_REST = ("--watch", "--at-rest", "--events", "--threshold", str(THRESHOLD_MS))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with known_waits(tmp_path, waiters=4, idle=30, calm=True) as target:
        yield target
        assert target.running()
        assert_unharmed(target.pid)


def is_attached(watch: Watcher) -> bool:
    return attached([watch.pid]) > 0


def event_of(watch: Watcher, call: Call, *, in_flight: bool) -> Line:
    return watch.event(
        lambda event: (
            event["tid"] == call.tid
            and event["in_flight"] is in_flight
            and event["start_ns"] + event["length_ms"] * 1e6 >= call.start_ns
        ),
        f"event of thread {call.tid}",
    )


def late_ms(watch: Watcher, made: Made) -> float:
    """Return how long after its threshold the last of these waits was reported in flight.

    Asserts that each was, with its stack.
    """
    lates: list[float] = []
    for call in made.calls:
        event = event_of(watch, call, in_flight=True)
        lates.append((event["received_ns"] - call.start_ns) / 1e6 - THRESHOLD_MS)
        assert -LATE_MS < lates[-1] < MOST_LATE_MS, event
        assert event["label"] == "verified", event
        assert event["frames"], event
    return max(lates)


def test_nothing_is_attached_until_a_wait_is_long(target: Target) -> None:
    with watcher(target.pid, options=AT_REST) as watch:
        # Its 30 threads on a condition wait for work, however long.
        make(target, "cond 1 1000 2")
        assert attached([watch.pid]) == 0
        assert not watch.events()
        lates = []
        for _ in range(3):
            lates.append(late_ms(watch, make(target, f"mutex 1 {HELD_MS} 3")))
            assert is_attached(watch)
        assert median(lates) < LATE_MS, lates
        # Their ends are seen by the programs, with who woke them.
        made = make(target, f"rwlock 1 {HELD_MS}")
        (call,) = made.calls
        length_ms = event_of(watch, call, in_flight=False)["length_ms"]
        # The thread may be preempted after its wait and before it reads the clock.
        asleep_ms = (call.released_ns - call.asleep_ns) / 1e6
        assert asleep_ms <= length_ms <= call.length_ns / 1e6 + 1
        wait_until(lambda: not is_attached(watch), "it rests again")
        before_ns = process_cpu_ns(watch.pid)
        make(target, "cond 1 1000 2")
        assert process_cpu_ns(watch.pid) - before_ns < MAX_CPU_NS
        late_ms(watch, make(target, f"mutex 1 {HELD_MS} 3"))


def test_waits_are_seen_where_the_kernel_refuses_to_attach(target: Target) -> None:
    with watcher(target.pid, options=(*AT_REST, "--no-attach")) as watch:
        lates = []
        for kind in ("mutex", "rwlock", "mutex"):
            made = make(target, f"{kind} 1 {HELD_MS} 3")
            lates.append(late_ms(watch, made))
            for call in made.calls:
                ended = event_of(watch, call, in_flight=False)
                # It is known to one pass.
                assert HELD_MS - THRESHOLD_MS <= ended["length_ms"] <= call.length_ns / 1e6 + 1
        assert median(lates) < LATE_MS, lates
        assert attached([watch.pid]) == 0


def test_a_stall_takes_its_capture(target: Target) -> None:
    with watcher(target.pid, options=(*AT_REST, "--capture-threshold", str(THRESHOLD_MS))) as watch:
        made = make(target, f"mutex 1 {HELD_MS} 4")
        capture = watch.capture()
    waiting = {call.tid for call in made.calls}
    assert {wait.tid for wait in capture.threads} >= waiting
    assert capture.trigger is not None
    assert capture.trigger.name == "the_mutex"


def test_the_first_long_wait_is_in_a_line_at_once(target: Target) -> None:
    options = (*AT_REST, "--interval", "600000")
    with watcher(target.pid, options=options) as watch:
        for number in range(2):
            start = len(watch.lines)
            make(target, "hold mutex 2")
            line = watch.line(lambda line: line["type"] == "waits", "line", start=start)
            waiting = [key for key in line["keys"] if key["in_flight"]]
            longest = max(key["longest_in_flight_ms"] for key in waiting)
            assert THRESHOLD_MS / 2 <= longest < THRESHOLD_MS + MOST_LATE_MS, number
            # The programs are attached in the second round, and that is no matter.
            make(target, "release")
            time.sleep(LULL_SECONDS)
        assert sum(line["type"] == "waits" for line in watch.lines) == 2


def test_a_probe_that_is_killed_while_armed_leaves_nothing_attached(target: Target) -> None:
    with watcher(target.pid, options=AT_REST) as watch:
        make(target, "hold mutex 2")
        wait_until(lambda: is_attached(watch), "it is armed")
        its = held(watch.pid)
        watch.process.kill()
        wait_until(lambda: not its & loaded(), "the kernel has removed its programs")
    make(target, "release")
