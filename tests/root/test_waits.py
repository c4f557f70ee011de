# SPDX-License-Identifier: Apache-2.0
"""The probe sees every wait, with its length and both its ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from stallscope.model.waitlines import Event, Notice, WaitLine
from tests.root.mutex_waits import HOLDER, WAITER, assert_convoy, own
from tests.root.support import ONE_LINE, assert_unharmed, run_probe
from tests.support.known_waits import Call, Made, known_waits, make
from tests.support.servers import PATIENCE
from tests.support.targets import Target, target_path
from tests.support.watching import Waits, key_of

pytestmark = pytest.mark.needs("root", "waits")

MAX_ERROR_MS = 2.0
ROUNDING_MS = 0.001
ONCE = ("--interval", "3600000")
"""No line but the last."""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with known_waits(tmp_path, waiters=8, idle=6) as target:
        yield target
        assert target.running()
        assert_unharmed(target.pid)


def waiting_tids(events: Sequence[Event]) -> set[int | None]:
    """Return the threads that were reported while they waited for a mutex."""
    return {event.tid for event in events if event.in_flight and event.kind == "mutex"}


def make_reported(watcher: Waits, target: Target, count: int) -> list[Made]:
    """Make waits for the mutex, one after the other; each ends once it was reported in flight.

    Who lets the lock go is recorded from then on, and need not be before.
    """
    made = []
    for _ in range(count):
        made.append(make(target, "hold mutex"))
        since = made[-1].calls[0].start_ns
        while not any(
            event.in_flight and event.kind == "mutex" and (event.start_ns or 0) >= since
            for event in watcher.events
        ):
            watcher.line()
        made.append(make(target, "release"))
    return made[1::2]


def milliseconds(calls: Sequence[Call]) -> float:
    return sum(call.length_ns for call in calls) / 1e6


def assert_nothing_lost(line: WaitLine) -> None:
    assert not {cause: count for cause, count in line.lost.items() if count}


@pytest.mark.kernels("waits")
def test_counts_are_exact(target: Target) -> None:
    with Waits(*ONCE, "--threshold", "1", "--events", pids=(target.pid,)) as watcher:
        synced = make(target, "fsync 23")
        made = make(target, "fallocate 29 65536")
        locked = make(target, "mutex 31 5")
        final = watcher.finish()
    assert final.kinds["fsync"].count == 23
    assert final.kinds["fallocate"].count == 29
    assert final.kinds["mutex"].count == 31
    assert final.kinds["mutex"].over == 31
    for kind, waits in final.kinds.items():
        assert sum(count for _, _, count in waits.histogram) == waits.count, kind
    for operation in (synced, made):
        key = key_of(final, operation.operation, operation.path)
        assert key.count == len(operation.calls)
        assert key.total_ms <= milliseconds(operation.calls)
    assert key_of(final, "mutex").name == "the_mutex"
    assert key_of(final, "mutex").address == locked.address
    assert_lengths(watcher.events, locked)
    assert_nothing_lost(final)


def assert_lengths(events: Sequence[Event], made: Made) -> None:
    """Assert that each wait that was made was reported once, with its length.

    The lengths agree at best: a thread that has to do without its CPU on its way out, or whose
    machine has to, reads the clock late.
    """
    ended = [event for event in events if event.kind == "mutex" and not event.in_flight]
    assert len(ended) == len(made.calls)
    for event, call in zip(ended, made.calls, strict=True):
        assert event.tid == call.tid
        assert (call.released_ns - call.asleep_ns) / 1e6 <= event.length_ms
        assert event.length_ms <= call.length_ns / 1e6 + ROUNDING_MS
    longer = [
        call.length_ns / 1e6 - event.length_ms
        for event, call in zip(ended, made.calls, strict=True)
    ]
    assert min(longer) < MAX_ERROR_MS


@pytest.mark.kernels("waits")
def test_both_ends_of_a_wait(target: Target) -> None:
    options = ("--interval", "20", "--threshold", "1", "--events")
    with Waits(*options, pids=(target.pid,)) as watcher:
        made = make_reported(watcher, target, 7)[-1]
        final = watcher.finish()
    key = key_of(final, "mutex", "the_mutex")
    assert [(stack.count, own(stack.frames), stack.label) for stack in key.waiters] == [
        (7, WAITER, "verified")
    ]
    assert [(stack.count, own(stack.frames), stack.tid) for stack in key.holders] == [
        (7, HOLDER, made.holder)
    ]
    ended = [event for event in watcher.events if event.kind == "mutex" and not event.in_flight]
    assert len(ended) == 7
    for event in ended:
        assert own(event.frames) == WAITER
        assert event.waker is not None
        assert event.waker.tid == made.holder
        assert own(event.waker.frames) == HOLDER


@pytest.mark.kernels("waits")
def test_convoy_in_flight(target: Target) -> None:
    options = ("--interval", "20", "--threshold", "1", "--events")
    with Waits(*options, pids=(target.pid,)) as watcher:
        made = make(target, "hold mutex 8")
        line = watcher.line()
        while line.kinds["mutex"].in_flight != 8 or len(waiting_tids(watcher.events)) < 8:
            line = watcher.line()
        assert len(made.calls) == 8
        assert_convoy(watcher, target, made, line)


def test_waits_below_their_threshold_in_flight(target: Target) -> None:
    """No record shows them yet: the lock words do."""
    with Waits("--interval", "20", "--threshold", "60000", pids=(target.pid,)) as watcher:
        made = make(target, "hold mutex 5")
        line = watcher.line()
        while not any(key.in_flight == 5 for key in line.keys):
            line = watcher.line()
        key = key_of(line, "mutex", "the_mutex")
        assert key.address == made.address
        assert key.owner_tid == made.holder
        # The idle threads, which nobody has sampled, are not among them.
        assert not [key for key in line.keys if key.kind in ("cond", "futex", "sem")]
        make(target, "release")
        watcher.finish()


@pytest.mark.parametrize("kind", ["rwlock", "sem"])
def test_other_locks(target: Target, kind: str) -> None:
    with Waits(*ONCE, "--threshold", "1", pids=(target.pid,)) as watcher:
        made = make(target, f"{kind} 3 3 2")
        final = watcher.finish()
    key = key_of(final, kind, f"the_{kind}")
    assert key.count == len(made.calls) == 6
    assert key.address == made.address
    assert {frame for stack in key.waiters for frame in stack.frames} >= {f"wait_for_the_{kind}"}


def test_short_waits_are_classified_too(target: Target) -> None:
    """A lock that nobody waits for as long as the threshold is a lock all the same."""
    with Waits(*ONCE, "--threshold", "60000", pids=(target.pid,)) as watcher:
        make(target, "mutex 5 1")
        final = watcher.finish()
    key = key_of(final, "mutex", "the_mutex")
    assert (key.count, key.over, key.waiters) == (5, 0, ())
    assert final.kinds["futex"].count == 0


def test_waits_that_are_over_when_they_are_reported_are_classified_too(target: Target) -> None:
    """A wait that ends by an alarm leaves nothing to copy: the end of the wait is reported."""
    with Waits(*ONCE, "--threshold", "1", pids=(target.pid,)) as watcher:
        watcher.process.send_signal(signal.SIGSTOP)
        make(target, "mutex 7 5")
        watcher.process.send_signal(signal.SIGCONT)
        final = watcher.finish()
    key = key_of(final, "mutex", "the_mutex")
    assert (key.count, key.over) == (7, 7)
    assert [(stack.count, own(stack.frames)) for stack in key.waiters] == [(7, WAITER)]
    assert_nothing_lost(final)


def test_idle_threads_are_no_stall(target: Target) -> None:
    """Six threads wait for work all the time, and others for work that comes."""
    with Waits(*ONCE, "--threshold", "1", "--events", pids=(target.pid,)) as watcher:
        make(target, "cond 9 3 2")
        final = watcher.finish()
    assert final.kinds["cond"].count == 18
    assert not [key for key in final.keys if key.kind == "cond"]
    assert not [event for event in watcher.events if event.kind in ("cond", "futex")]
    with Waits(*ONCE, "--kind", "cond", pids=(target.pid,)) as watcher:
        make(target, "cond 2 3")
        shown = watcher.finish()
    assert key_of(shown, "cond", "the_cond").count == 2


def test_intervals_add_up(target: Target) -> None:
    with Waits("--interval", "30", pids=(target.pid,)) as watcher:
        for _ in range(10):
            make(target, "fsync 5")
            watcher.line()
        final = watcher.finish()
    assert final.kinds["fsync"].count == 50
    assert sum(line.kinds["fsync"].count for line in watcher.lines if not line.final) <= 50
    assert sum(line.seconds for line in watcher.lines if not line.final) <= final.seconds
    assert max(line.kinds["fsync"].max_ms for line in watcher.lines[:-1]) <= (
        final.kinds["fsync"].max_ms
    )
    assert [bool(line.programs) for line in watcher.lines] == [True] + [False] * (
        len(watcher.lines) - 1
    )


def test_without_a_timer(target: Target) -> None:
    options = ("--no-timer", "--interval", "20", "--threshold", "1", "--events")
    with Waits(*options, pids=(target.pid,)) as watcher:
        made = make(target, "hold mutex 3")
        line = watcher.line()
        while line.kinds["mutex"].in_flight != 3 or len(waiting_tids(watcher.events)) < 3:
            line = watcher.line()
        assert line.in_flight_by == "scan"
        make(target, "release")
        watcher.finish()
    assert waiting_tids(watcher.events) == {call.tid for call in made.calls}


def test_only_what_is_asked_for(target: Target) -> None:
    with Waits(*ONCE, "--kind", "fsync", "--kind", "fallocate", pids=(target.pid,)) as watcher:
        make(target, "mutex 2 1")
        make(target, "fsync 2")
        make(target, "fallocate 2")
        final = watcher.finish()
    assert {key.kind for key in final.keys} == {"fsync", "fallocate"}
    # Always there, and not watched.
    assert final.kinds["mutex"].count == 0


def test_groups(target: Target) -> None:
    with Waits(*ONCE, "--kind", "space", pids=(target.pid,)) as watcher:
        make(target, "fdatasync 2")  # which extends its file first
        for operation in ("fallocate", "ftruncate", "extend", "unlink", "rename"):
            make(target, f"{operation} 3 4096")
        final = watcher.finish()
    for operation, extended in (("fallocate", 0), ("ftruncate", 0), ("extend", 2), ("unlink", 0)):
        assert final.kinds[operation].count == 3 + extended, operation
    assert "fdatasync" not in final.kinds


def test_top(target: Target) -> None:
    with Waits(*ONCE, "--top", "1", pids=(target.pid,)) as watcher:
        make(target, "fsync 3")
        make(target, "fallocate 3")
        final = watcher.finish()
    assert len(final.keys) == 1
    assert final.kinds["fsync"].count == final.kinds["fallocate"].count == 3


def test_two_probers_see_the_same(target: Target) -> None:
    with (
        Waits(*ONCE, "--threshold", "1", pids=(target.pid,)) as one,
        Waits(*ONCE, "--threshold", "1", pids=(target.pid,)) as other,
    ):
        make(target, "mutex 11 2")
        make(target, "fsync 3")
        lines = [one.finish(), other.finish()]
    for line in lines:
        key = key_of(line, "mutex", "the_mutex")
        assert key.count == 11
        assert [own(stack.frames) for stack in key.holders] == [HOLDER]
        assert line.kinds["fsync"].count == 3


def test_killed_probe_leaves_nothing(target: Target) -> None:
    with Waits(*ONCE, pids=(target.pid,)) as watcher:
        make(target, "hold mutex 2")
        watcher.process.kill()
        watcher.process.wait()
    assert_unharmed(target.pid)
    make(target, "release")
    with Waits(*ONCE, pids=(target.pid,)) as watcher:
        make(target, "mutex 3 1")
        assert key_of(watcher.finish(), "mutex", "the_mutex").count == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_with_the_totals(target: Target, number: signal.Signals) -> None:
    with Waits(*ONCE, pids=(target.pid,)) as watcher:
        make(target, "fsync 4")
        assert watcher.stop(number).kinds["fsync"].count == 4


def test_end_of_input_ends_it(target: Target) -> None:
    with Waits(*ONCE, pids=(target.pid,)) as watcher:
        make(target, "fsync 2")
        assert watcher.process.stdin is not None
        watcher.process.stdin.close()
        assert watcher.rest().kinds["fsync"].count == 2


def test_duration_outlives_the_input(target: Target) -> None:
    with Waits("--interval", "100", "--duration", "3", pids=(target.pid,)) as watcher:
        assert watcher.process.stdin is not None
        watcher.process.stdin.close()
        final = watcher.rest()
    assert final.seconds >= 3
    assert len(watcher.lines) > 1


def test_garbage_on_its_input(target: Target) -> None:
    with Waits(*ONCE, pids=(target.pid,)) as watcher:
        for garbage in (
            b"",
            b"snap",
            b"target",
            b"target x",
            b"target 0",
            b"target -1",
            b"target 99999999999999999999",
            b"threshold",
            b"threshold mutex",
            b"threshold mutex x",
            b"threshold nonsense 5",
            b"threshold mutex 1e9",
            b"quit\0",
            b"\xff\xfe" * 40,
            b"x" * 100_000,
            f"target {target.pid}".encode(),  # watched already
        ):
            answer = watcher.ask(garbage)
            assert answer.type == "error", garbage
            assert answer.message
            assert "\n" not in answer.message
        make(target, "fsync 2")
        assert watcher.finish().kinds["fsync"].count == 2


def test_threshold_changes(target: Target) -> None:
    with Waits(*ONCE, "--threshold", "60000", pids=(target.pid,)) as watcher:
        make(target, "mutex 3 5")
        assert watcher.ask(b"threshold lock 1") == Notice("threshold")
        make(target, "mutex 4 5")
        final = watcher.finish()
    assert final.kinds["mutex"].count == 7
    assert final.kinds["mutex"].over == 4
    assert final.kinds["mutex"].threshold_ms == 1.0


def test_one_more_target(target: Target, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with (
        known_waits(tmp_path / "other") as other,
        Waits(*ONCE, pids=(target.pid,)) as watcher,
    ):
        make(target, "fsync 2")
        make(other, "fsync 100")  # nobody watches yet
        assert watcher.ask(f"target {other.pid}".encode()) == Notice("target", other.pid)
        make(other, "fsync 3")
        make(target, "fsync 5")
        final = watcher.finish()
    assert final.kinds["fsync"].count == 10
    assert {key.pid: key.count for key in final.keys if key.kind == "fsync"} == {
        target.pid: 7,
        other.pid: 3,
    }
    assert [seen.pid for seen in final.targets] == [target.pid, other.pid]


def test_the_target_ends(tmp_path: Path) -> None:
    with known_waits(tmp_path) as target, Waits(*ONCE, pids=(target.pid,)) as watcher:
        make(target, "fsync 6")
        target.close()
        final = watcher.rest()
    assert watcher.notices[-1] == Notice("ended", target.pid)
    assert final.kinds["fsync"].count == 6
    assert final.targets[0].pid == target.pid


def test_follows_to_the_next(tmp_path: Path) -> None:
    with known_waits(tmp_path) as first, Waits(*ONCE, "--follow", pids=(first.pid,)) as watcher:
        make(first, "fsync 6")
        first.close()
        assert watcher.read() == Notice("ended", first.pid)
        with known_waits(tmp_path) as second:
            assert watcher.ask(f"target {second.pid}".encode()) == Notice("target", second.pid)
            make(second, "fsync 2")
            final = watcher.finish()
    assert final.kinds["fsync"].count == 8
    assert {key.pid: key.count for key in final.keys if key.kind == "fsync"} == {
        first.pid: 6,
        second.pid: 2,
    }


def test_the_target_executes_another_program(tmp_path: Path) -> None:
    """What a program is changes under the same pid: its stacks are named by the new one."""
    program = [str(target_path("known_waits")), str(tmp_path)]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'read line && exec "$0" "$@"', *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        options = ("--interval", "20", "--threshold", "1")
        with Waits(*options, pids=(shell.pid,)) as watcher:
            shell.stdin.write(b"go\n")
            shell.stdin.flush()
            while shell.stdout.readline().strip() != b"ready":
                continue
            # Its libraries are read once their code has been met.
            found: list[list[str]] = []
            end = time.monotonic() + PATIENCE
            while WAITER not in found and time.monotonic() < end:
                shell.stdin.write(b"mutex 1 5\n")
                shell.stdin.flush()
                made = msgspec.json.decode(shell.stdout.readline(), type=Made)
                keys = [key for key in watcher.line().keys if key.name == "the_mutex"]
                found = [own(stack.frames) for key in keys for stack in key.waiters]
                if WAITER in found:
                    assert {key.address for key in keys} == {made.address}
            watcher.finish()
        shell.stdin.close()
    assert WAITER in found


def test_no_such_process() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    done = run_probe("waits", "--pid", str(ended.pid))
    assert done.code == 1
    assert ONE_LINE.match(done.stderr)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--pid", "1", "--kind", "nonsense"),
        ("--pid", "1", "--threshold", "nonsense"),
        ("--pid", "1", "--threshold", "mutex="),
        ("--pid", "1", "--threshold", "-1"),
        ("--pid", "1", "--interval", "1"),
        ("--pid", "1", "--top", "0"),
        ("--pid", "1", "--duration", "x"),
        ("--pid", "1", "--backend", "proc"),
        ("--pid", "1", "x"),
    ],
)
def test_wrong_usage(options: tuple[str, ...]) -> None:
    done = run_probe("waits", *options)
    assert done.code == 2
    assert ONE_LINE.match(done.stderr)
    assert not done.stdout


def test_the_probe_watches_itself() -> None:
    """Nothing loops: what it does for a wait of its own is no wait."""
    with Waits("--interval", "50", "--threshold", "0", pids=(os.getpid(),)) as watcher:
        for _ in range(5):
            watcher.line()
        assert watcher.ask(f"target {watcher.process.pid}".encode()).type == "target"
        for _ in range(10):
            watcher.line()
        watcher.finish()
