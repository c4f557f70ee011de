# SPDX-License-Identifier: Apache-2.0
"""What a ring says is a capture like any other, and takes no right on the process.

The reader here is an ordinary user without capabilities, and mostly the process is one that even
its own user may not read.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label
from tests.root.support import (
    ONE_LINE,
    Snap,
    assert_frames,
    assert_lock,
    assert_unharmed,
    by_tid,
    own_frames,
    run_probe,
)
from tests.support.known_waits import make
from tests.support.servers import MEMORY, PATIENCE, wait_until
from tests.support.servers.inside import library_path, one_ring
from tests.support.targets import Fact, Target, build_folder

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "library")]

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
WITHOUT_RIGHTS = (*AS_NOBODY, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")

# A target makes sure of its threads by /proc/self/task, which is root's where it is undumpable.
SEES_ITSELF = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")

NOT_SEEN = {"sem", "join", "unknown"}
"""Kinds of locks whose waits the library does not stand in for."""
SEEN = {"mutex": "pthread_mutex_lock", "cond": "pthread_cond_wait"}
SEEN |= {"rdlock": "pthread_rwlock_rdlock", "wrlock": "pthread_rwlock_wrlock"}


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that nobody can enter, with a link ``rings`` to one of nobody's own.

    That one is in memory: on a disk each write of the server's could wait for that.
    """
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-inproc-") as name,
        tempfile.TemporaryDirectory(prefix="stallscope-rings-", dir=MEMORY) as rings,
    ):
        os.chown(rings, NOBODY, NOBODY)
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "rings").symlink_to(rings)
        yield folder


