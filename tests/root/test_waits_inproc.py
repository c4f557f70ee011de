# SPDX-License-Identifier: Apache-2.0
"""Waits from the ring of the in-process library: the same as the wait programs would report."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Trigger
from stallscope.model.waitlines import Event, Key, Notice, WaitLine
from tests.root.mutex_waits import HOLDER, WAITER, assert_nothing_lost, own
from tests.root.support import ONE_LINE, run_probe
from tests.support.known_waits import Made, known_waits, make
from tests.support.servers.inside import one_ring, preloaded
from tests.support.targets import Target, target_path
from tests.support.watching import Line, Waits, key_of, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe", "library")

ONCE = ("--interval", "3600000")
"""No line but the last."""
NOBODY = 65534
PAUSE_MS = 150
"""Longer than the pause of the library after it has recorded who released a lock."""
CELLS = 128
"""Records that a ring holds (inproc/recorder_file.c)."""


@pytest.fixture
def target(tmp_path: Path, rings: Path) -> Iterator[Target]:
    with known_waits(tmp_path, waiters=8, idle=6, env=preloaded(rings)) as target:
        one_ring(rings)
        yield target
        assert target.running()


@pytest.fixture
def staged(tmp_path: Path, rings: Path) -> Iterator[Target]:
    """Return one whose locks are released when each waiter has looked up for the first time.

    Releases before that are not recorded: no long wait has been recorded yet.
    """
    with known_waits(tmp_path, waiters=8, idle=6, env=preloaded(rings), staged=True) as target:
        one_ring(rings)
        yield target
        assert target.running()


def watching(rings: Path, target: Target, *options: str) -> Waits:
    return Waits("--backend", "inproc", "--ring", str(rings), *options, pids=(target.pid,))


def ended(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == "mutex" and not event.in_flight]


def test_both_ends_of_a_wait(rings: Path, staged: Target) -> None:
    with watching(rings, staged, *ONCE, "--threshold", "1", "--events") as watch:
        made = make(staged, f"mutex 3 {PAUSE_MS}")
        final = watch.finish()
    key = key_of(final, "mutex", "the_mutex")
    assert [(stack.count, own(stack.frames), stack.label) for stack in key.waiters] == [
        (3, WAITER, "verified")
    ]
    assert [(stack.count, own(stack.frames), stack.tid) for stack in key.holders] == [
        (3, HOLDER, made.holder)
    ]
    assert key.waiters[0].frames[0] == "pthread_mutex_lock"
    assert key.holders[0].frames[0] == "pthread_mutex_unlock"
    reported = ended(watch.events)
    assert len(reported) == 3
    for event in reported:
        assert own(event.frames) == WAITER
        assert event.waker is not None
        assert event.waker.tid == made.holder
        assert own(event.waker.frames) == HOLDER


def test_rwlocks(rings: Path, target: Target) -> None:
    def owner_of(line: WaitLine) -> int | None:
        found = [key.owner_tid for key in line.keys if key.name == "the_rwlock"]
        return found[0] if found else None  # known once a waiter has looked up

    with watching(rings, target, "--interval", "20", "--threshold", "1") as watch:
        made = make(target, "hold rwlock 2")
        line = watch.line()
        # Of the idle threads one waits for another rwlock.
        while line.kinds["rwlock"].in_flight != 3 or not owner_of(line):
            line = watch.line()
        key = key_of(line, "rwlock", "the_rwlock")
        assert (key.address, key.owner_tid) == (made.address, made.holder)
        make(target, "release")
        key = key_of(watch.finish(), "rwlock", "the_rwlock")
    assert key.count == 2
    assert {frame for stack in key.waiters for frame in stack.frames} >= {"wait_for_the_rwlock"}


def test_files_have_paths_and_classes(rings: Path, target: Target, tmp_path: Path) -> None:
    operations = ("fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "unlink")
    with watching(rings, target, *ONCE) as watch:
        made = {operation: make(target, f"{operation} 3 4096") for operation in operations}
        renamed = make(target, "rename 3 4096")
        final = watch.finish()
    for operation, calls in made.items():
        key = key_of(final, operation, calls.path)
        assert (key.count, key.file_class) == (3, "other"), operation
    # There and back: two names.
    assert final.kinds["rename"].count == 3
    assert renamed.path in {key.name for key in final.keys if key.kind == "rename"} or {
        Path(key.name).parent for key in final.keys if key.kind == "rename"
    } == {tmp_path}
    assert_nothing_lost(final, "rate")


def test_thresholds_of_the_ring_are_taken_where_none_is_asked_for(
    tmp_path: Path, rings: Path
) -> None:
    env = preloaded(rings, STALLSCOPE_THRESHOLD="lock=7,fsync=350")
    with known_waits(tmp_path, env=env) as target:
        one_ring(rings)
        with watching(rings, target, *ONCE) as watch:
            make(target, "mutex 2 20")
            final = watch.finish()
    assert final.kinds["mutex"].threshold_ms == 7
    assert final.kinds["fsync"].threshold_ms == 350
    assert final.kinds["mutex"].over == 2


def test_two_readers_see_the_same(rings: Path, staged: Target) -> None:
    with (
        watching(rings, staged, *ONCE, "--threshold", "1") as one,
        watching(rings, staged, *ONCE, "--threshold", "1") as other,
    ):
        made = make(staged, f"mutex 2 {PAUSE_MS}")
        make(staged, "fsync 3")
        lines = [one.finish(), other.finish()]
    longest = max(call.length_ns for call in made.calls) / 1e6
    for line in lines:
        key = key_of(line, "mutex", "the_mutex")
        assert key.count == 2
        assert [own(stack.frames) for stack in key.holders] == [HOLDER]
        assert line.kinds["fsync"].count == 3
        # One of them takes it; to the other its bucket is left.
        assert PAUSE_MS / 2 <= key.max_ms <= longest


def read_only_watcher(rings: Path, target: Target, *options: str) -> Waits:
    """Return a watcher of a user who may read the ring, and has no right on the process."""
    shutil.chown(rings, group=NOBODY)
    rings.chmod(0o750)
    ring = one_ring(rings)
    shutil.chown(ring, group=NOBODY)
    ring.chmod(0o640)
    watch = watching(rings, target, *options)
    # Neither the checkout nor a folder of pytest's can be entered by everybody.
    copied = rings / probe.PROBE
    shutil.copy(probe.find(), copied)
    copied.chmod(0o755)
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    watch.argv[:1] = [*as_nobody, str(copied)]
    return watch


def test_a_ring_that_cannot_be_written(tmp_path: Path, rings: Path) -> None:
    env = preloaded(rings, STALLSCOPE_THRESHOLD="5")
    with known_waits(tmp_path, idle=6, env=env) as target:
        one_ring(rings)
        with read_only_watcher(rings, target, *ONCE, "--threshold", "1", "--events") as watch:
            make(target, "mutex 2 20")
            make(target, "fsync 3")
            answer = watch.ask(b"threshold lock 1")
            final = watch.finish()
    assert answer.type == "error"
    assert "cannot be written" in (answer.message or "")
    assert final.kinds["mutex"].threshold_ms == 5
    key = key_of(final, "mutex")
    assert (key.count, key.over) == (2, 2)
    assert final.kinds["fsync"].count == 3
    assert not [event for event in watch.events if event.kind in ("cond", "futex")]
    (thresholds,) = [
        one for line in watch.lines for one in line.programs if one.name == "thresholds"
    ]
    assert not thresholds.ok
    assert "cannot be written" in (thresholds.why_not or "")


def test_records_that_were_overwritten_are_counted(rings: Path, target: Target) -> None:
    count = CELLS + 60
    with watching(rings, target, *ONCE, "--threshold", "1") as watch:
        watch.process.send_signal(signal.SIGSTOP)
        make(target, f"mutex {count} 2")
        watch.process.send_signal(signal.SIGCONT)
        final = watch.finish()
    assert final.kinds["mutex"].count == count
    assert final.kinds["mutex"].over == count
    key = key_of(final, "mutex", "the_mutex")
    counted = sum(stack.count for stack in key.waiters)
    assert final.lost["ring-full"] > 0
    # WAKER records take cells, too.
    assert count <= counted + final.lost["ring-full"] + final.lost["rate"]
    assert counted < count


def test_a_process_that_has_said_nothing_yet_is_awaited(
    tmp_path: Path, rings: Path, target: Target
) -> None:
    """A server that was just started makes its ring when a thread of it has to wait."""
    with (
        watching(rings, target, "--interval", "20") as watch,
        subprocess.Popen(
            [sys.executable, "-c", SYNCS, str(tmp_path / "synced")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **preloaded(rings)},
        ) as young,
    ):
        assert young.stdin is not None
        assert young.stdout is not None
        assert young.stdout.readline() == b"ready\n"
        assert len(list(rings.glob("*.ring"))) == 1
        assert watch.ask(f"target {young.pid}".encode()) == Notice("target", young.pid)
        while not any(key.pid == young.pid for key in watch.line().keys):
            young.stdin.write(b"fsync\n")
            young.stdin.flush()
            assert young.stdout.readline() == b"done\n"
        young.stdin.close()
        while watch.notices[-1] != Notice("ended", young.pid):
            assert watch.read() is not None
        final = watch.finish()
    (key,) = [key for key in final.keys if key.pid == young.pid]
    assert (key.kind, key.name) == ("fsync", str(tmp_path / "synced"))


SYNCS = """
import os, sys
print("ready", flush=True)
file = open(sys.argv[1], "wb")
for line in sys.stdin:
    os.fsync(file.fileno())
    print("done", flush=True)
