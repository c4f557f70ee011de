# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  a stack reads best on few lines
"""Stalls that come in chains: the verdict is the root, and what it blocks follows."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from tests.unit import signature_scenes as of
from tests.unit.scenes import IDLE_SESSION, Scenery, blocker_of

MANY = 40
LEADER = f"call_after_sync_hook, MYSQL_BIN_LOG::ordered_commit, {of.SQL}"
FOLLOWER = f"{of.COND}, Commit_stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage, MYSQL_BIN_LOG::ordered_commit, {of.SQL}"
CLEANER = "fsync, os_file_flush_func, fil_flush, buf_dblwr_flush_buffered_writes, buf_flush_do_batch, pc_flush_slot, buf_flush_page_cleaner_coordinator"


class Chain(msgspec.Struct, frozen=True):
    """``between``: threads from the waiters to the root, the root last. ``names``: root first."""

    name: str
    waiters: str
    between: tuple[str, ...]
    names: tuple[str, ...]


CHAINS = (
    Chain(
        "5.1: opens behind a DROP",
        f"{of.RAW}, open_table, open_tables, {of.SQL}",
        (
            f"unlink, os_file_delete, fil_delete_tablespace, row_drop_table_for_mysql, ha_innobase::delete_table, mysql_rm_table_part2, mysql_rm_table, {of.SQL}",
        ),
        ("innodb-drop-table", "table-open-lock"),
    ),
    Chain(
        "5.5: pages behind a DROP",
        f"{of.MUTEX}, buf_page_get_gen, btr_cur_search_to_nth_level, {of.SELECT}",
        (f"buf_LRU_invalidate_tablespace, fil_delete_tablespace, {of.DROP}",),
        ("innodb-drop-table", "innodb-buffer-pool-mutex"),
    ),
    Chain(
        "5.6: opens behind a close behind a TRUNCATE",
        f"{of.LLL}, open_table, open_tables, {of.SQL}",
        (
            f"{of.MUTEX}, dict_table_close, ha_innobase::close, closefrm, intern_close_table, open_table, {of.SQL}",
            f"buf_LRU_flush_or_remove_pages, fil_truncate_tablespace, row_truncate_table_for_mysql, ha_innobase::truncate, {of.SQL}",
        ),
        ("innodb-drop-table", "innodb-dict-lock", "table-open-lock"),
    ),
    Chain(
        "5.7: opens behind statistics behind a full redo log",
        f"{of.MUTEX8}, dict_table_open_on_name, ha_innobase::open, handler::ha_open, {of.SQL}",
        (
            "nanosleep, os_thread_sleep, buf_flush_wait_flushed, log_preflush_pool_modified_pages, log_check_margins, que_run_threads, dict_stats_exec_sql, dict_stats_save, dict_stats_thread",
            CLEANER,
        ),
        ("innodb-sync-flush", "innodb-dict-lock"),
    ),
    Chain(
        "an index behind the extension of its file",
        f"{of.RWX}, btr_cur_search_to_nth_level, {of.INSERT}",
        (
            f"posix_fallocate64, fil_space_extend, fsp_try_extend_data_file, fsp_reserve_free_extents, btr_cur_pessimistic_insert, {of.INSERT}",
        ),
        ("innodb-file-extend", "innodb-index-lock"),
    ),
    Chain(
        "a group commit behind the redo log",
        FOLLOWER,
        (
            f"{of.EVENT}, log_write_up_to, ha_innobase::flush, ha_flush_logs, MYSQL_BIN_LOG::process_flush_stage_queue, MYSQL_BIN_LOG::ordered_commit, {of.SQL}",
            "fsync, os_file_flush_func, Log_file_handle::fsync, log_flusher",
        ),
        ("innodb-redo-sync", "binlog-group-commit"),
    ),
    Chain(
        "a group commit behind a replica",
        FOLLOWER,
        (f"{of.TIMED}, ReplSemiSyncMaster::commitTrx, repl_semi_report_binlog_sync, {LEADER}",),
        ("semisync-wait", "binlog-group-commit"),
    ),
    Chain(
        "MongoDB: writers behind a new file",
        f"pthread_rwlock_wrlock, mongo::SimpleRWLock::lock, mongo::Lock::DBWrite::lockDB, mongo::receivedInsert, {of.MONGO}",
        (
            f"pthread_cond_wait, boost::condition_variable_any::wait, mongo::FileAllocator::allocateAsap, mongo::Database::addAFile, mongo::DataFileMgr::insert, mongo::receivedInsert, {of.MONGO}",
            "write, mongo::FileAllocator::ensureLength, mongo::FileAllocator::run, thread_proxy",
        ),
        ("mongodb-file-prealloc", "mongodb-write-lock"),
    ),
)


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_the_root_comes_first(chain: Chain, signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=20)
    scenery.add(chain.waiters, times=MANY, state="?")
    for tid, stack in enumerate(chain.between, 7):
        scenery.add(stack, tid=tid, state="?")
    verdict, *rest = engine.analyze(scenery.capture(), signatures).findings
    assert verdict.signature == chain.names[0]
    assert [link.signature for link in verdict.chain] == list(chain.names)
    assert [finding.signature for finding in rest] == list(chain.names[1:])
    assert all(finding.victim_of for finding in rest)
    assert verdict.threads >= MANY
    assert verdict.confidence >= 0.8
    if chain.names[0] == "semisync-wait":  # who holds it is on another host
        assert verdict.blocker is None
    else:
        assert blocker_of(verdict).tid == 6 + len(chain.between)
