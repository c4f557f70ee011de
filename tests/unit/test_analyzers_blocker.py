# SPDX-License-Identifier: Apache-2.0
"""Who blocks: owners by their lock words, holders by their stacks, and who cannot be either."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers.analysis import Analysis, Finding
from stallscope.model.capture import Label, LockKind
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

ROW_WAIT = f"{COND}, os_event_wait_low, srv_suspend_mysql_thread, row_search_for_mysql, {SESSION}"


def named(analysis: Analysis, signature: str | None) -> Finding:
    (found,) = [finding for finding in analysis.findings if finding.signature == signature]
    return found


# --- owners -------------------------------------------------------------------------------------


def test_the_owner_by_its_lock_word_with_the_locks_name(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(f"read_frm, my_read_file, {SESSION}", state="R", on_cpu=True)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=10, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert (blocker_of(verdict).tid, blocker_of(verdict).source) == (owner, "futex")
    assert blocker_of(verdict).frames[0] == "read_frm"
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
    assert blocker_of(verdict).tid == 7


def test_an_owner_in_the_middle_is_followed_to_the_root(analyze: Analyze) -> None:
    scenery = Scenery()
    (root,) = scenery.add(f"write_slow_log, {SESSION}", state="R", on_cpu=True)
    other = scenery.lock(owner=root)
    (middle,) = scenery.add(f"{FUTEX}, log_slow, {SESSION}", lock=other)
    lock = scenery.lock(owner=middle, symbol="LOCK_open")
    scenery.add(OPENING, times=10, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert blocker_of(verdict).tid == root
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
    assert blocker_of(verdict).tid == syncing


def test_an_idle_owner_is_found(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(IDLE_SESSION)
    scenery.add(IDLE_SESSION, times=30)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=5, lock=lock)
    verdict = analyze(scenery).findings[0]
    assert (blocker_of(verdict).tid, blocker_of(verdict).state) == (owner, "idle")


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
    assert blocker_of(first).tid == syncing
    assert first.threads == 37
    assert [link.signature for link in first.chain] == ["innodb-redo-sync", "table-open-lock"]
    assert [link.tid for link in first.chain] == [syncing, owner]
    assert (second.signature, second.victim_of) == ("table-open-lock", "innodb-redo-sync")
    assert first.confidence > 0.5


def test_unstable_owners_are_no_sign_of_a_blocker(analyze: Analyze) -> None:
    def confidence(*, stable: bool) -> Finding:
        scenery = Scenery()
        (owner,) = scenery.add(f"JOIN::exec, {SESSION}", state="R")
        lock = scenery.lock(owner=owner, symbol="LOCK_open", stable=stable)
        scenery.add(OPENING, times=8, lock=lock)
        return analyze(scenery).findings[0]

    sure, unsure = confidence(stable=True), confidence(stable=False)
    assert (sure.signs.blocker, unsure.signs.blocker) == (1.0, 0.0)
    assert unsure.confidence <= sure.confidence
    assert any("changed while it was read" in text for text in unsure.against)


def test_a_raced_blocker_is_said_to_be_one(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(f"JOIN::exec, {SESSION}", state="R")
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=8, lock=lock)
    capture = scenery.capture()
    raced = msgspec.structs.replace(capture.threads[0], label=Label.RACED)
    capture = msgspec.structs.replace(capture, threads=(raced, *capture.threads[1:]))
    assert any(
        "frames may be inconsistent" in text for text in analyze(capture).findings[0].against
    )


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
    assert blocker_of(first).tid == checker
    assert first.confidence > 0.9
    assert second.signature == "innodb-row-lock"
    assert second.victim_of == "innodb-deadlock-check"


DIVE = (
    "page_cur_search_with_match, btr_cur_search_to_nth_level, btr_estimate_n_rows_in_range, "
    f"ha_innobase::records_in_range, check_quick_select, SQL_SELECT::test_quick_select, {SESSION}"
)
MAIN_THREAD = "poll, handle_connections_sockets, mysqld_main, main"


def test_work_of_a_few_is_no_stall_of_the_others(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(DIVE, times=12, state="?")
    scenery.add(f"evaluate_join_record, sub_select, {SESSION}", times=80, state="?")
    assert all(finding.confidence < 0.5 for finding in analyze(scenery).findings)
    scenery = Scenery()
    scenery.add(DIVE, times=30, state="?")
    scenery.add(f"evaluate_join_record, sub_select, {SESSION}", times=20, state="?")
    assert analyze(scenery).findings[0].signature == "innodb-range-estimate"
    assert analyze(scenery).findings[0].confidence >= 0.5


def test_an_aggregate_of_many_samples_has_fewer_threads_at_a_moment(analyze: Analyze) -> None:
    once, often = Scenery(), Scenery()
    once.add(MAIN_THREAD)
    once.add(OPENING, times=6)
    once.add(IDLE_SESSION, times=2)
    often.add(MAIN_THREAD, count=20)
    often.add(OPENING, count=120)
    often.add(IDLE_SESSION, count=40)
    (one,), (many,) = analyze(once).findings, analyze(often).findings
    assert (one.signature, many.signature) == ("table-open-lock", "table-open-lock")
    assert one.confidence == many.confidence
    assert many.threads == 120
    assert any("20 samples" in text for text in many.evidence)
    assert not any("samples" in text for text in one.evidence)


def test_processes_that_are_gathered_are_no_samples(analyze: Analyze) -> None:
    waits = "do_futex_wait, sem_wait, PGSemaphoreLock, LWLockAcquire"
    scenery = Scenery()
    scenery.add(f"{waits}, heap_update, exec_simple_query, PostgresMain, main", count=60)
    (finding,) = analyze(scenery).findings
    assert not any("samples" in text for text in finding.evidence)


def test_a_checker_in_one_of_many_samples_does_not_explain_the_row_locks(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(MAIN_THREAD, count=20)
    scenery.add(ROW_WAIT, count=500)
    search = "lock_deadlock_recursive, lock_deadlock_occurs, lock_rec_enqueue_waiting"
    scenery.add(f"{search}, {SESSION}", state="?")
    assert analyze(scenery).findings[0].signature == "innodb-row-lock"


def test_equal_frames_in_a_row_count_once(analyze: Analyze) -> None:
    acquire = "MDL_wait::timed_wait, MDL_context::acquire_lock, MDL_context::acquire_lock"
    scenery = Scenery()
    scenery.add(f"{COND}, {acquire}, open_table_get_mdl_lock, open_table, {SESSION}", times=20)
    assert analyze(scenery).findings[0].signature == "metadata-lock"


def test_a_mutexs_way_to_its_slow_part(analyze: Analyze) -> None:
    # glibc 2.34 and later, nptl/pthread_mutex_lock.c.
    lock = "futex_wait, __GI___lll_lock_wait, lll_mutex_lock_optimized, ___pthread_mutex_lock"
    scenery = Scenery()
    scenery.add(
        f"{lock}, psi_mutex_lock, inline_mysql_mutex_lock, buf_page_make_young, {SESSION}",
        times=20,
    )
    assert analyze(scenery).findings[0].signature == "innodb-buffer-pool-mutex"


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
    assert blocker_of(verdict).tid == on_cpu


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


def test_the_only_running_statement_keeps_the_table(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    scenery.add(ALTER)
    (slow,) = scenery.add(SLOW, state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "metadata-lock"
    assert blocker_of(verdict).tid == slow
    assert not blocker_of(verdict).certain
    assert any("keeps the table in use" in text for text in verdict.evidence)
    assert any("is the DDL that waits" in text for text in verdict.evidence)
    assert any("chosen by its stack" in text for text in verdict.against)


def test_of_two_running_statements_neither_is_surely_the_blocker(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    (alter,) = scenery.add(ALTER)
    slow = scenery.add(SLOW, times=2, state="R")
    scenery.add(IDLE_SESSION, times=3)
    verdict = analyze(scenery).findings[0]
    assert blocker_of(verdict).tid == alter
    assert blocker_of(verdict).certain
    assert any("the DDL that waits" in text for text in verdict.evidence)
    likely = [text for text in verdict.evidence if text.startswith("likely holder, one of 2 ")]
    assert [any(f"thread {tid} " in text for text in likely) for tid in slow] == [True, True]
    assert all("row_search_mvcc" in text for text in likely)
    assert any("one of the 3 idle connections" in text for text in verdict.against)


def test_the_only_running_statement_may_not_be_it(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    scenery.add(ALTER)
    (slow,) = scenery.add(SLOW, state="R")
    scenery.add(IDLE_SESSION, times=3)
    verdict = analyze(scenery).findings[0]
    assert (blocker_of(verdict).tid, blocker_of(verdict).certain) == (slow, False)
    assert "the holder can also be one of the 3 idle connections" in verdict.against
    assert not any("likely holder" in text for text in verdict.evidence)


def test_the_one_idle_connection_is_left_to_hold_it(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    scenery.add(ALTER)
    (idle,) = scenery.add(IDLE_SESSION)
    verdict = analyze(scenery).findings[0]
    assert (blocker_of(verdict).tid, blocker_of(verdict).state) == (idle, "idle")
    assert not blocker_of(verdict).certain
    assert any("probably holds" in text for text in verdict.evidence)


@pytest.mark.parametrize("asking", [SLOW, IDLE_SESSION])
@pytest.mark.parametrize("holding", [None, SLOW, IDLE_SESSION])
def test_the_connection_that_took_the_capture_is_no_likely_holder(
    analyze: Analyze, asking: str, holding: str | None
) -> None:
    """Its connection works, or is idle, because it asks: that says nothing of the lock."""
    scenery = Scenery()
    scenery.add(READER, times=12)
    (blocker,) = scenery.add(ALTER)
    if holding is not None:
        (blocker,) = scenery.add(holding, state="R" if holding == SLOW else "S")
    scenery.add(asking, state="R" if asking == SLOW else "S")
    capture = scenery.capture()
    own = msgspec.structs.replace(capture.threads[-1], own=True)
    capture = msgspec.structs.replace(capture, threads=(*capture.threads[:-1], own))
    verdict = analyze(capture).findings[0]
    assert blocker_of(verdict).tid == blocker
    assert not any("idle connection" in text for text in verdict.against)


def test_of_two_idle_connections_none_is_named(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    (alter,) = scenery.add(ALTER)
    scenery.add(IDLE_SESSION, times=2)
    verdict = analyze(scenery).findings[0]
    assert blocker_of(verdict).tid == alter


@pytest.mark.parametrize("open_", [0, 1, 2])
def test_of_idle_connections_the_one_in_a_transaction_is_named(
    analyze: Analyze, open_: int
) -> None:
    scenery = Scenery()
    scenery.add(READER, times=12)
    (alter,) = scenery.add(ALTER)
    idle = scenery.add(IDLE_SESSION, times=3)
    capture = scenery.capture()
    said = tuple(
        msgspec.structs.replace(thread, transaction=thread.tid in idle[:open_])
        for thread in capture.threads
    )
    verdict = analyze(msgspec.structs.replace(capture, threads=said)).findings[0]
    if open_ != 1:
        assert blocker_of(verdict).tid == alter
        return
    assert (blocker_of(verdict).tid, blocker_of(verdict).certain) == (idle[0], False)
    assert any("only idle connection in a transaction" in text for text in verdict.evidence)
    assert "the holder can also be one of the 2 other idle connections" in verdict.against


def test_an_owner_of_the_lock_beats_both(analyze: Analyze) -> None:
    scenery = Scenery()
    (owner,) = scenery.add(IDLE_SESSION)
    lock = scenery.lock(owner=owner, kind=LockKind.UNKNOWN)
    scenery.add(READER, times=12, lock=lock)
    scenery.add(ALTER, lock=lock)
    scenery.add(SLOW, state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "metadata-lock"
    assert blocker_of(verdict).tid == owner


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
def test_a_thread_that_requests_a_row_does_not_hold_it(analyze: Analyze, stack: str) -> None:
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


def test_a_thread_that_changes_the_tree_comes_before_one_that_has_done_so(analyze: Analyze) -> None:
    insert = f"btr_page_split_and_insert, btr_cur_pessimistic_insert, {SESSION}"
    latch = "pthread_cond_wait, os_event_wait_low, sync_array_wait_event, rw_lock_s_lock_spin"
    scenery = Scenery()
    scenery.add(f"{latch}, btr_cur_search_to_nth_level, {SESSION}", times=30)
    (done,) = scenery.add(f"os_event_set, mtr_memo_release, {insert}", state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-index-lock"
    assert blocker_of(verdict).tid == done
    assert any("releases the index lock" in text for text in verdict.evidence)
    (busy,) = scenery.add(f"page_move_rec_list_end, {insert}", state="R")
    blocker = analyze(scenery).findings[0].blocker
    assert blocker is not None
    assert blocker.tid == busy


def test_a_thread_that_has_just_unlocked_holds_nothing(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(symbol="LOCK_open")
    scenery.add(f"{FUTEX}, open_table, open_tables, {SESSION}", times=12, lock=lock)
    wake = "__lll_lock_wake, pthread_mutex_unlock_usercnt"
    scenery.add(f"{wake}, open_table, open_tables, {SESSION}", state="R")
    assert analyze(scenery).findings[0].blocker is None


def test_waiting_for_an_old_version_releases_the_table_cache(analyze: Analyze) -> None:
    scenery = Scenery()
    lock = scenery.lock(symbol="LOCK_open")
    scenery.add(f"{FUTEX}, open_table, open_tables, {SESSION}", times=12, lock=lock)
    wait = "pthread_cond_timedwait, MDL_wait::timed_wait, TABLE_SHARE::wait_for_old_version"
    scenery.add(f"{wait}, close_cached_tables, reload_acl_and_cache, {SESSION}")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "table-open-lock"
    assert verdict.blocker is None


def test_a_thread_that_changes_the_page_and_waits_for_an_undo_slot(analyze: Analyze) -> None:
    scenery = Scenery()
    latch = "sched_yield, rw_lock_s_lock_spin, buf_page_get_gen, btr_cur_latch_leaves"
    scenery.add(f"{latch}, btr_cur_search_to_nth_level, {SESSION}", times=40, state="R")
    undo = "sched_yield, mutex_spin_wait, trx_undo_assign_undo, trx_undo_report_row_operation"
    (holder,) = scenery.add(f"{undo}, btr_cur_update_in_place, {SESSION}", state="R")
    verdict = analyze(scenery).findings[0]
    assert verdict.signature == "innodb-page-latch"
    assert blocker_of(verdict).tid == holder