"""


def test_the_target_executes_another_program(tmp_path: Path, rings: Path) -> None:
    """Its ring is another one then, and what lies at an address another lock."""
    program = [str(target_path("known_waits")), str(tmp_path), "--idle", "6"]
    with subprocess.Popen(
        [sys.executable, "-c", EXECUTES, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **preloaded(rings)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        one_ring(rings)
        options = ("--backend", "inproc", "--ring", str(rings), "--interval", "20")
        with Waits(*options, "--threshold", "1", pids=(process.pid,)) as watch:
            process.stdin.write(b"go\n")
            process.stdin.flush()
            while (said := process.stdout.readline().strip()) != b"ready":
                assert said, "it has ended"
            while len(list(rings.glob("*.ring"))) < 2:
                watch.line()
            found: list[Key] = []
            while not found:
                process.stdin.write(b"mutex 1 5\n")
                process.stdin.flush()
                made = msgspec.json.decode(process.stdout.readline(), type=Made)
                found = [key for key in watch.line().keys if key.name == "the_mutex"]
            assert {key.address for key in found} == {made.address}
            watch.finish()
        process.stdin.close()


EXECUTES = """
import os, sys, threading, time
threading.Thread(target=lambda: time.sleep(0.01)).start()
with open("/dev/shm/stallscope-test-%d" % os.getpid(), "wb") as file:
    os.unlink(file.name)
    os.fsync(file.fileno())
