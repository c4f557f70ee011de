# SPDX-License-Identifier: Apache-2.0
"""Verdicts: states, owners and roots, chains, rings, convoys, unknown stalls, servers at rest."""

from __future__ import annotations

import time

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis, Finding
from stallscope.model import Capture, Label, LockKind
from tests.unit.scenes import FUTEX, IDLE_SESSION, Scenery

SESSION = "mysql_execute_command, mysql_parse, dispatch_command, do_command, handle_one_connection"
OPENING = f"{FUTEX}, inline_mysql_mutex_lock, open_table, open_tables, {SESSION}"
COND = "pthread_cond_wait"
ROW_WAIT = f"{COND}, os_event_wait_low, srv_suspend_mysql_thread, row_search_for_mysql, {SESSION}"
REDO_WAIT = (
    f"{COND}, os_event_wait_low, log_write_up_to, innobase_commit, ha_commit_trans, {SESSION}"
)


@pytest.fixture(scope="module")
def signatures() -> catalog.Catalog:
    return catalog.load()


@pytest.fixture
def analyze(signatures: catalog.Catalog) -> Analyze:
    return Analyze(signatures)


class Analyze:
    def __init__(self, signatures: catalog.Catalog) -> None:
        self._signatures = signatures

    def __call__(self, scene: Scenery | Capture, **options: object) -> Analysis:
        capture = scene.capture() if isinstance(scene, Scenery) else scene
        chosen = msgspec.convert(options, engine.Options) if options else None
        return engine.analyze(capture, self._signatures, options=chosen)


def named(analysis: Analysis, signature: str | None) -> Finding:
    (found,) = [finding for finding in analysis.findings if finding.signature == signature]
    return found


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


# --- owners -------------------------------------------------------------------------------------


