# SPDX-License-Identifier: Apache-2.0
"""Verdicts: states, rings, convoys, unknown stalls, groups, servers; roots, and time it takes."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.model.capture import OF_TABLES, Capture, LockKind
from tests.unit.costs import cpu_seconds
from tests.unit.scenes import (
    COND,
    FUTEX,
    IDLE_SESSION,
    OPENING,
    REDO_WAIT,
    SESSION,
    Analyze,
    Scenery,
    blocker_of,
)

__all__: list[str] = []


# --- states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "state", "on_cpu", "expected"),
    [
        (IDLE_SESSION, "S", False, "idle"),
        (IDLE_SESSION, "?", False, "idle"),
        (IDLE_SESSION, "R", True, "running"),
        (OPENING, "S", False, "waiting"),
        (OPENING, "?", False, "waiting"),
        (OPENING, "R", False, "waiting"),
        (f"{COND}, net_real_write, {SESSION}", "R", False, "waiting"),
        (IDLE_SESSION, "R", False, "idle"),
        (f"pread64, os_file_pread, {SESSION}", "R", False, "running"),
        (f"write, net_real_write, {SESSION}", "R", False, "running"),
        (f"ut_delay, mutex_spin_wait, trx_start, {SESSION}", "R", True, "waiting"),
        (f"JOIN::exec, {SESSION}", "R", True, "running"),
        (f"JOIN::exec, {SESSION}", "R", False, "running"),
        (f"JOIN::exec, {SESSION}", "?", False, "running"),
        (f"JOIN::exec, {SESSION}", "S", False, "waiting"),
        (f"pread64, os_file_pread, {SESSION}", "D", False, "waiting"),
        (f"pread64, os_file_pread, {SESSION}", "?", False, "waiting"),
        (f"pread64, os_file_pread, {SESSION}", "R", True, "running"),
        ("", "S", False, "waiting"),
        ("", "Z", False, "idle"),
        ("??, ??, ??, pthread_cond_wait, ??, ??", "S", False, "idle"),
        ("??, ??, ??, pthread_mutex_lock, ??, ??", "S", False, "waiting"),
        (f"{COND}, os_event_wait_low, srv_lock_timeout_thread", "S", False, "idle"),
        (
            f"{COND}, os_event_wait_low, sync_array_wait_event, mutex_spin_wait, "
            "srv_lock_timeout_thread",
            "S",
            False,
            "waiting",
        ),
    ],
)
def test_states(analyze: Analyze, stack: str, state: str, on_cpu: bool, expected: str) -> None:
    scenery = Scenery()
    scenery.add(stack, state=state, on_cpu=on_cpu)
    assert analyze(scenery).states == (expected,)


def test_a_nameless_stack_waits_as_its_system_call_says(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add("??, ??", state="?", syscall="futex")
    scenery.add("??, ??", state="?")
    assert analyze(scenery).states == ("waiting", "running")


# --- rings --------------------------------------------------------------------------------------


def test_a_deadlock_of_two_and_the_waiters_behind_it(analyze: Analyze) -> None:
    scenery = Scenery()
    first = scenery.lock(owner=2, symbol="LOCK_a")
    second = scenery.lock(owner=1, symbol="LOCK_b")
    scenery.add(f"{FUTEX}, take_a, {SESSION}", tid=1, lock=first)
    scenery.add(f"{FUTEX}, take_b, {SESSION}", tid=2, lock=second)
    scenery.add(f"{FUTEX}, take_a, {SESSION}", times=5, lock=first)
    analysis = analyze(scenery)
    assert sorted(analysis.cycles[0]) == [1, 2]
    verdict = analysis.findings[0]
    assert verdict.signature == "mutex-deadlock"
    assert verdict.threads == 7
    assert verdict.confidence > 0.9
    assert any("LOCK_a" in text for text in verdict.evidence)
    assert any("5 threads wait queued behind" in text for text in verdict.evidence)


def test_a_thread_that_waits_for_itself(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(owner=9)
    scenery.add(f"{FUTEX}, again, {SESSION}", tid=9, lock=lock)
    analysis = analyze(scenery)
    assert analysis.cycles == ((9,),)
    assert analysis.findings[0].signature == "mutex-deadlock"
    assert any("itself" in text for text in analysis.findings[0].evidence)


@pytest.mark.parametrize("kind", sorted(OF_TABLES))
def test_a_waiter_of_a_lock_of_tables_that_is_its_own_was_granted_it(
    analyze: Analyze, kind: LockKind
) -> None:
    """In a burst its wait is from an earlier capture: it has not run since."""
    scenery = Scenery()
    lock = scenery.lock(owner=9, kind=kind)
    scenery.add(f"{FUTEX}, again, {SESSION}", tid=9, lock=lock)
    scenery.add(f"{FUTEX}, again, {SESSION}", times=5, lock=lock)
    analysis = analyze(scenery)
    assert analysis.cycles == ()
    assert "mutex-deadlock" not in [finding.signature for finding in analysis.findings]


def test_a_ring_of_words_that_moved_is_none(analyze: Analyze) -> None:
    """The owner may have waited when its stack was read, and have got the lock since."""
    scenery = Scenery()
    first = scenery.lock(owner=2, stable=False)
    second = scenery.lock(owner=1)
    scenery.add(f"{FUTEX}, take_a, {SESSION}", tid=1, lock=first)
    scenery.add(f"{FUTEX}, take_b, {SESSION}", tid=2, lock=second)
    analysis = analyze(scenery)
    assert analysis.cycles == ()
    assert "mutex-deadlock" not in [finding.signature for finding in analysis.findings]


def test_a_ring_that_runs_is_none(analyze: Analyze) -> None:
    scenery = Scenery()
    first = scenery.lock(owner=2)
    second = scenery.lock(owner=1)
    scenery.add(f"{FUTEX}, take_a, {SESSION}", tid=1, lock=first)
    scenery.add(f"take_b, {SESSION}", tid=2, lock=second, state="R", on_cpu=True)
    assert "mutex-deadlock" not in [f.signature for f in analyze(scenery).findings]


# --- any process --------------------------------------------------------------------------------


def test_a_convoy_of_any_program(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add("compress, worker, start_thread", state="R", on_cpu=True)
    lock = scenery.lock(owner=owner, symbol="big_lock")
    scenery.add(f"{FUTEX}, put, worker, start_thread", times=40, lock=lock)
    analysis = analyze(scenery)
    verdict = analysis.findings[0]
    assert verdict.signature == "futex-convoy"
    assert blocker_of(verdict).tid == owner
    assert analysis.server is None
    assert verdict.confidence > 0.6


def test_syncs_together(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add("fdatasync, flush_segment, worker, start_thread", times=8, state="D")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "fsync-stall"
    assert verdict.threads == 8


def test_a_redo_sync_is_not_called_a_sync_of_anything(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(REDO_WAIT, times=20)
    sync = f"fsync, os_file_flush_func, fil_flush, log_write_up_to, innobase_commit, {SESSION}"
    scenery.add(sync, times=3, state="D")
    assert [f.signature for f in analyze(scenery).findings] == ["innodb-redo-sync"]


def test_more_runnable_threads_than_cpus(analyze: Analyze) -> None:
    scenery = Scenery(cpus=2)
    scenery.add(f"JOIN::exec, {SESSION}", times=20, state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "cpu-saturated"
    assert verdict.threads == 20


@pytest.mark.parametrize("cpus", [None, 16])
def test_running_threads_are_no_stall(analyze: Analyze, cpus: int | None) -> None:
    scenery = Scenery(cpus=cpus)
    scenery.add(f"JOIN::exec, {SESSION}", times=20, state="R")
    assert analyze(scenery).findings == ()


def test_a_stall_that_no_signature_knows(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(f"{COND}, audit_wait, audit_log, {SESSION}", times=30)
    (other,) = scenery.add(f"write, audit_flush, audit_log, {SESSION}", state="D")
    scenery.add(IDLE_SESSION, times=10)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature is None
    assert "audit_wait" in verdict.title
    assert verdict.threads == 30
    assert blocker_of(verdict).tid == other
    assert any("audit_wait < audit_log" in text for text in verdict.evidence)
    assert 0.4 < verdict.confidence <= 0.6


def test_workers_of_any_program_that_wait_for_work_are_no_stall(analyze: Analyze) -> None:
    scenery = Scenery()
    wait = f"{COND}, boost::condition_variable::wait, Queue<int>::pop, Worker::work, start_thread"
    scenery.add(wait, times=40)
    assert analyze(scenery).findings == ()


def test_an_empty_capture(analyze: Analyze) -> None:
    analysis = analyze(Scenery())
    assert (analysis.findings, analysis.groups, analysis.states) == ((), (), ())


def test_threads_without_frames(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(owner=100)
    scenery.add("", times=10, lock=lock)
    analysis = analyze(scenery)
    assert len(analysis.states) == 10
    assert analysis.groups[0].frames == ()


def test_indexes_of_locks_that_are_not_there(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(OPENING, times=6, lock=99)
    assert analyze(scenery).findings[0].signature == "table-open-lock"


# --- groups, options, servers -------------------------------------------------------------------


def test_groups_are_those_of_names_with_counts(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add("__lll_lock_wait, pthread_mutex_lock, f(int), g", times=3)
    scenery.add("__lll_lock_wait, ___pthread_mutex_lock, f.part.0, g", count=4)
    scenery.add(IDLE_SESSION, times=50)
    first, second = analyze(scenery).groups
    assert (first.count, first.frames[2:]) == (7, ("f", "g"))
    assert first.threads == (0, 1, 2, 3)
    assert (second.count, second.idle) == (50, True)


def test_groups_of_the_first_frames(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(f"{FUTEX}, f, a", times=2)
    scenery.add(f"{FUTEX}, f, b", times=2)
    (group,) = analyze(scenery, grouping={"frames": 3}).groups
    assert (group.count, len(group.frames)) == (4, 3)


def test_weak_findings_are_left_out_unless_asked_for(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(OPENING)
    scenery.add(IDLE_SESSION)
    scenery.add(f"JOIN::exec, {SESSION}", times=5, state="R")
    assert analyze(scenery).findings == ()
    assert analyze(scenery, min_confidence=0.0).findings[0].signature == "table-open-lock"


@pytest.mark.parametrize(
    ("exe", "version", "stack", "server", "number"),
    [
        ("/usr/sbin/mariadbd", "10.11.19-MariaDB-0+deb12u1", "x", "mariadb", "10.11.19"),
        ("/usr/sbin/mariadbd", "", "x", "mariadb", None),
        ("/usr/sbin/mysqld", "5.5.9", "x", "mysql", "5.5.9"),
        ("/usr/sbin/mysqld", "5.5.5-10.1.2-MariaDB", "x", "mariadb", "10.1.2"),
        ("/usr/sbin/mysqld", "", "tpool::thread_pool_generic::worker_main", "mariadb", None),
        (None, "", "handle_one_connection", "mysql", None),
        (None, "", "work", None, None),
        ("/bin/cat", "", "work", None, None),
    ],
)
def test_servers(
    analyze: Analyze,
    exe: str | None,
    version: str,
    stack: str,
    server: str | None,
    number: str | None,
) -> None:
    scenery = Scenery(exe=exe)
    scenery.add(stack)
    capture = scenery.capture()
    process = msgspec.structs.replace(capture.processes[0], strings={"server_version": version})
    analysis = analyze(msgspec.structs.replace(capture, processes=(process,)))
    assert (analysis.server, analysis.version) == (server, number)


# --- time ---------------------------------------------------------------------------------------


def crowd(threads: int) -> Capture:
    """A server of so many threads in forty places, each stack a tuple of its own."""
    scenery = Scenery()
    lock = scenery.lock(owner=100, symbol="LOCK_open")
    for number in range(40):
        deep = ", ".join(f"layer_{number}_{level}" for level in range(15))
        scenery.add(f"{OPENING}, {deep}", times=threads // 40, lock=lock)
    capture = scenery.capture()
    own = tuple(
        msgspec.structs.replace(thread, frames=(*thread.frames,)) for thread in capture.threads
    )
    return msgspec.structs.replace(capture, threads=own)


@pytest.mark.large
def test_time_grows_with_threads(analyze: Analyze) -> None:
    """0.6 s of CPU time where a thousand take 0.05: their square would be 20 s."""
    capture = crowd(20_000)
    assert cpu_seconds(lambda: analyze(capture), 6.0) < 6.0


@pytest.mark.large
def test_long_chains_of_owners_are_followed_once(analyze: Analyze) -> None:
    scenery = Scenery()
    for number in range(20_000):
        lock = scenery.lock(owner=number + 2)
        scenery.add(f"{FUTEX}, hop, {SESSION}", tid=number + 1, lock=lock)
    scenery.add(f"JOIN::exec, {SESSION}", tid=20_001, state="R")
    assert cpu_seconds(lambda: analyze(scenery), 10.0) < 10.0
    assert analyze(scenery).cycles == ()


def test_a_leader_that_waits_for_the_redo_log_is_a_link(analyze: Analyze) -> None:
    scenery = Scenery()
    queue = "Commit_stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage"
    scenery.add(f"{COND}, {queue}, MYSQL_BIN_LOG::ordered_commit, {SESSION}", times=30)
    scenery.add(
        f"{COND}, os_event_wait_low, log_write_up_to, ha_flush_logs, "
        f"MYSQL_BIN_LOG::process_flush_stage_queue, MYSQL_BIN_LOG::ordered_commit, {SESSION}"
    )
    (flusher,) = scenery.add("fsync, os_file_flush_func, log_flusher, start_thread", state="D")
    first, second = analyze(scenery).findings[:2]
    assert first.signature == "innodb-redo-sync"
    assert first.threads == 31
    assert blocker_of(first).tid == flusher
    assert (second.signature, second.victim_of) == ("binlog-group-commit", "innodb-redo-sync")


def test_a_root_that_says_no_more_than_the_blocker_is_none(analyze: Analyze) -> None:
    scenery = Scenery()
    latch = f"{COND}, os_event_wait_low, sync_array_wait_event, rw_lock_x_lock_func"
    insert = f"row_ins_index_entry_low, row_insert_for_mysql, {SESSION}"
    scenery.add(f"{latch}, btr_cur_search_to_nth_level, {insert}", times=30)
    (holder,) = scenery.add(f"{latch}, buf_page_get_gen, btr_cur_pessimistic_insert, {insert}")
    first = analyze(scenery).findings[0]
    assert (first.signature, first.victim_of) == ("innodb-index-lock", None)
    assert blocker_of(first).tid == holder


def test_a_root_is_nearly_as_sure_as_its_victims(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(REDO_WAIT)
    scenery.add(REDO_WAIT)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=60, lock=lock)
    first, second = analyze(scenery).findings[:2]
    assert (first.signature, second.signature) == ("innodb-redo-sync", "table-open-lock")
    assert first.confidence >= 0.89 * second.confidence
