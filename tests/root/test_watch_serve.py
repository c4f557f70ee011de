# SPDX-License-Identifier: Apache-2.0
"""A serving probe that watches waits: what it says, and the captures that waits take."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.model import capturefile
from stallscope.model.capture import Capture, Trigger
from tests.root.support import assert_unharmed
from tests.support import bpf_objects
from tests.support.known_waits import Made, known_waits, make
from tests.support.servers import wait_until
from tests.support.targets import Target
from tests.support.watching import Line, Watcher, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

WAITERS = 5
LATE_MS = 400
LONG = ("--events", "--threshold", "20")
NEVER_MS = 3_600_000


def of_mutex(event: Line) -> bool:
    return (event["kind"], event["name"]) == ("mutex", "the_mutex")


def in_flight(event: Line) -> bool:
    return of_mutex(event) and event["in_flight"] is True


def await_reports(watch: Watcher, held: Made) -> None:
    """Wait until each of these waits was reported in flight."""
    since = min(call.start_ns for call in held.calls)
    watch.line(
        lambda _: (
            {e["tid"] for e in watch.events() if in_flight(e) and e["start_ns"] >= since}
            == {call.tid for call in held.calls}
        ),
        "event of each waiter",
    )


def await_ended(watch: Watcher, held: Made) -> list[Line]:
    """Return the events of the ends of these waits; wait for them."""

    def ended() -> list[Line]:
        since = min(call.start_ns for call in held.calls)
        return [
            e
            for e in watch.events()
            if of_mutex(e) and not e["in_flight"] and e["start_ns"] >= since
        ]

    watch.line(lambda _: len(ended()) == len(held.calls), "end of each wait")
    return ended()


def is_captured(line: Line) -> bool:
    return bool(line["type"] == "captured")


def assert_names_the_wait(trigger: Trigger, target: Target, held: Made) -> None:
    """Assert that it is of a wait for the mutex, and that its times follow each other."""
    assert (trigger.kind, trigger.name) == ("mutex", "the_mutex")
    assert trigger.address == int(held.address or "0", 16)
    assert trigger.pid == target.pid
    assert trigger.tid in {call.tid for call in held.calls}
    assert trigger.waiters == len(held.calls)
    assert trigger.length_ms is not None
    assert trigger.threshold_ms is not None
    assert trigger.length_ms >= trigger.threshold_ms
    assert trigger.delay_ms is not None
    assert trigger.copied_ms is not None
    assert trigger.finished_ms is not None
    assert 0 <= trigger.delay_ms < trigger.copied_ms < trigger.finished_ms
    assert trigger.delay_ms == pytest.approx(trigger.length_ms - trigger.threshold_ms, abs=0.01)


def assert_caught(capture: Capture, held: Made) -> None:
    """Assert that all waiters were still asleep on the lock when their stacks were copied."""
    (lock,) = [lock for lock in capture.locks if lock.symbol == "the_mutex"]
    assert lock.owner_tid == held.holder
    assert lock.waiters == len(held.calls)


@contextmanager
def reported_early(folder: Path) -> Iterator[tuple[Target, Watcher, Made]]:
    """Let threads wait for the mutex that are reported, and for which no capture is taken."""
    options = (*LONG, "--capture-threshold", f"mutex={NEVER_MS}")
    with (
        known_waits(folder, WAITERS) as target,
        watcher(target.pid, options=options) as watch,
    ):
        held = make(target, f"hold mutex {WAITERS}")
        await_reports(watch, held)
        yield target, watch, held


@pytest.mark.small
@pytest.mark.kernels("serve")
def test_a_wait_takes_a_capture_while_it_goes_on(tmp_path: Path) -> None:
    options = (*LONG, "--capture-threshold", f"mutex={LATE_MS}")
    with (
        known_waits(tmp_path) as target,
        watcher(target.pid, options=options) as watch,
    ):
        held = make(target, "hold mutex")
        capture = watch.capture()
        assert capture.trigger is not None
        assert capture.trigger.reason == "threshold"
        assert capture.trigger.threshold_ms == LATE_MS
        assert_names_the_wait(capture.trigger, target, held)
        assert_caught(capture, held)
        await_reports(watch, held)
        make(target, "release")
        (ended,) = await_ended(watch, held)
        assert ended["length_ms"] >= LATE_MS
        assert_unharmed(target.pid)


def test_a_capture_shows_the_threads_that_wait_at_that_time(tmp_path: Path) -> None:
    """Waits that were reported long before, by one that was reported first."""
    with reported_early(tmp_path) as (target, watch, held):
        watch.ask(f"capture-threshold mutex {LATE_MS}", "capture-threshold")
        capture = watch.capture()
        assert capture.trigger is not None
        assert capture.trigger.threshold_ms == LATE_MS
        assert_names_the_wait(capture.trigger, target, held)
        assert_caught(capture, held)
        make(target, "release")


def test_a_wait_that_is_over_takes_none(tmp_path: Path) -> None:
    """It was reported, and ended before it was long enough."""
    with reported_early(tmp_path) as (target, watch, held):
        make(target, "release")
        await_ended(watch, held)
        watch.ask("capture-threshold mutex 20", "capture-threshold")
        # Captures for a wait are taken before it answers.
        watch.ask("waits", "waits")
        assert watch.captures == []


@pytest.mark.small
def test_a_convoy_takes_a_capture(tmp_path: Path) -> None:
    options = (*LONG, "--convoy", str(WAITERS), "--captures", str(tmp_path))
    with (
        known_waits(tmp_path, WAITERS) as target,
        watcher(target.pid, options=options) as watch,
    ):
        # Three are no convoy.
        make(target, "hold mutex 3")
        watch.event(in_flight, "event")
        make(target, "release")
        held = make(target, f"hold mutex {WAITERS}")
        line = watch.line(is_captured, "capture")
        file = Path(line["path"])
        assert file.parent == tmp_path
        assert file.name.endswith(f"-mutex-{line['trigger']['tid']}.jsonl.zst")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        capture = capturefile.read(file)
        assert capture.trigger is not None
        assert capture.trigger.reason == "convoy"
        assert_names_the_wait(capture.trigger, target, held)
        assert_caught(capture, held)
        make(target, "release")


@pytest.mark.small
def test_a_wait_takes_a_burst(tmp_path: Path) -> None:
    """It is written long after the wait's name was given up."""
    late = ("--capture-threshold", f"mutex={LATE_MS}", "--captures", str(tmp_path))
    options = (*LONG, *late, "--burst", "3", "--burst-interval", "10")
    with (
        known_waits(tmp_path, WAITERS) as target,
        watcher(target.pid, options=options) as watch,
    ):
        held = make(target, f"hold mutex {WAITERS}")
        line = watch.line(is_captured, "burst")
        assert line["trigger"]["name"] == "the_mutex"
        capture = capturefile.read(Path(line["path"]))
        assert capture.trigger is not None
        assert_names_the_wait(capture.trigger, target, held)
        make(target, "release")