def test_the_owner_by_its_lock_word_with_the_locks_name(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(f"read_frm, my_read_file, {SESSION}", state="R", on_cpu=True)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=10, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert verdict.blocker is not None
    assert (verdict.blocker.tid, verdict.blocker.source) == (owner, "futex")
    assert verdict.blocker.frames[0] == "read_frm"
    assert verdict.locks[0].symbol == "LOCK_open"
    assert verdict.locks[0].waiters == 10
    assert any(f"owned by thread {owner}" in text for text in verdict.evidence)
    assert verdict.confidence > 0.8


def test_the_locks_name_says_what_frames_cannot(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(owner=7, symbol="LOCK_open")
    scenery.add(f"{FUTEX}, ??, ??, {SESSION}", times=5, lock=lock)
    scenery.add(f"JOIN::exec, {SESSION}", tid=7, state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == 7


def test_an_owner_in_the_middle_is_followed_to_the_root(analyze: Analyze) -> None:
    scenery = Scenery()
    (root,) = scenery.add(f"write_slow_log, {SESSION}", state="R", on_cpu=True)
    other = scenery.lock(owner=root)
    (middle,) = scenery.add(f"{FUTEX}, log_slow, {SESSION}", lock=other)
    lock = scenery.lock(owner=middle, symbol="LOCK_open")
    scenery.add(OPENING, times=10, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == root
    assert any(f"thread {middle}" in text for text in verdict.evidence)


def test_the_owner_of_a_few_gives_way_to_the_holder_of_all(analyze: Analyze) -> None:
    scenery = Scenery()
    (small,) = scenery.add(f"JOIN::exec, {SESSION}", state="R")
    lock = scenery.lock(owner=small)
    scenery.add(f"{FUTEX}, {REDO_WAIT}", lock=lock)
    scenery.add(REDO_WAIT, times=30)
    sync = f"fsync, os_file_flush_func, fil_flush, log_write_up_to, innobase_commit, {SESSION}"
    (syncing,) = scenery.add(sync, state="D")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-redo-sync"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == syncing


def test_an_idle_owner_is_found(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(IDLE_SESSION)
    scenery.add(IDLE_SESSION, times=30)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=5, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert verdict.blocker is not None
    assert (verdict.blocker.tid, verdict.blocker.state) == (owner, "idle")


def test_a_chain_ends_at_the_signature_that_blocks(analyze: Analyze) -> None:
    """LOCK_open's owner commits, and its commit waits for the redo log: that is the verdict."""
    scenery = Scenery()
    (owner,) = scenery.add(REDO_WAIT)
    scenery.add(REDO_WAIT, times=6)
    sync = f"fsync, os_file_flush_func, fil_flush, log_write_up_to, innobase_commit, {SESSION}"
    (syncing,) = scenery.add(sync, state="D")
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=30, lock=lock)
    analysis = analyze(scenery)
    first, second = analysis.findings[:2]
    assert first.signature == "innodb-redo-sync"
    assert first.blocker is not None
    assert first.blocker.tid == syncing
    assert first.threads == 37
    assert [link.signature for link in first.chain] == ["innodb-redo-sync", "table-open-lock"]
    assert [link.tid for link in first.chain] == [syncing, owner]
    assert (second.signature, second.victim_of) == ("table-open-lock", "innodb-redo-sync")
    assert first.confidence > 0.5


def test_unstable_owners_are_believed_less(analyze: Analyze) -> None:
    def confidence(*, stable: bool) -> Finding:
        scenery = Scenery()
        (owner,) = scenery.add(f"JOIN::exec, {SESSION}", state="R")
        lock = scenery.lock(owner=owner, symbol="LOCK_open", stable=stable)
        scenery.add(OPENING, times=8, lock=lock)
        return analyze(scenery).findings[0]

    sure, unsure = confidence(stable=True), confidence(stable=False)
    assert unsure.confidence < sure.confidence
    assert any("changed while it was read" in text for text in unsure.against)


def test_a_raced_blocker_is_said_to_be_one(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(f"JOIN::exec, {SESSION}", state="R")
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=8, lock=lock)
    capture = scenery.capture()
    raced = msgspec.structs.replace(capture.threads[0], label=Label.RACED)
    capture = msgspec.structs.replace(capture, threads=(raced, *capture.threads[1:]))
    assert any("frames may be mixed" in text for text in analyze(capture).findings[0].against)


def test_a_lock_held_by_readers_says_how_many(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(kind=LockKind.RWLOCK, readers=3)
    scenery.add(f"pthread_rwlock_wrlock, do_thing, {SESSION}", times=8, lock=lock)
    verdict = named(analyze(scenery), "futex-convoy")
    assert verdict.blocker is None
    assert any("held by 3 readers" in text for text in verdict.evidence)


def test_owners_of_condition_variables_are_none(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(kind=LockKind.COND, owner=7)
    scenery.add(f"{COND}, pop, {SESSION}", times=6, lock=lock)
    scenery.add(f"JOIN::exec, {SESSION}", tid=7, state="R")
    assert analyze(scenery).edges == ()


# --- deadlock check, row locks ------------------------------------------------------------------


def test_the_deadlock_check_explains_the_row_locks(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(ROW_WAIT, times=150)
    mutex = f"{COND}, os_event_wait_low, sync_array_wait_event, mutex_spin_wait"
    scenery.add(f"{mutex}, trx_start_if_not_started, row_search_for_mysql, {SESSION}", times=39)
    (checker,) = scenery.add(
        "lock_deadlock_recursive, lock_deadlock_recursive, lock_deadlock_occurs, "
        f"lock_rec_enqueue_waiting, lock_rec_lock, row_search_for_mysql, {SESSION}",
        state="R",
        on_cpu=True,
    )
    first, second = analyze(scenery).findings[:2]
    assert first.signature == "innodb-deadlock-check"
    assert first.threads == 189
    assert first.blocker is not None
    assert first.blocker.tid == checker
    assert first.confidence > 0.9
    assert second.signature == "innodb-row-lock"
    assert second.victim_of == "innodb-deadlock-check"


def test_a_mutex_queue_without_a_checker_is_no_deadlock_check(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(ROW_WAIT, times=150)
    mutex = f"{COND}, os_event_wait_low, sync_array_wait_event, mutex_spin_wait"
    scenery.add(f"{mutex}, trx_start_if_not_started, row_search_for_mysql, {SESSION}", times=39)
    analysis = analyze(scenery)
    assert analysis.findings[0].signature == "innodb-row-lock"
    assert "innodb-deadlock-check" not in [finding.signature for finding in analysis.findings]


def test_row_locks_name_the_session_on_a_cpu(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(ROW_WAIT, times=150)
    release = "lock_rec_dequeue_from_page, lock_release_off_kernel, trx_commit_off_kernel"
    (on_cpu,) = scenery.add(f"{release}, innobase_commit, {SESSION}", state="R", on_cpu=True)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-row-lock"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == on_cpu


def test_row_locks_held_by_an_idle_connection_say_so(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(ROW_WAIT, times=12)
    scenery.add(IDLE_SESSION, times=3)
    verdict = analyze(scenery).findings[0]
    assert verdict.blocker is None
    assert any("one of the 3 idle connections" in text for text in verdict.against)


# --- metadata locks -----------------------------------------------------------------------------

MDL = "pthread_cond_timedwait, MDL_wait::timed_wait, MDL_context::acquire_lock"
READER = f"{MDL}, open_table_get_mdl_lock, open_table, open_tables, {SESSION}"
ALTER = f"{MDL}, MDL_context::upgrade_shared_lock, mysql_alter_table, {SESSION}"
SLOW = f"row_search_mvcc, sub_select, JOIN::exec, mysql_select, {SESSION}"


def test_the_one_statement_at_work_keeps_the_table(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    scenery.add(ALTER)
    (slow,) = scenery.add(SLOW, state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "metadata-lock"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == slow
    assert not verdict.blocker.certain
    assert any("keeps the table in use" in text for text in verdict.evidence)
    assert any("is the DDL that waits" in text for text in verdict.evidence)
    assert any("chosen by what it does" in text for text in verdict.against)


def test_two_statements_at_work_leave_the_pending_ddl(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    (alter,) = scenery.add(ALTER)
    slow = scenery.add(SLOW, times=2, state="R")
    scenery.add(IDLE_SESSION, times=3)
    verdict = analyze(scenery).findings[0]
    assert verdict.blocker is not None
    assert verdict.blocker.tid == alter
    assert verdict.blocker.certain
    assert any("the DDL that waits" in text for text in verdict.evidence)
    likely = [text for text in verdict.evidence if text.startswith("likely holder, one of 2 ")]
    assert [any(f"thread {tid} " in text for text in likely) for tid in slow] == [True, True]
    assert all("row_search_mvcc" in text for text in likely)
    assert any("one of the 3 idle connections" in text for text in verdict.against)


def test_the_one_statement_at_work_may_not_be_it(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    scenery.add(ALTER)
    (slow,) = scenery.add(SLOW, state="R")
    scenery.add(IDLE_SESSION, times=3)
    verdict = analyze(scenery).findings[0]
    assert verdict.blocker is not None
    assert (verdict.blocker.tid, verdict.blocker.certain) == (slow, False)
    assert "the holder can also be one of the 3 idle connections" in verdict.against
    assert not any("likely holder" in text for text in verdict.evidence)


def test_the_one_idle_connection_is_left_to_hold_it(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    scenery.add(ALTER)
    (idle,) = scenery.add(IDLE_SESSION)
    verdict = analyze(scenery).findings[0]
    assert verdict.blocker is not None
    assert (verdict.blocker.tid, verdict.blocker.state) == (idle, "idle")
    assert not verdict.blocker.certain
    assert any("left to hold" in text for text in verdict.evidence)


def test_of_two_idle_connections_none_is_named(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    (alter,) = scenery.add(ALTER)
    scenery.add(IDLE_SESSION, times=2)
    verdict = analyze(scenery).findings[0]
    assert verdict.blocker is not None
    assert verdict.blocker.tid == alter


def test_an_owner_of_the_lock_beats_both(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(IDLE_SESSION)
    lock = scenery.lock(owner=owner, kind=LockKind.UNKNOWN)
    scenery.add(READER, times=12, lock=lock)
    scenery.add(ALTER, lock=lock)
    scenery.add(SLOW, state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "metadata-lock"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == owner


# --- who cannot be the holder -------------------------------------------------------------------

ROW = (
    "pthread_cond_wait, os_event_wait_low, srv_suspend_mysql_thread, row_mysql_handle_errors,"
    f" row_search_for_mysql, {SESSION}"
)


@pytest.mark.parametrize(
    "stack",
    [
        "sched_yield, mutex_spin_wait, srv_suspend_mysql_thread, row_mysql_handle_errors",
        "sched_yield, mutex_spin_wait, trx_start, row_search_for_mysql",
        "lock_rec_create, lock_rec_enqueue_waiting, lock_clust_rec_read_check_and_lock",
    ],
)
def test_who_asks_for_a_row_does_not_hold_it(analyze: Analyze, stack: str) -> None:
    scenery = Scenery()
    scenery.add(ROW, times=40)
    scenery.add(f"{stack}, {SESSION}", state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-row-lock"
    assert verdict.blocker is None


def test_the_deadlock_search_is_no_row_holder_of_its_victims(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(ROW, times=40)
    search = "lock_deadlock_recursive, lock_deadlock_occurs, lock_rec_enqueue_waiting"
    (checker,) = scenery.add(f"{search}, {SESSION}", state="R", on_cpu=True)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-deadlock-check"
    assert [(link.signature, link.tid) for link in verdict.chain] == [
        ("innodb-deadlock-check", checker),
        ("innodb-row-lock", None),
    ]


@pytest.mark.parametrize(
    "stack",
    [
        "write, net_flush, dispatch_command, do_command",
        f"{FUTEX}, open_table, open_tables, {SESSION}",
    ],
)
def test_an_owner_seen_after_its_stack_is_none(analyze: Analyze, stack: str) -> None:
    """It has got the lock since: its stack says nothing of it."""
    scenery = Scenery()
    (owner,) = scenery.add(stack, state="R")
    lock = scenery.lock(symbol="LOCK_open", owner=owner, stable=False)
    scenery.add(f"{FUTEX}, open_table, open_tables, {SESSION}", times=12, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert verdict.blocker is None
    assert any("changed while it was read" in text for text in verdict.against)


def test_who_changes_the_tree_comes_before_who_has_done_so(analyze: Analyze) -> None:
    insert = f"btr_page_split_and_insert, btr_cur_pessimistic_insert, {SESSION}"
    latch = "pthread_cond_wait, os_event_wait_low, sync_array_wait_event, rw_lock_s_lock_spin"
    scenery = Scenery()
    scenery.add(f"{latch}, btr_cur_search_to_nth_level, {SESSION}", times=30)
    (done,) = scenery.add(f"os_event_set, mtr_memo_release, {insert}", state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-index-lock"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == done
    assert any("lets the index lock go" in text for text in verdict.evidence)
    (busy,) = scenery.add(f"page_move_rec_list_end, {insert}", state="R")
    blocker = analyze(scenery).findings[0].blocker
    assert blocker is not None
    assert blocker.tid == busy


def test_who_has_just_unlocked_holds_nothing(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(symbol="LOCK_open")
    scenery.add(f"{FUTEX}, open_table, open_tables, {SESSION}", times=12, lock=lock)
    wake = "__lll_lock_wake, pthread_mutex_unlock_usercnt"
    scenery.add(f"{wake}, open_table, open_tables, {SESSION}", state="R")
    assert analyze(scenery).findings[0].blocker is None


def test_waiting_for_an_old_version_lets_the_table_cache_go(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(symbol="LOCK_open")
    scenery.add(f"{FUTEX}, open_table, open_tables, {SESSION}", times=12, lock=lock)
    wait = "pthread_cond_timedwait, MDL_wait::timed_wait, TABLE_SHARE::wait_for_old_version"
    scenery.add(f"{wait}, close_cached_tables, reload_acl_and_cache, {SESSION}")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert verdict.blocker is None


def test_who_changes_the_page_and_waits_for_an_undo_slot(analyze: Analyze) -> None:
    scenery = Scenery()
    latch = "sched_yield, rw_lock_s_lock_spin, buf_page_get_gen, btr_cur_latch_leaves"
    scenery.add(f"{latch}, btr_cur_search_to_nth_level, {SESSION}", times=40, state="R")
    undo = "sched_yield, mutex_spin_wait, trx_undo_assign_undo, trx_undo_report_row_operation"
    (holder,) = scenery.add(f"{undo}, btr_cur_update_in_place, {SESSION}", state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-page-latch"
    assert verdict.blocker is not None
    assert verdict.blocker.tid == holder


# --- rings --------------------------------------------------------------------------------------


def test_a_ring_of_two_and_who_waits_behind_it(analyze: Analyze) -> None:
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
    assert any("5 threads wait behind" in text for text in verdict.evidence)


def test_a_thread_that_waits_for_itself(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(owner=9)
    scenery.add(f"{FUTEX}, again, {SESSION}", tid=9, lock=lock)
    analysis = analyze(scenery)
    assert analysis.cycles == ((9,),)
    assert analysis.findings[0].signature == "mutex-deadlock"
    assert any("itself" in text for text in analysis.findings[0].evidence)


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
    assert verdict.blocker is not None
    assert verdict.blocker.tid == owner
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
    assert verdict.blocker is not None
    assert verdict.blocker.tid == other
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
    (group,) = analyze(scenery, group_frames=3).groups
    assert (group.count, len(group.frames)) == (4, 3)


def test_weak_findings_are_left_out_unless_asked_for(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(OPENING)
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


def seconds(analyze: Analyze, capture: Capture) -> float:
    best = 60.0
    for _ in range(3):
        start = time.process_time()
        analyze(capture)
        best = min(best, time.process_time() - start)
    return best


def test_a_thousand_threads_in_a_tenth_of_a_second(analyze: Analyze) -> None:
    assert seconds(analyze, crowd(1_000)) < 0.1


def test_time_grows_with_threads(analyze: Analyze) -> None:
    assert seconds(analyze, crowd(20_000)) < 3.0


def test_long_chains_of_owners_are_followed_once(analyze: Analyze) -> None:
    scenery = Scenery()
    for number in range(20_000):
        lock = scenery.lock(owner=number + 2)
        scenery.add(f"{FUTEX}, hop, {SESSION}", tid=number + 1, lock=lock)
    scenery.add(f"JOIN::exec, {SESSION}", tid=20_001, state="R")
    start = time.process_time()
    analysis = analyze(scenery)
    assert time.process_time() - start < 3.0
    assert analysis.cycles == ()


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
    assert first.blocker is not None
    assert first.blocker.tid == flusher
    assert (second.signature, second.victim_of) == ("binlog-group-commit", "innodb-redo-sync")


def test_a_root_that_says_no_more_than_the_blocker_is_none(analyze: Analyze) -> None:
    scenery = Scenery()
    latch = f"{COND}, os_event_wait_low, sync_array_wait_event, rw_lock_x_lock_func"
    insert = f"row_ins_index_entry_low, row_insert_for_mysql, {SESSION}"
    scenery.add(f"{latch}, btr_cur_search_to_nth_level, {insert}", times=30)
    (holder,) = scenery.add(f"{latch}, buf_page_get_gen, btr_cur_pessimistic_insert, {insert}")
    first = analyze(scenery).findings[0]
    assert (first.signature, first.victim_of) == ("innodb-index-lock", None)
    assert first.blocker is not None
    assert first.blocker.tid == holder


def test_a_root_is_nearly_as_sure_as_its_victims(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(REDO_WAIT)
    scenery.add(REDO_WAIT)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=60, lock=lock)
    first, second = analyze(scenery).findings[:2]
    assert (first.signature, second.signature) == ("innodb-redo-sync", "table-open-lock")
    assert first.confidence >= 0.89 * second.confidence
