# SPDX-License-Identifier: Apache-2.0
"""Which lock a thread waits for, and who holds it."""

from __future__ import annotations

from collections import Counter

import pytest

from stallscope.analyzers import catalog, engine
from tests.root.support import SMALL_BACKENDS, assert_lock, assert_unharmed, by_tid, run_probe, snap
from tests.support.targets import Target

__all__: list[str] = []


@pytest.mark.kernels("owners")
@pytest.mark.needs("libc-symbols")
@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_every_kind_of_lock(backend: str) -> None:
    with Target("locks") as target:
        capture = snap(target.pid, backend=backend).whole
        threads = by_tid(capture)
        facts = [fact for fact in target.facts if fact.fact == "lock"]
        waiters: Counter[str] = Counter(fact.address for fact in facts)
        for fact in facts:
            at = threads[fact.tid].lock
            assert at is not None, fact
            lock = capture.locks[at]
            if fact.kind != "join":  # which waits on a word inside of the thread's descriptor
                assert f"{lock.address:#x}" == fact.address, (fact, lock)
            assert_lock(lock, fact, waiters[fact.address])
        # Who only sits there waits for no lock.
        waiting = {fact.tid for fact in facts}
        assert all(t.lock is None for tid, t in threads.items() if tid not in waiting)
        assert_unharmed(target.pid)


@pytest.mark.small
@pytest.mark.needs("root", "bpf")
def test_rings_of_waiters() -> None:
    """A thread that waits for itself, and two that wait for each other."""
    with Target("locks") as target:
        capture = snap(target.pid).whole
        by_symbol = {fact.symbol: fact.tid for fact in target.facts}
        analysis = engine.analyze(capture, catalog.load())
        rings = {frozenset(cycle) for cycle in analysis.cycles}
        assert rings == {
            frozenset({by_symbol["lock_self"]}),
            frozenset({by_symbol["lock_ring_a"], by_symbol["lock_ring_b"]}),
        }


@pytest.mark.small
@pytest.mark.kernels("bpf")
@pytest.mark.needs("root", "bpf")
def test_kernel_frames_say_where_a_thread_sleeps() -> None:
    wanted = {
        "epoll": "epoll_wait",
        "mutex": "futex",
        "nanosleep": "nanosleep",
        "semop": "semtimedop",
    }
    with Target("threads", "36", "2") as target:
        threads = by_tid(snap(target.pid).whole)
        for fact in target.threads:
            names = [frame.symbol or "" for frame in threads[fact.tid].kernel_frames]
            assert names, fact.wait
            if fact.wait in wanted:
                assert any(wanted[fact.wait] in name for name in names), (fact.wait, names)


@pytest.mark.small
@pytest.mark.needs("root", "bpf")
def test_several_processes_in_one_capture() -> None:
    with Target("threads", "18", "3") as one, Target("locks") as two:
        taken = run_probe("snap", "--pid", str(one.pid), "--pid", str(two.pid))
        capture = taken.whole
        assert [process.pid for process in capture.processes] == [one.pid, two.pid]
        per_process = Counter(thread.process for thread in capture.threads)
        assert per_process[0] == len(one.threads) + 1
        assert per_process[1] >= len(two.facts)
        symbols = {lock.symbol for lock in capture.locks if lock.process == 1}
        assert "lock_plain" in symbols