@pytest.fixture(autouse=True)
def public_probe(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a copy of the probe that everybody can execute, and search the folder for rings."""
    shutil.copy(probe.find(), public / "stallscope-probe")
    monkeypatch.setenv("STALLSCOPE_PROBE", str(public / "stallscope-probe"))
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(public / "rings"))


def inside(public: Path, name: str, *arguments: str, undumpable: bool = False) -> Target:
    """Return nobody's target with the library inside, not started yet."""
    libraries = [library_path()]
    wrapper = [*AS_NOBODY]
    if undumpable:
        wrapper += SEES_ITSELF
        libraries.append(build_folder() / "tests" / "targets" / "target-undumpable.so")
    copies = [shutil.copy(library, public) for library in libraries]
    copy = Path(shutil.copy(build_folder() / "tests" / "targets" / f"target-{name}", public))
    return Target(
        name,
        *arguments,
        executable=copy,
        wrapper=wrapper,
        env={
            "LD_PRELOAD": ":".join(map(str, copies)),
            "STALLSCOPE_RUNTIME_DIR": str(public / "rings"),
            "STALLSCOPE_THRESHOLD": "lock=20",
        },
    )


def snap(pid: int, *options: str, backend: str = "inproc") -> Snap:
    return run_probe(
        "snap", "--pid", str(pid), "--backend", backend, *options, prefix=WITHOUT_RIGHTS
    )


def when_recorded(pid: int, tids: Sequence[int], *options: str) -> Capture:
    """Return a capture in which these threads have stacks: a young wait has none yet."""

    def recorded() -> list[Capture]:
        capture = snap(pid, *options).whole
        threads = by_tid(capture)
        return [capture] if all(threads[tid].frames for tid in tids) else []

    return wait_until(recorded, f"stacks of {len(tids)} threads")[0]


def lock_facts(target: Target) -> list[Fact]:
    facts = [f for f in target.facts if f.fact == "lock" and f.kind not in NOT_SEEN]
    # Woken from its condition it waits for the mutex, within the same call.
    return [fact for fact in facts if fact.symbol != "cond_back_mutex"]


def assert_locks(capture: Capture, facts: Sequence[Fact]) -> None:
    threads = by_tid(capture)
    waiters: Counter[str] = Counter(fact.address for fact in facts)
    for fact in facts:
        thread = threads[fact.tid]
        assert thread.label is Label.VERIFIED, (fact, thread)
        assert thread.lock is not None, (fact, thread)
        assert thread.waited_ns, (fact, thread)
        lock = capture.locks[thread.lock]
        assert f"{lock.address:#x}" == fact.address, (fact, lock)
        assert_lock(lock, fact, waiters[fact.address])


@pytest.mark.needs("bpf")
def test_callers_see_the_replaced_function_and_not_the_library(public: Path) -> None:
    """What it calls for its own sake is in no stack: names compare, whatever the source."""
    with inside(public, "locks") as target:
        facts = [fact for fact in lock_facts(target) if fact.kind == "mutex"]
        when_recorded(target.pid, [fact.tid for fact in facts])  # they wait by stages
        capture = run_probe("snap", "--pid", str(target.pid), "--backend", "bpf").whole
        library = [
            frame
            for thread in capture.threads
            for frame in thread.frames
            if frame.module is not None and "libstallscope" in frame.module.path
        ]
        threads = by_tid(capture)
        for fact in facts:
            names = [frame.symbol for frame in threads[fact.tid].frames]
            assert "pthread_mutex_lock" in names, names
        assert {frame.symbol for frame in library} <= {*SEEN.values(), "pthread_cond_timedwait"}


@pytest.mark.small
@pytest.mark.kernels("inproc")
@pytest.mark.parametrize(
    "undumpable", [False, pytest.param(True, marks=pytest.mark.needs("dac-read-search"))]
)
def test_every_kind_of_lock_without_any_right(public: Path, undumpable: bool) -> None:
    with inside(public, "locks", undumpable=undumpable) as target:
        facts = lock_facts(target)
        assert {fact.kind for fact in facts} == {"mutex", "rwlock", "cond"}
        capture = when_recorded(target.pid, [fact.tid for fact in facts])
        assert capture.backend == "inproc"
        assert capture.processes[0].exe == str(target.executable)
        assert {note.code for note in capture.notes} <= {"sandbox-incomplete"}
        assert_locks(capture, facts)
        # A thread without a recorded wait is listed, and nothing is invented for it.
        listed = {int(task.name) for task in Path(f"/proc/{target.pid}/task").iterdir()}
        assert by_tid(capture).keys() == listed
        waiting = {fact.tid for fact in facts}
        others = [t for t in capture.threads if t.tid not in waiting and t.lock is None]
        assert others
        for thread in others:
            assert not thread.frames
            assert thread.unwind == "not-tried"
            assert thread.label in (Label.RACED, Label.RUNNING)
        assert_unharmed(target.pid)


def test_stacks_begin_with_what_the_program_called(public: Path) -> None:
    with inside(public, "threads", "36", "7", undumpable=True) as target:
        facts = [fact for fact in target.threads if fact.wait in SEEN]
        assert {fact.wait for fact in facts} == SEEN.keys()
        capture = when_recorded(target.pid, [fact.tid for fact in facts])
        threads = by_tid(capture)
        assert_frames(capture, facts, "target-threads")
        for fact in facts:
            thread = threads[fact.tid]
            assert thread.unwind == "complete"
            assert str(thread.frames[0]) == SEEN[fact.wait]
            assert own_frames(thread, "libstallscope.so") == [SEEN[fact.wait]]
            assert thread.syscall is not None
            assert thread.syscall.name == "futex"
            assert thread.name == f"w-{fact.wait}"
        # poll, read, nanosleep and so on are seen by the kernel alone.
        unseen = [threads[fact.tid] for fact in target.threads if fact.wait not in SEEN]
        assert unseen
        assert not any(thread.frames for thread in unseen)


def test_who_released_a_lock_is_reported(public: Path) -> None:
    (public / "files").mkdir()
    os.chown(public / "files", NOBODY, NOBODY)
    # Staged, so that the release of a lock is recorded.
    waiting = ("--waiters", "2", "--idle", "0", "--depth", "1", "--staged", "1")
    with inside(public, "known_waits", str(public / "files"), *waiting) as target:
        make(target, "mutex 1 30")  # the ring is made
        made = make(target, "mutex 3 150 2")  # one of each object in 100 ms is recorded
        assert made.address is not None
        capture = snap(target.pid).whole
        releases = [r for r in capture.releases if r.tid == made.holder]
        assert releases, capture.releases
        latest = releases[0]
        names = [str(frame) for frame in latest.frames]
        assert names[0] == "pthread_mutex_unlock"
        assert "hold_the_mutex" in names
        assert latest.label is Label.VERIFIED
        assert latest.lock is None  # nobody waits for it any more
        assert latest.waited_ns is not None
        assert latest.waited_ns >= 150_000_000
        assert latest.ago_ns < PATIENCE * 1_000_000_000
        # One record for all that have one stack: each of the three let somebody go.
        assert sum(release.count for release in releases) >= 3
        # While somebody waits, the record is about that lock.
        make(target, "hold mutex 2")
        calls = [t.tid for t in snap(target.pid).whole.threads if t.lock is not None]
        again = when_recorded(target.pid, calls)
        (lock,) = [lock for lock in again.locks if f"{lock.address:#x}" == made.address]
        assert lock.owner_tid == made.holder
        linked = [r for r in again.releases if r.lock is not None]
        assert [again.locks[r.lock].address for r in linked if r.lock is not None] == [
            lock.address
        ] * len(linked)
        assert linked
        make(target, "release")


def has_ended(pid: int) -> bool:
    """Return whether all threads of a child have ended: the first one may be ahead of the
    others."""
    process = Path(f"/proc/{pid}")
    state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    return state == "Z" and len(list((process / "task").iterdir())) == 1


@pytest.mark.small
def test_a_dead_process_leaves_a_capture(public: Path) -> None:
    with inside(public, "locks") as target:
        facts = lock_facts(target)
        when_recorded(target.pid, [fact.tid for fact in facts])
        ring = one_ring(public / "rings")
        alive = run_probe("ring", "--ring", str(ring), prefix=WITHOUT_RIGHTS)
        os.kill(target.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(target.pid), "its end")
        dead = run_probe("ring", "--ring", str(ring), prefix=WITHOUT_RIGHTS)
    for taken in (alive, dead):
        assert taken.code == 0, taken.stderr
        assert taken.whole.backend == "inproc"
        assert taken.whole.processes[0].pid == target.pid
        assert_locks(taken.whole, facts)
    assert (alive.whole.backend_reason or "").endswith("runs")
    assert (dead.whole.backend_reason or "").endswith("ended")


def test_auto_takes_a_ring_only_where_nothing_else_works(public: Path) -> None:
    with inside(public, "locks") as target:
        taken = snap(target.pid, backend="auto").whole
        assert taken.backend == "proc"
    with inside(public, "locks", undumpable=True) as target:
        taken = snap(target.pid, backend="auto").whole
        assert taken.backend == "inproc"
        reason = taken.backend_reason or ""
        assert "proc: cannot open" in reason
        assert reason.endswith("inproc: works here and stops no thread")


def assert_one_line(taken: Snap, code: int, *words: str) -> None:
    assert taken.code == code, taken.stderr
    assert ONE_LINE.match(taken.stderr), taken.stderr
    for word in words:
        assert word in taken.stderr, (word, taken.stderr)


def test_missing_data_is_reported(public: Path) -> None:
    with inside(public, "locks") as one, Target("threads", "1", "1") as other:
        ring = one_ring(public / "rings")
        assert_one_line(snap(other.pid), 1, f"no ring of process {other.pid}", "/run/stallscope")
        assert_one_line(snap(other.pid, "--ring", str(ring)), 2, "of another process")
        assert_one_line(snap(one.pid, "--ring", "/nowhere"), 1, "/nowhere", "No such file")
        assert snap(one.pid, "--ring", str(ring)).code == 0
        assert snap(one.pid, "--ring", str(ring.parent)).code == 0
        os.chown(ring, 0, 0)
        assert_one_line(snap(one.pid), 1, str(ring), "Permission denied", "root")
        # Somebody else's file with its name is not its ring, also not to root.
        os.chown(ring, 4711, 4711)
        taken = run_probe("snap", "--pid", str(one.pid), "--backend", "inproc")
        assert_one_line(taken, 1, str(ring), "4711")
    nothing = run_probe("ring", "--ring", str(public / "stallscope-probe"))
    assert_one_line(nothing, 1, "not a ring")


def test_a_second_capture_of_one_probe_is_of_another_moment(public: Path) -> None:
    """serve opens the ring again for each capture."""
    with inside(public, "locks", undumpable=True) as target:
        facts = lock_facts(target)
        when_recorded(target.pid, [fact.tid for fact in facts])
        files = [public / "rings" / f"{number}.jsonl" for number in (1, 2)]
        done = subprocess.run(
            [
                *(*WITHOUT_RIGHTS, str(probe.find()), "serve", "--backend", "inproc"),
                *("--pid", str(target.pid)),
            ],
            input="".join(f"snap {file}\n" for file in files) + "quit\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"written"') == 2
        one, two = (capturefile.read(file) for file in files)
        for capture in (one, two):
            assert_locks(capture, facts)
        before, after = by_tid(one), by_tid(two)
        assert all(
            (before[fact.tid].waited_ns or 0) < (after[fact.tid].waited_ns or 0) for fact in facts
        )
