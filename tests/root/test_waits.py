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

from stallscope.model.waitlines import Event, Notice
from tests.root.mutex_waits import HOLDER, WAITER, assert_nothing_lost, own
from tests.root.support import ONE_LINE, assert_unharmed, run_probe
from tests.support.known_waits import Made, known_waits, make
from tests.support.servers import PATIENCE
from tests.support.targets import Target, target_path
from tests.support.watching import Waits, key_of

pytestmark = pytest.mark.needs("root", "waits")

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


@pytest.mark.small
@pytest.mark.parametrize(
    "kind", ["rwlock", pytest.param("sem", marks=pytest.mark.needs("libc-symbols"))]
)
def test_other_locks(target: Target, kind: str) -> None:
    with Waits(*ONCE, "--threshold", "1", pids=(target.pid,)) as watcher:
        made = make(target, f"{kind} 3 3 2")
        final = watcher.finish()
    key = key_of(final, kind, f"the_{kind}")
    assert key.count == len(made.calls) == 6
    assert key.address == made.address
    assert {frame for stack in key.waiters for frame in stack.frames} >= {f"wait_for_the_{kind}"}


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


@pytest.mark.small
def test_only_what_is_asked_for(target: Target) -> None:
    with Waits(*ONCE, "--kind", "fsync", "--kind", "fallocate", pids=(target.pid,)) as watcher:
        make(target, "mutex 2 1")
        make(target, "fsync 2")
        make(target, "fallocate 2")
        final = watcher.finish()
    assert {key.kind for key in final.keys} == {"fsync", "fallocate"}
    # Always there, and not watched.
    assert final.kinds["mutex"].count == 0


@pytest.mark.small
def test_groups(target: Target) -> None:
    with Waits(*ONCE, "--kind", "space", pids=(target.pid,)) as watcher:
        make(target, "fdatasync 2")  # which extends its file first
        for operation in ("fallocate", "ftruncate", "extend", "unlink", "rename"):
            make(target, f"{operation} 3 4096")
        final = watcher.finish()
    for operation, extended in (("fallocate", 0), ("ftruncate", 0), ("extend", 2), ("unlink", 0)):
        assert final.kinds[operation].count == 3 + extended, operation
    assert "fdatasync" not in final.kinds


@pytest.mark.small
def test_top(target: Target) -> None:
    with Waits(*ONCE, "--top", "1", pids=(target.pid,)) as watcher:
        make(target, "fsync 3")
        make(target, "fallocate 3")
        final = watcher.finish()
    assert len(final.keys) == 1
    assert final.kinds["fsync"].count == final.kinds["fallocate"].count == 3


@pytest.mark.small
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


@pytest.mark.small
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


def test_the_probe_watches_itself() -> None:
    """Nothing loops: what it does for a wait of its own is no wait."""
    with Waits("--interval", "50", "--threshold", "0", pids=(os.getpid(),)) as watcher:
        for _ in range(5):
            watcher.line()
        assert watcher.ask(f"target {watcher.process.pid}".encode()).type == "target"
        for _ in range(10):
            watcher.line()
        watcher.finish()
