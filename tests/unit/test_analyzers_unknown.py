# SPDX-License-Identifier: Apache-2.0
"""Stalls that no signature knows: what the waiters share, and the one thread that differs."""

from __future__ import annotations

import random

import pytest

from stallscope.analyzers import catalog, engine
from tests.unit.scenes import IDLE_SESSION, Scenery, blocker_of

SEED = 20_261_121
WAITS = {
    "mutex": "__lll_lock_wait, pthread_mutex_lock",
    "adaptive mutex": "futex_wait, __GI___lll_lock_wait, ___pthread_mutex_lock",
    "read lock": "__futex_abstimed_wait64, __pthread_rwlock_rdlock_full64, pthread_rwlock_rdlock",
    "write lock": "pthread_rwlock_wrlock",
    "condition": "futex_wait_cancelable, __pthread_cond_wait_common, __pthread_cond_wait",
    "condition with a time limit": "__pthread_cond_wait_common, ___pthread_cond_timedwait64",
    "C++ condition": "pthread_cond_wait, std::condition_variable::wait",
    "semaphore": "do_futex_wait.constprop.0, __new_sem_wait_slow, sem_wait",
    "sleep and try again": "clock_nanosleep, nanosleep, usleep",
    "bare futex": "syscall",
}


def invent(rng: random.Random, count: int) -> list[str]:
    """Return names of functions that no server has."""
    words = ["zorn", "quib", "flam", "drex", "vosk", "plim", "gark", "trub", "wexl", "hasp"]
    return [f"{rng.choice(words)}_{rng.choice(words)}_{rng.randrange(1000)}" for _ in range(count)]


@pytest.mark.parametrize("kind", WAITS)
def test_a_stall_that_nobody_knows(kind: str, signatures: catalog.Catalog) -> None:
    rng = random.Random(f"{SEED} {kind}")
    print(f"seed {SEED} {kind}")
    site, caller, *work = invent(rng, 5)
    session = "mysql_execute_command, dispatch_command, do_command, handle_one_connection"
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=rng.randrange(3, 30))
    for deeper in invent(rng, 2):  # two ways to the same place
        stack = f"{WAITS[kind]}, {site}, {caller}, {deeper}, {session}"
        scenery.add(stack, times=rng.randrange(6, 40), state="?")
    (blocker,) = scenery.add(f"{', '.join(work)}, {session}", state="?")
    (finding,) = engine.analyze(scenery.capture(), signatures).findings
    assert finding.signature is None
    assert site in finding.title
    assert f"they share {site} < {caller}" in " ".join(finding.evidence)
    assert blocker_of(finding).tid == blocker
    assert 0.2 < finding.confidence < 0.5
    assert finding.impact.kind == "stall"
    assert any("no signature" in text for text in finding.against)


@pytest.mark.parametrize("kind", ["mutex", "write lock", "bare futex"])
def test_lock_words_name_the_owner(kind: str, signatures: catalog.Catalog) -> None:
    rng = random.Random(f"{SEED} {kind}")
    site, *work = invent(rng, 3)
    scenery = Scenery()
    lock = scenery.lock(owner=7)
    scenery.add(f"{WAITS[kind]}, {site}, do_command", times=20, lock=lock)
    scenery.add(f"{', '.join(work)}, do_command", tid=7, state="R")
    scenery.add(f"{', '.join(invent(rng, 3))}, do_command", times=3, state="R")
    finding = engine.analyze(scenery.capture(), signatures).findings[0]
    assert finding.signature == "futex-convoy"
    assert blocker_of(finding).tid == 7


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_few_threads_are_no_stall(count: int, signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=20)
    scenery.add(f"{WAITS['condition']}, zorn_wait, zorn_work, do_command", times=count, state="?")
    assert engine.analyze(scenery.capture(), signatures).findings == ()


def test_threads_that_do_different_things_are_no_stall(signatures: catalog.Catalog) -> None:
    rng = random.Random(SEED)
    scenery = Scenery()
    for name in invent(rng, 30):
        scenery.add(f"{WAITS['condition']}, {name}, do_command", state="?")
    assert engine.analyze(scenery.capture(), signatures).findings == ()


def test_what_users_ask_for_is_no_stall(signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    sleep = f"{WAITS['condition']}, Interruptible_wait::wait, Item_func_sleep::val_int, do_command"
    scenery.add(sleep, times=30, state="?")
    scenery.add(
        "epoll_wait, WaitEventSetWait, WaitLatch, pg_sleep, ExecResult, PostgresMain", times=9
    )
    assert engine.analyze(scenery.capture(), signatures).findings == ()