os.read(0, 3)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_no_ring() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        done = run_probe("waits", "--backend", "inproc", "--pid", str(process.pid))
        process.kill()
    assert done.code == 1
    assert ONE_LINE.match(done.stderr)
    assert "libstallscope.so" in done.stderr


@pytest.mark.needs("waits")
def test_the_wait_programs_agree(tmp_path: Path, rings: Path) -> None:
    """One scenario, twice: what is waited for has the same kind, name, class and stacks."""
    options = (*ONCE, "--threshold", "1", "--events")
    env = preloaded(rings)
    with (
        known_waits(tmp_path, waiters=4, idle=6) as target,
        Waits("--backend", "bpf", *options, pids=(target.pid,)) as watch,
    ):
        scenario(target)
        by_probes = watch.finish()
    with known_waits(tmp_path, waiters=4, idle=6, env=env, staged=True) as target:
        one_ring(rings)
        with watching(rings, target, *options) as watch:
            scenario(target)
            by_ring = watch.finish()
    assert (by_probes.source, by_ring.source) == ("bpf", "inproc")
    assert waits_of(by_ring).keys() == waits_of(by_probes).keys()
    assert {kind for kind, _, _ in waits_of(by_ring)} == set(KINDS)
    files = {key for key in waits_of(by_ring) if key[2] is not None}
    assert {key: waits_of(by_ring)[key] for key in files} == {
        key: waits_of(by_probes)[key] for key in files
    }
    assert key_of(by_ring, "mutex").count == 6
    assert set(HOLDER) <= holders(by_ring) & holders(by_probes)
    assert (by_ring.kinds["cond"].count, by_probes.kinds["cond"].count) == (3, 3)