def test_captures_that_come_too_often_are_counted(tmp_path: Path) -> None:
    """Of waits for one lock that begin together, one takes a capture; the next says so."""
    options = (*LONG, "--capture-threshold", "mutex=20", "--capture-interval", "3600000")
    with (
        known_waits(tmp_path, WAITERS) as target,
        watcher(target.pid, options=options) as watch,
    ):
        held = make(target, f"hold mutex {WAITERS}")
        await_reports(watch, held)
        make(target, "release")
        watch.ask("waits", "waits")
        assert len(watch.captures) == 1


def test_the_next_capture_says_what_was_suppressed(tmp_path: Path) -> None:
    options = (*LONG, "--capture-threshold", "mutex=20", "--capture-interval", "5000")
    with (
        known_waits(tmp_path, WAITERS) as target,
        watcher(target.pid, options=options) as watch,
    ):
        held = make(target, f"hold mutex {WAITERS}")
        first = watch.capture(0)
        await_reports(watch, held)
        make(target, "release")
        # One wait after the other, until the interval is over and one takes the next capture.
        wait_until(lambda: make(target, "mutex 1 40") and len(watch.captures) > 1, "a capture")
        second = watch.capture(1)
        assert first.trigger is not None
        assert second.trigger is not None
        assert first.trigger.suppressed == 0
        assert second.trigger.suppressed >= len(held.calls) - 1


