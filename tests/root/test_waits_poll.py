# SPDX-License-Identifier: Apache-2.0
"""Waits by polling /proc: each that is long enough is found, none that was not there."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from stallscope.model import waitlines
from stallscope.model.waitlines import Event, Notice, WaitLine
from tests.root.mutex_waits import WAITER, own
from tests.root.support import ONE_LINE, assert_unharmed, run_probe
from tests.support.known_waits import Call, Made, known_waits, make
from tests.support.servers import PATIENCE, wait_until
from tests.support.stalls import Device, loop_device
from tests.support.targets import Script, Target, target_path
from tests.support.watching import Waits, key_of, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "poll")

POLL_MS = 10
MADE = 8000
"""Threads, of which the target never has 2,200 at once."""
BY_POLL = ("--backend", "poll", "--poll-interval", str(POLL_MS))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with known_waits(tmp_path, waiters=8, idle=6) as target:
        yield target
        assert target.running()
        assert_unharmed(target.pid)


def ended(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind and not event.in_flight]


def in_flight(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind and event.in_flight]


def count(line: WaitLine, kind: str) -> int:
    return line.kinds[kind].count if kind in line.kinds else 0


def assert_length(event: Event, call: Call, line: WaitLine) -> None:
    """Assert that a length is true to within what the line says of its polls.

    When a waiter was asleep is known to within the target's own poll of it, and that it is over to
    within the time that it needs to get a CPU.
    """
    assert line.longest_interval_ns is not None
    within = line.longest_interval_ns / 1e6
    least = (call.released_ns - call.asleep_ns) / 1e6 - within
    most = call.length_ns / 1e6 + within
    assert least <= event.length_ms <= most, (event.length_ms, least, most)


def make_reported(watch: Waits, target: Target, kind: str, waiters: int = 1) -> Made:
    """Make threads wait until each has been reported, however late that is on a busy machine."""
    held = make(target, f"hold {kind} {waiters}")
    since = min(call.start_ns for call in held.calls)
    tids = {call.tid for call in held.calls}
    while not tids <= {
        event.tid for event in in_flight(watch.events, kind) if (event.start_ns or 0) >= since
    }:
        watch.line()
    return make(target, "release")


@pytest.mark.kernels("poll")
def test_each_long_wait_is_found_and_no_other(target: Target) -> None:
    options = (*BY_POLL, "--interval", "50", "--threshold", "60", "--events")
    with Waits(*options, pids=(target.pid,)) as watch:
        short = make(target, "mutex 20 1")
        locked = [make_reported(watch, target, "mutex") for _ in range(9)]
        make(target, "fsync 20")
        final = watch.finish()
    assert (final.source, final.in_flight_by, final.sampled) == ("poll", "poll", True)
    assert final.interval_ns == POLL_MS * 1_000_000
    assert final.longest_interval_ns is not None
    calls = [made.calls[0] for made in locked]
    key = key_of(final, "mutex", "the_mutex")
    assert key.address == locked[0].address
    # A short one is above the threshold only where its thread had to do without a CPU.
    long = sum(call.length_ns >= 60_000_000 for call in short.calls)
    assert len(calls) <= key.over <= len(calls) + long
    assert key.over <= key.count <= len(calls) + len(short.calls)
    events = ended(watch.events, "mutex")[-len(calls) :]
    assert [event.tid for event in events] == [call.tid for call in calls]
    for event, call in zip(events, calls, strict=True):
        assert_length(event, call, final)
        assert own(event.frames) == WAITER
    for event in in_flight(watch.events, "mutex"):
        assert event.owner_tid == locked[0].holder
        assert own(event.frames) == WAITER
    # Nobody waits for such a short one to be reported in flight, with its stack.
    unread = [stack for stack in key.waiters if stack.label != "verified"]
    assert all(stack.label is None and not stack.frames for stack in unread)
    assert sum(stack.count for stack in unread) <= long
    assert not {cause: count for cause, count in final.lost.items() if count}


LONG_NS = 1_000_000_000


def test_a_long_wait_is_distinguished_from_equal_short_ones(target: Target) -> None:
    """The same thread waits for the same lock from the same place, over and over."""
    options = (*BY_POLL, "--interval", "50", "--threshold", "1000", "--events")
    longest_ns = LONG_NS
    while longest_ns >= LONG_NS:  # where others want the CPUs, a short wait can be long
        made: list[Call] = []
        with Waits(*options, pids=(target.pid,)) as watch:
            seen = 0
            while seen < 20:
                made.extend(make(target, "mutex 20 50").calls)
                seen += watch.line().kinds["mutex"].count
            syncs = make(target, "fsync 1000").calls
            final = watch.finish()
        longest_ns = max(call.length_ns for call in (*made, *syncs))
    assert not [event for event in watch.events if event.kind in ("mutex", "fsync")]
    assert (final.kinds["mutex"].over, final.kinds["fsync"].over) == (0, 0)
    assert 20 <= final.kinds["mutex"].count <= len(made)
    assert key_of(final, "mutex", "the_mutex").count == final.kinds["mutex"].count


@pytest.mark.parametrize("kind", ["rwlock", "sem"])
def test_other_locks(target: Target, kind: str) -> None:
    options = (*BY_POLL, "--interval", "50", "--threshold", "40", "--events")
    with Waits(*options, pids=(target.pid,)) as watch:
        made = [make_reported(watch, target, kind, 2) for _ in range(2)]
        final = watch.finish()
    key = key_of(final, kind, f"the_{kind}")
    assert (key.over, key.address) == (4, made[0].address)
    assert {frame for stack in key.waiters for frame in stack.frames} >= {f"wait_for_the_{kind}"}


def test_idle_threads_are_no_stall(target: Target) -> None:
    options = (*BY_POLL, "--interval", "50", "--threshold", "30", "--events")
    with Waits(*options, pids=(target.pid,)) as watch:
        seen = 0
        while seen < 4:
            make(target, "cond 3 100 2")
            seen += count(watch.line(), "cond")
        final = watch.finish()
    assert not [key for key in final.keys if key.kind == "cond"]
    assert not [event for event in watch.events if event.kind in ("cond", "futex")]


def test_waits_below_their_threshold_are_classified_too(target: Target) -> None:
    options = (*BY_POLL, "--interval", "50", "--threshold", "60000")
    with Waits(*options, pids=(target.pid,)) as watch:
        seen = 0
        while seen < 3:
            make(target, "mutex 3 80")
            line = watch.line()
            seen += count(line, "mutex") + count(line, "futex")
        final = watch.finish()
    key = key_of(final, "mutex", "the_mutex")
    assert key.count >= seen
    assert (key.over, key.waiters) == (0, ())
    assert final.kinds["futex"].count == 0


def test_without_btf_it_is_taken_by_itself(target: Target) -> None:
    hide = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
    watch = Waits("--interval", "50", "--threshold", "40", pids=(target.pid,))
    watch.argv = ["unshare", "-m", "sh", "-c", hide, "-", *watch.argv]
    with watch:
        made = make(target, "hold mutex 2")
        line = watch.line()
        probes = {probe.name: probe for probe in line.programs}
        while not any(key.in_flight == 2 and key.waiters for key in line.keys):
            line = watch.line()
        make(target, "release")
        watch.finish()
    assert (line.source, line.sampled) == ("poll", True)
    assert key_of(line, "mutex", "the_mutex").owner_tid == made.holder
    assert probes["polling"].ok
    assert not probes["wait programs"].ok
    why_not = probes["wait programs"].why_not or ""
    assert "BTF" in why_not
    assert "sampled" in why_not


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Target]:
    """A target whose threads wait for nothing but work, until they get a command."""
    with known_waits(tmp_path, waiters=8, idle=6, calm=True) as target:
        yield target
        assert_unharmed(target.pid)


def test_a_long_wait_ends_the_rest_and_is_in_the_history(quiet: Target) -> None:
    options = ("--backend", "poll", "--interval", "100", "--threshold", "500", "--events")
    with Waits(*options, "--at-rest", "--history", pids=(quiet.pid,)) as watch:
        line = watch.line()
        while not line.history:
            line = watch.line()
        assert line.rest is not None
        assert (line.rest.resting, line.rest.arms) == (True, 0)
        make(quiet, "hold mutex 4")
        rows: list[waitlines.ThreadRow] = []
        while not rows or line.rest is None or line.rest.resting:
            line = watch.line()
            samples = [row for sample in line.history for row in sample.rows]
            rows += [row for row in samples if (row.kind, row.name) == ("mutex", "the_mutex")]
        assert line.rest is not None
        assert (line.rest.arms, line.rest.refused) == (1, 0)
        assert {(row.count, row.state, row.call) for row in rows} == {(4, "S", "futex")}
        while len(in_flight(watch.events, "mutex")) < 4:
            watch.line()
        make(quiet, "release")
        watch.finish()


def test_a_capture_at_a_threshold(target: Target) -> None:
    options = ("--backend", "poll", "--events", "--capture-threshold", "mutex=60")
    with watcher(target.pid, options=options) as watch:
        made = make(target, "hold mutex 3")
        capture = watch.capture()
        make(target, "release")
    assert capture.backend == "proc"
    trigger = capture.trigger
    assert trigger is not None
    assert trigger.kind == "mutex"
    assert trigger.tid in {call.tid for call in made.calls}
    stacks = {thread.tid: [frame.symbol for frame in thread.frames] for thread in capture.threads}
    for call in made.calls:
        assert "wait_for_the_mutex" in stacks[call.tid]


WRITER = """
import os, sys
fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x" * 65536, 0)
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[1] == "extend":
    os.pwrite(fd, b"x" * 65536, 65536)