def scenario(target: Target) -> None:
    for command in (
        f"mutex 2 {PAUSE_MS} 3",
        "rwlock 2 5 2",
        "cond 3 5",
        "fsync 4",
        "fdatasync 3 4096",
        "fallocate 5 65536",
        "ftruncate 3 4096",
        "unlink 2",
    ):
        make(target, command)


KINDS = ("mutex", "rwlock", "fsync", "fdatasync", "fallocate", "ftruncate", "unlink")
"""Of the scenario. What only probes see: semaphores, and reads and writes of a few bytes."""


def waits_of(line: WaitLine) -> dict[tuple[str, str, str | None], int]:
    """Return how often each thing was waited for, but for locks of the idle threads.

    The path that the wait programs report of a file that has been closed since begins with dots.
    """
    return {
        (key.kind, key.name.removeprefix("..."), key.file_class): key.count
        for key in line.keys
        if key.kind in KINDS and not key.name.startswith("waits+")
    }


def holders(line: WaitLine) -> set[str]:
    stacks = key_of(line, "mutex", "the_mutex").holders
    return {frame for stack in stacks for frame in own(stack.frames)}


SERVE = ("--backend", "inproc", "--events", "--threshold", "20")


def of_mutex(event: Line) -> bool:
    return (event["kind"], event["name"]) == ("mutex", "the_mutex")


def assert_names_the_wait(trigger: Trigger | None, reason: str, held: Made) -> None:
    assert trigger is not None
    assert (trigger.reason, trigger.kind, trigger.name) == (reason, "mutex", "the_mutex")
    assert trigger.address == int(held.address or "0", 16)
    assert trigger.tid in {call.tid for call in held.calls}
    assert trigger.waiters == len(held.calls)


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--capture-threshold", "mutex=400"), "threshold"), (("--convoy", "5"), "convoy")],
)
def test_a_wait_takes_a_capture_while_it_goes_on(
    rings: Path, target: Target, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    serve = (*SERVE, *options, "--ring", str(rings), "--captures", str(folder))
    with watcher(target.pid, options=serve) as watch:
        held = make(target, "hold mutex 5")
        line = watch.line(lambda line: line["type"] == "captured", "capture")
        capture = capturefile.read(Path(line["path"]))
        assert capture.backend == "inproc"
        assert_names_the_wait(capture.trigger, reason, held)
        (lock,) = [lock for lock in capture.locks if lock.symbol == "the_mutex"]
        assert (lock.owner_tid, lock.waiters) == (held.holder, 5)
        reported = watch.event(lambda event: of_mutex(event) and event["in_flight"], "event")
        assert reported["tid"] in {call.tid for call in held.calls}
        make(target, "release")
        over = watch.event(lambda event: of_mutex(event) and not event["in_flight"], "its end")
        assert over["length_ms"] >= 20
        assert watch.ask("waits", "waits")["source"] == "inproc"