def test_probes_are_attached_only_while_they_are_on(tmp_path: Path) -> None:
    with known_waits(tmp_path, WAITERS) as target, watcher(target.pid, options=()) as watch:
        idle = bpf_objects.held(watch.pid)
        assert watch.ask("waits", "waits", "error")["type"] == "error"
        assert watch.ask("watch on", "watch", "error") == {"type": "watch", "on": True}
        probes = bpf_objects.held(watch.pid) - idle
        assert len([name for name in probes if name.startswith("link")]) >= 5
        held = make(target, f"hold mutex {WAITERS}")
        watch.ask("threshold lock 10", "threshold")
        line = watch.ask("waits", "waits")
        assert line["schema"] == "stallscope.waits/1"
        assert line["kinds"]["mutex"]["threshold_ms"] == 10
        (key,) = [key for key in line["keys"] if key["address"] == held.address]
        assert key["in_flight"] == WAITERS
        make(target, "release")
        assert watch.ask("watch off", "watch", "error") == {"type": "watch", "on": False}
        assert bpf_objects.held(watch.pid) == idle
        # The kernel frees them after a moment.
        wait_until(lambda: not probes & bpf_objects.loaded(), "the probes are gone")
        assert watch.ask("watch on", "watch", "error") == {"type": "watch", "on": True}
        probes = bpf_objects.held(watch.pid)
    wait_until(lambda: not probes & bpf_objects.loaded(), "the probes are gone")


def test_lines_at_an_interval(tmp_path: Path) -> None:
    with (
        known_waits(tmp_path) as target,
        watcher(target.pid, options=("--interval", "50")) as watch,
    ):
        make(target, "fsync 23")
        watch.line(
            lambda line: sum(of_fsync(line) for line in watch.lines) == 23, "line with them all"
        )
        code = watch.quit()
        assert code == 0
        final = watch.lines[-1]
        assert final["final"] is True
        assert of_fsync(final) == 23


def of_fsync(line: Line) -> int:
    count = line["kinds"]["fsync"]["count"] if line["type"] == "waits" else 0
    assert isinstance(count, int)
    return count


WRONG = (
    "watch",
    "watch maybe",
    "threshold",
    "threshold mutex",
    "threshold nothing 5",
    "threshold mutex -5",
    "capture-threshold mutex 1e99",
    "target",
    "target 0",
    "target x",
    "waits now",
    "snap ",
)


def test_wrong_commands_are_answered(tmp_path: Path) -> None:
    with known_waits(tmp_path) as target, watcher(target.pid, options=()) as watch:
        for command in WRONG:
            answer = watch.ask(command, "error", "watch", "threshold", "target")
            assert answer["type"] == "error", command
            assert "\n" not in answer["message"]
        assert watch.ask("watch off", "watch", "error") == {"type": "watch", "on": False}


def test_threads_that_wait_for_work_are_no_event(tmp_path: Path) -> None:
    options = ("--events", "--threshold", "1", "--capture-threshold", "1")
    with (
        known_waits(tmp_path, idle=12) as target,
        watcher(target.pid, options=options) as watch,
    ):
        # The probe has dealt with whatever was reported before this wait, which is one.
        await_reports(watch, make(target, "hold mutex"))
        watch.ask("waits", "waits")
        # Two of the idle threads are at locks, and are reported as what they are.
        assert {event["kind"] for event in watch.events()} == {"mutex", "rwlock", "sem"}
        make(target, "release")