elif sys.argv[1] == "write":
    os.pwrite(fd, b"y" * 65536, 0)
elif sys.argv[1] == "unlink":
    os.unlink(sys.argv[2])
elif sys.argv[1] == "rename":
    os.rename(sys.argv[2], sys.argv[2] + ".new")
elif sys.argv[1] == "fallocate":
    os.posix_fallocate(fd, 65536, 65536)
else:
    os.ftruncate(fd, 4096)
"""


def is_in_state_d(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "D"


@pytest.fixture(scope="module")
def disk(require: Callable[..., None]) -> Iterator[Device]:
    require("freeze")
    with loop_device() as device:
        yield Device(device.folder, device.folder)


@pytest.mark.parametrize("kind", ["extend", "write", "unlink", "rename", "fallocate", "ftruncate"])
def test_calls_for_files_on_a_frozen_disk(disk: Device, kind: str) -> None:
    """Which file it is is asked of the kernel without waiting for the disk."""
    file = disk.folder / f"{kind}.ibd"
    with Script(WRITER, kind, str(file)) as writer:
        disk.freeze()
        try:
            options = (*BY_POLL, "--interval", "50", "--threshold", "30", "--events")
            with Waits(*options, pids=(writer.pid,)) as probe:
                writer.go_on()
                wait_until(lambda: is_in_state_d(writer.pid), "the writer hangs")
                line = probe.line()
                while not any(key.waiters for key in line.keys):
                    line = probe.line()
                key = key_of(line, kind, str(file))
                disk.thaw()
                assert writer.wait(PATIENCE) == 0
                final = probe.rest()
        finally:
            disk.thaw()
    assert key.in_flight == 1
    assert key.file_class == "data"
    assert key.waiters[0].label == "verified"
    assert len(in_flight(probe.events, kind)) == 1
    assert final.kinds[kind].over <= 1


def test_threads_that_come_and_go() -> None:
    """None of them is taken for another one, and the descriptors of none are kept."""
    with Target("churn", "2000", "100") as target:
        options = (*BY_POLL, "--interval", "100", "--threshold", "50")
        with Waits(*options, pids=(target.pid,)) as watch:
            while target.ask("made")["made"] < MADE:
                watch.line()
            descriptors = len(list(Path(f"/proc/{watch.pid}/fd").iterdir()))
            final = watch.finish()
        assert target.running()
    assert descriptors < MADE / 2
    assert not final.lost["slots-full"]
    waits = [key for key in final.keys if key.kind == "mutex"]
    assert sum(key.in_flight for key in waits) >= 100


def test_the_target_executes_another_program(tmp_path: Path) -> None:
    program = [str(target_path("known_waits")), str(tmp_path)]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'read line && exec "$0" "$@"', *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        with Waits(*BY_POLL, "--interval", "50", "--threshold", "30", pids=(shell.pid,)) as watch:
            shell.stdin.write(b"go\n")
            shell.stdin.flush()
            while shell.stdout.readline().strip() != b"ready":
                continue
            found: list[list[str]] = []
            end = time.monotonic() + PATIENCE
            while WAITER not in found and time.monotonic() < end:
                shell.stdin.write(b"mutex 1 100\n")
                shell.stdin.flush()
                made = msgspec.json.decode(shell.stdout.readline(), type=Made)
                keys = [key for key in watch.line().keys if key.name == "the_mutex"]
                found = [own(stack.frames) for key in keys for stack in key.waiters]
            watch.finish()
        shell.stdin.close()
    assert WAITER in found
    assert {key.address for key in keys} == {made.address}


def test_the_target_ends(tmp_path: Path) -> None:
    options = (*BY_POLL, "--interval", "50", "--threshold", "30", "--events")
    with (
        Target("known_waits", str(tmp_path), "--waiters", "2") as target,
        Waits(*options, pids=(target.pid,)) as watch,
    ):
        make_reported(watch, target, "mutex", 2)
        # A thread that has ended before the next poll: how its wait ended is unknown.
        while len(ended(watch.events, "mutex")) < 2:
            watch.line()
        make(target, "hold mutex 2")
        os.kill(target.pid, signal.SIGKILL)
        final = watch.rest()
    assert watch.notices[-1] == Notice("ended", target.pid)
    assert key_of(final, "mutex", "the_mutex").over == 2


def test_one_more_target(target: Target, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with (
        known_waits(tmp_path / "other") as other,
        Waits(
            *BY_POLL, "--interval", "300", "--threshold", "30", "--events", pids=(target.pid,)
        ) as watch,
    ):
        make_reported(watch, target, "mutex")
        watch.ask(f"target {other.pid}".encode())
        make_reported(watch, other, "mutex", 1)
        make_reported(watch, other, "mutex", 1)
        final = watch.finish()
    assert {key.pid: key.over for key in final.keys if key.kind == "mutex"} == {
        target.pid: 1,
        other.pid: 2,
    }


def test_without_the_right_to_read(target: Target) -> None:
    drop = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    for backend in ("poll", "auto"):
        done = run_probe("waits", "--pid", str(target.pid), "--backend", backend, prefix=drop)
        assert done.code == 1
        assert ONE_LINE.match(done.stderr), done.stderr
        assert "CAP_SYS_PTRACE" in done.stderr


def test_its_own_interval_grows_with_the_number_of_threads(tmp_path: Path) -> None:
    """A poll of so many threads takes longer than its share of the shortest interval."""
    with known_waits(tmp_path, idle=1500) as target:
        with Waits("--backend", "poll", "--interval", "500", pids=(target.pid,)) as watch:
            lines = [watch.line() for _ in range(4)]
            watch.finish()
        assert target.running()
    intervals = [line.interval_ns or 0 for line in lines]
    assert all(interval > 10_000_000 for interval in intervals[1:]), intervals
    assert all(line.longest_interval_ns for line in lines)
    assert all(a <= b for a, b in itertools.pairwise(sorted(intervals)))
