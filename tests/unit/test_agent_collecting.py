# SPDX-License-Identifier: Apache-2.0
"""CollectorThreads: nobody waits for a collector that does not come back."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import pytest

from stallscope.agent.collecting import CollectorThreads
from stallscope.agent.events import Event, EventQueue, QueryResult
from stallscope.base.errors import StallscopeError
from stallscope.model.samples import Sample
from tests.support.servers.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.large

SHORT = 0.5
"""A deadline that passes: long enough for a call that is on its way when the machine is busy."""
LATE = re.compile(r"no answer (within 0\.5|for [1-9]\d*) s")


class Fake:
    """A collector that does what the test asks for; ``gate`` holds it up while it is closed."""

    def __init__(self, name: str, thread: str | None = None, deadline: float = SHORT) -> None:
        self.name = name
        self.thread = thread or name
        self.deadline = deadline
        self.interval = self.rest_interval = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.running = 0
        self.most_running = 0
        self.closed = threading.Event()
        self.error: Exception | None = None

    def collect(self) -> Sample:
        self.begun += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.gate.wait(PATIENCE)
        self.running -= 1
        if self.error is not None:
            raise self.error
        return Sample(self.name, time.time_ns(), time.monotonic_ns(), {"x": float(self.begun)})

    def close(self) -> None:
        self.closed.set()


def take(events: EventQueue, matches: Callable[[Event], bool]) -> Event:
    """Return the first event that matches."""
    deadline = time.monotonic() + PATIENCE
    while (event := events.get(deadline - time.monotonic())) is not None:
        if matches(event):
            return event
    raise AssertionError("it did not come")


def sample_of(name: str, *, failed: bool) -> Callable[[Event], bool]:
    return lambda event: (
        isinstance(event, Sample) and event.source == name and (event.error is not None) == failed
    )


def pass_deadline(threads: CollectorThreads) -> None:
    """Wait until a call is late, and have that noticed.

    A sample counts from when the collector's thread has begun it, which may need a CPU first.
    """
    wait_until(lambda: time.monotonic() > threads.next_due(), "the deadline has passed")
    threads.check()


def test_a_collector_samples_once_an_interval() -> None:
    events = EventQueue()
    rare, often = Fake("rare", "a", PATIENCE), Fake("often", "a", PATIENCE)
    rare.interval = 3600.0
    threads = CollectorThreads([rare, often], events.put)
    for _ in range(5):
        threads.poll()
        take(events, sample_of("often", failed=False))
    assert (rare.begun, often.begun) == (1, 5)
    rare.interval = 0.0
    threads.poll()
    take(events, sample_of("rare", failed=False))
    assert rare.begun == 2
    threads.close()


def test_one_that_hangs_delays_no_other_lane_and_is_asked_once() -> None:
    events = EventQueue()
    hangs, works = Fake("hangs"), Fake("works", deadline=PATIENCE)
    hangs.gate.clear()
    threads = CollectorThreads([hangs, works], events.put)
    arrived: list[Sample] = []

    def both(event: Event) -> bool:
        arrived.extend([event] if isinstance(event, Sample) else [])
        return sample_of("works", failed=False)(event)

    for _ in range(20):
        threads.poll()
        take(events, both)
    assert works.begun == 20
    if threads.late["hangs"] == 0:
        pass_deadline(threads)
    for _ in range(5):
        threads.poll()
    while (event := events.get(0)) is not None:
        both(event)
    late = next(sample for sample in arrived if sample.source == "hangs")
    assert LATE.fullmatch(late.error or ""), late.error
    assert hangs.begun == 1
    assert threads.late["hangs"] >= 6
    assert "works" not in threads.late
    hangs.gate.set()
    threads.close()


def test_what_comes_late_is_dropped_and_then_it_is_asked_again() -> None:
    events = EventQueue()
    fake = Fake("slow")
    fake.gate.clear()
    threads = CollectorThreads([fake], events.put)
    threads.poll()
    wait_until(lambda: fake.begun, "it collects")
    pass_deadline(threads)
    fake.gate.set()
    wait_until(lambda: threads.dropped == 1, "its answer is dropped")
    fake.deadline = PATIENCE
    threads.poll()
    fresh = take(events, sample_of("slow", failed=False))
    assert isinstance(fresh, Sample)
    assert fresh.values == {"x": 2.0}
    assert fake.most_running == 1
    threads.close()


def test_one_lane_takes_turns_and_says_behind_whom_it_waits() -> None:
    events = EventQueue()
    first, second = Fake("first", "sql"), Fake("second", "sql")
    first.gate.clear()
    threads = CollectorThreads([first, second], events.put)
    threads.poll()
    wait_until(lambda: first.begun, "the first collects")
    pass_deadline(threads)
    threads.poll()
    behind = take(events, sample_of("second", failed=True))
    assert isinstance(behind, Sample)
    assert behind.error == "waits behind first, which does not answer"
    assert second.begun == 0
    first.gate.set()
    take(events, sample_of("second", failed=False))
    threads.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StallscopeError("there is no such file"), "there is no such file"),
        (ValueError("odd"), "internal error: ValueError: odd"),
    ],
)
def test_whatever_it_raises_is_its_sample(error: Exception, said: str) -> None:
    events = EventQueue()
    fake = Fake("broken", deadline=PATIENCE)
    fake.error = error
    threads = CollectorThreads([fake], events.put)
    threads.poll()
    sample = take(events, sample_of("broken", failed=True))
    assert isinstance(sample, Sample)
    assert sample.error == said
    threads.close()


def test_a_question_behind_a_late_call_is_refused_at_once() -> None:
    events = EventQueue()
    fake = Fake("status", "sql")
    fake.gate.clear()
    threads = CollectorThreads([fake], events.put)
    threads.poll()
    wait_until(lambda: fake.begun, "it collects")
    pass_deadline(threads)
    asked: list[int] = []
    threads.query("sql", "who", lambda: asked.append(1), PATIENCE)
    answer = take(events, lambda event: isinstance(event, QueryResult))
    assert isinstance(answer, QueryResult)
    assert answer.key == "who"
    assert answer.error is not None
    assert "no answer yet" in answer.error
    fake.gate.set()
    threads.close()
    assert asked == []


def test_a_question_is_given_up_at_its_deadline_though_its_turn_has_not_come() -> None:
    events = EventQueue()
    fake = Fake("status", "sql", deadline=PATIENCE)
    fake.gate.clear()
    threads = CollectorThreads([fake], events.put)
    threads.poll()
    threads.query("sql", "who", lambda: "nobody", SHORT)
    wait_until(lambda: time.monotonic() > threads.next_due(), "the deadline has passed")
    threads.check()
    answer = take(events, lambda event: isinstance(event, QueryResult))
    assert isinstance(answer, QueryResult)
    assert answer.key == "who"
    assert LATE.fullmatch(answer.error or ""), answer.error
    fake.gate.set()
    threads.close()


def test_what_waits_for_an_agent_that_did_not_run_is_not_late() -> None:
    fake = Fake("status", deadline=PATIENCE)
    fake.gate.clear()
    threads = CollectorThreads([fake], EventQueue().put)
    threads.poll()
    wait_until(lambda: fake.begun, "it collects")
    due = threads.next_due()
    threads.excuse()
    assert due < threads.next_due() < due + PATIENCE
    fake.gate.set()
    threads.close()


def test_the_end_does_not_wait_for_one_that_never_returns() -> None:
    fake = Fake("never")
    fake.gate.clear()
    threads = CollectorThreads([fake], EventQueue().put)
    threads.poll()
    wait_until(lambda: fake.begun, "it collects")
    threads.close()
    assert fake.running == 1, "it was waited for"
    assert fake.closed.wait(PATIENCE)
    (stuck,) = [one for one in threading.enumerate() if one.name == "collect-never"]
    assert stuck.daemon
    fake.gate.set()
