# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  a stack reads best on few lines
"""Each signature in each generation of the servers: stacks as their sources and builds make them.

Inlined frames are left out in some and spelt out in others, since builds differ in that.
"""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from tests.unit.scenes import IDLE_SESSION, Scenery, blocker_of

SESSION = "mysql_execute_command, mysql_parse, dispatch_command, do_command, handle_one_connection"
SESSION8 = (
    "mysql_execute_command, dispatch_sql_command, dispatch_command, do_command, handle_connection"
)
SESSION55 = "mysql_execute_command, mysql_parse, dispatch_command, do_handle_one_connection"

COND51 = "pthread_cond_wait@@GLIBC_2.3.2"
COND = (
    "__futex_abstimed_wait_common64, __GI___futex_abstimed_wait_cancelable64, "
    "__pthread_cond_wait_common, ___pthread_cond_wait"
)
TIMED = (
    "__futex_abstimed_wait_common64, __GI___futex_abstimed_wait_cancelable64, "
    "__pthread_cond_wait_common, ___pthread_cond_timedwait64"
)
STRIPPED = "??, ??, ??, pthread_cond_timedwait"
LLL51 = "__lll_lock_wait, _L_lock_854, pthread_mutex_lock"
LLL = "futex_wait, __GI___lll_lock_wait, ___pthread_mutex_lock"

MUTEX51 = f"{COND51}, os_event_wait_low, sync_array_wait_event, mutex_spin_wait"
MUTEX55 = f"{MUTEX51}, mutex_enter_func, pfs_mutex_enter_func"
MUTEX57 = (
    f"{COND}, os_event::wait_low, sync_array_wait_event, TTASEventMutex<GenericPolicy>::wait, "
    "PolicyMutex<TTASEventMutex<GenericPolicy> >::enter"
)
MUTEX57_INLINED = f"{COND}, os_event::wait_low, sync_array_wait_event"
RWS = f"{COND51}, os_event_wait_low, sync_array_wait_event, rw_lock_s_lock_spin"
RWX = f"{COND51}, os_event_wait_low, sync_array_wait_event, rw_lock_x_lock_func"
RWSX = f"{COND}, os_event::wait_low, sync_array_wait_event, rw_lock_sx_lock_func"
SSUX_RD = "syscall, ssux_lock_impl<true>::rd_wait, ssux_lock::psi_rd_lock"
SSUX_U = "syscall, srw_mutex_impl<true>::wait_and_lock, ssux_lock::psi_u_lock"


class Case(msgspec.Struct):
    name: str
    signature: str
    waiters: tuple[str, ...]
    holder: str | None = None
    holder_state: str = "R"
    confidence: float = 0.5


INSERT55 = "row_ins_index_entry_low, row_ins, row_insert_for_mysql, ha_innobase::write_row"
READ55 = "row_search_for_mysql, ha_innobase::index_read, handler::read_range_first"

CASES = (
    # --- index lock -----------------------------------------------------------------------------
    Case(
        "index-lock 5.1, 5.5",
        "innodb-index-lock",
        (
            f"{RWS}, btr_cur_search_to_nth_level, {READ55}, {SESSION55}",
            f"{RWX}, btr_cur_search_to_nth_level, {INSERT55}, {SESSION55}",
        ),
        "pread64, os_file_pread, os_file_read_func, os_aio_func, fil_io, buf_read_page_low, "
        "buf_read_page, buf_page_get_gen, btr_cur_latch_leaves.clone.24, btr_compress, "
        f"btr_cur_pessimistic_delete, {INSERT55}, {SESSION55}",
        "D",
    ),
    Case(
        "index-lock 5.6, spelt out",
        "innodb-index-lock",
        (
            f"{RWX}, pfs_rw_lock_x_lock_func, mtr_x_lock_func, btr_cur_search_to_nth_level, "
            f"row_ins_sec_index_entry_low, {SESSION}",
        ),
        "page_copy_rec_list_end, btr_page_split_and_insert, btr_cur_pessimistic_insert, "
        f"row_ins_clust_index_entry_low, {SESSION}",
    ),
    Case(
        "index-lock 8.0, 9.x: SX",
        "innodb-index-lock",
        (
            f"{RWSX}, mtr_t::sx_lock, btr_cur_search_to_nth_level, row_ins_sec_index_entry_low, "
            f"{SESSION8}",
            f"{RWSX}, btr_cur_search_to_nth_level, row_purge_remove_sec_if_poss_tree, srv_worker_thread",
        ),
        f"page_cur_insert_rec_low, btr_cur_pessimistic_insert, row_ins_clust_index_entry_low, {SESSION8}",
    ),
    Case(
        "index-lock MariaDB 10.6+",
        "innodb-index-lock",
        (
            f"{SSUX_RD}, btr_cur_t::search_leaf, row_search_mvcc, {SESSION55}",
            f"{SSUX_U}, btr_cur_t::search_leaf, row_ins_clust_index_entry_low, {SESSION55}",
        ),
        f"btr_page_split_and_insert, btr_cur_pessimistic_insert, row_ins_clust_index_entry_low, {SESSION55}",
    ),
    Case(
        "index-lock MariaDB 10.6.7",
        "innodb-index-lock",
        (
            f"{SSUX_RD}, mtr_t::s_lock, btr_cur_search_to_nth_level_func, row_search_mvcc, {SESSION55}",
        ),
        f"btr_cur_t::pessimistic_search_leaf, row_ins_clust_index_entry_low, {SESSION55}",
    ),
    # --- table cache ----------------------------------------------------------------------------
    Case(
        "table-open 5.1",
        "table-open-lock",
        (
            f"{LLL51}, open_table, open_tables, open_and_lock_tables, {SESSION}",
            f"{LLL51}, close_thread_tables, dispatch_command, do_command, handle_one_connection",
        ),
        "pread64, my_pread, mi_open, ha_myisam::open, handler::ha_open, open_table_from_share, "
        f"open_unireg_entry, open_table, open_tables, {SESSION}",
        "D",
    ),
    Case(
        "table-open 5.1, while the statistics of a table are read",
        "innodb-table-stats",
        (
            f"{LLL51}, open_table, open_tables, open_and_lock_tables, {SESSION}",
            f"{LLL51}, close_thread_tables, dispatch_command, do_command, handle_one_connection",
        ),
        "pread64, os_file_pread, buf_read_page, btr_estimate_number_of_different_key_vals, "
        "dict_update_statistics, ha_innobase::open, handler::ha_open, open_table_from_share, "
        f"open_unireg_entry, open_table, open_tables, {SESSION}",
        "D",
    ),
    Case(
        "table-open 5.5",
        "table-open-lock",
        (f"{LLL}, inline_mysql_mutex_lock, open_table, open_tables, {SESSION55}",),
        f"open64, my_open, open_table_def, get_table_share, open_table, open_tables, {SESSION55}",
    ),
    Case(
        "table-open 5.6, 5.7: one instance of the cache",
        "table-open-lock",
        (
            f"{LLL}, Table_cache::lock, open_table, {SESSION}",
            f"{LLL}, native_mutex_lock, my_mutex_lock, inline_mysql_mutex_lock, "
            f"check_if_table_exists, open_table, {SESSION}",
        ),
        f"munmap, ha_innobase::close, closefrm, intern_close_table, open_table, {SESSION}",
    ),
    Case(
        "table-open 8.0: one share",
        "table-open-lock",
        (f"{COND}, get_table_share, open_table, open_tables, {SESSION8}",),
        "pread64, dd::cache::Storage_adapter::get, dd::cache::Dictionary_client::acquire, "
        f"get_table_share, open_table, {SESSION8}",
        "D",
    ),
    Case(
        "table-open MariaDB 10.1+",
        "table-open-lock",
        (
            f"{LLL}, psi_mutex_lock, tdc_acquire_share, open_table, {SESSION55}",
            f"{LLL}, inline_mysql_mutex_lock, tc_release_table, close_thread_table, {SESSION55}",
        ),
        f"open, my_open, open_table_def, tdc_acquire_share, open_table, {SESSION55}",
    ),
    # --- deadlock check -------------------------------------------------------------------------
    Case(
        "deadlock-check 5.1, 5.5: kernel_mutex",
        "innodb-deadlock-check",
        (
            f"{MUTEX51}, lock_clust_rec_read_check_and_lock, sel_set_rec_lock, {READ55}, {SESSION55}",
            f"{MUTEX55}, trx_start_if_not_started, {READ55}, {SESSION55}",
            f"{MUTEX55}, srv_suspend_mysql_thread, row_mysql_handle_errors, {READ55}, {SESSION55}",
            f"ut_delay, mutex_spin_wait, trx_commit_off_kernel, innobase_commit, {SESSION55}",
        ),
        "lock_deadlock_recursive, lock_deadlock_recursive, lock_deadlock_occurs, "
        f"lock_rec_enqueue_waiting, lock_rec_lock, sel_set_rec_lock, {READ55}, {SESSION55}",
    ),
    Case(
        "deadlock-check 5.6: lock_sys->mutex",
        "innodb-deadlock-check",
        (
            f"{MUTEX51}, lock_rec_lock, lock_clust_rec_modify_check_and_lock, row_upd_step, {SESSION}",
        ),
        "lock_deadlock_search, lock_deadlock_check_and_resolve, lock_rec_enqueue_waiting, "
        f"lock_rec_lock, {SESSION}",
    ),
    Case(
        "deadlock-check 5.7, 8.0.0 to 17, MariaDB 10.2 to 10.5",
        "innodb-deadlock-check",
        (
            f"{MUTEX57}, lock_trx_release_locks, trx_commit_in_memory, {SESSION8}",
            f"{MUTEX57_INLINED}, lock_rec_lock, lock_clust_rec_read_check_and_lock, {SESSION8}",
        ),
        "DeadlockChecker::search, DeadlockChecker::check_and_resolve, RecLock::deadlock_check, "
        f"RecLock::add_to_waitq, lock_rec_lock_slow, {SESSION8}",
    ),
    Case(
        "deadlock-check 8.0.18+: its own thread",
        "innodb-deadlock-check",
        (
            f"{RWS}, locksys::Global_shared_latch_guard::Global_shared_latch_guard, lock_rec_lock, {SESSION8}",
        ),
        "lock_wait_build_wait_for_graph, lock_wait_update_schedule_and_check_for_deadlocks, "
        "lock_wait_timeout_thread, start_thread",
    ),
    Case(
        "deadlock-check MariaDB 10.6+: lock_sys.wait_mutex",
        "innodb-deadlock-check",
        (
            f"{LLL}, psi_mutex_lock, lock_wait, row_mysql_handle_errors, row_search_mvcc, {SESSION55}",
            f"{LLL}, lock_sys_t::deadlock_check, trx_t::commit, {SESSION55}",
        ),
        f"Deadlock::find_cycle, lock_wait, row_mysql_handle_errors, row_search_mvcc, {SESSION55}",
    ),
    # --- row locks ------------------------------------------------------------------------------
    Case(
        "row-lock 5.1, 5.5",
        "innodb-row-lock",
        (
            f"{COND51}, os_cond_wait, os_event_wait_low, srv_suspend_mysql_thread, "
            f"row_mysql_handle_errors, {READ55}, {SESSION55}",
        ),
    ),
    Case(
        "row-lock 5.6 to 9.x",
        "innodb-row-lock",
        (
            f"{COND}, os_event::wait_low, lock_wait_suspend_thread, row_mysql_handle_errors, "
            f"row_search_mvcc, {SESSION8}",
            f"??, ??, ??, pthread_cond_wait, os_event::wait_low, lock_wait_suspend_thread, {SESSION8}",
        ),
    ),
    Case(
        "row-lock MariaDB 10.6+",
        "innodb-row-lock",
        (f"{TIMED}, psi_cond_timedwait, lock_wait, row_mysql_handle_errors, {SESSION55}",),
    ),
    Case(
        "row-lock with one statement that runs",
        "innodb-row-lock",
        (f"{COND51}, os_event_wait_low, srv_suspend_mysql_thread, {READ55}, {SESSION55}",),
        f"row_upd_step, row_update_for_mysql, ha_innobase::update_row, mysql_update, {SESSION55}",
    ),
    # --- metadata locks -------------------------------------------------------------------------
    Case(
        "metadata-lock 5.5, MariaDB",
        "metadata-lock",
        (
            f"{TIMED}, inline_mysql_cond_timedwait, MDL_wait::timed_wait, MDL_context::acquire_lock, "
            f"open_table_get_mdl_lock, open_table, open_tables, {SESSION55}",
        ),
        f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, "
        "MDL_context::upgrade_shared_lock_to_exclusive, wait_while_table_is_used, mysql_alter_table, "
        f"{SESSION55}",
        "S",
    ),
    Case(
        "metadata-lock MariaDB without static symbols",
        "metadata-lock",
        (
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, ??, open_table, open_tables, "
            f"{SESSION55}",
        ),
        f"ha_innobase::rnd_next, handler::ha_rnd_next, sub_select, JOIN::exec, mysql_select, {SESSION55}",
    ),
    Case(
        "metadata-lock 9.x, inlined",
        "metadata-lock",
        (
            f"{STRIPPED}, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table, open_tables, "
            f"open_tables_for_query, Sql_cmd_dml::prepare, {SESSION8}",
        ),
        f"{STRIPPED}, MDL_wait::timed_wait, MDL_context::acquire_lock, "
        f"MDL_context::upgrade_shared_lock, wait_while_table_is_used, ??, mysql_alter_table, {SESSION8}",
        "S",
    ),
    Case(
        "metadata-lock DROP TABLE alone",
        "metadata-lock",
        (
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, MDL_context::acquire_locks, "
            f"lock_table_names, mysql_rm_table, {SESSION55}",
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table_get_mdl_lock, "
            f"open_table, {SESSION55}",
        ),
    ),
    # --- global read lock -----------------------------------------------------------------------
    Case(
        "global-read-lock 5.1",
        "global-read-lock",
        (f"{COND51}, wait_if_global_read_lock, mysql_lock_tables, lock_tables, {SESSION}",),
    ),
    Case(
        "global-read-lock 5.5, MariaDB: writes and commits",
        "global-read-lock",
        (
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table, open_tables, "
            f"mysql_update, {SESSION55}",
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, ha_commit_trans, trans_commit, "
            f"{SESSION55}",
        ),
    ),
    Case(
        "global-read-lock: the FLUSH waits itself",
        "global-read-lock",
        (
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table, open_tables, "
            f"mysql_insert, {SESSION55}",
        ),
        f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, "
        "Global_read_lock::make_global_read_lock_block_commit, reload_acl_and_cache, "
        f"{SESSION55}",
        "S",
    ),
    Case(
        "global-read-lock 9.x, inlined, shown by a commit",
        "global-read-lock",
        (
            f"{STRIPPED}, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table, open_tables, "
            f"open_tables_for_query, Sql_cmd_dml::prepare, {SESSION8}",
            f"{STRIPPED}, MDL_wait::timed_wait, MDL_context::acquire_lock, ha_commit_trans, "
            f"trans_commit_stmt, {SESSION8}",
        ),
    ),
    Case(
        "global-read-lock MariaDB 10.4+: BACKUP STAGE",
        "global-read-lock",
        (
            f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table, open_tables, "
            f"mysql_delete, {SESSION55}",
        ),
        f"{TIMED}, MDL_wait::timed_wait, MDL_context::upgrade_shared_lock, backup_block_ddl, "
        f"run_backup_stage, {SESSION55}",
        "S",
    ),
    # --- redo sync ------------------------------------------------------------------------------
    Case(
        "redo-sync 5.1 to 5.6",
        "innodb-redo-sync",
        (
            f"{COND51}, os_event_wait_low, log_write_up_to, trx_commit_complete_for_mysql, "
            f"innobase_commit, ha_commit_trans, {SESSION55}",
            f"{MUTEX51}, log_write_up_to, trx_commit_complete_for_mysql, innobase_commit, {SESSION55}",
        ),
        "fsync, os_file_fsync, os_file_flush_func, fil_flush, log_write_up_to, "
        f"trx_commit_complete_for_mysql, innobase_commit, {SESSION55}",
        "D",
    ),
    Case(
        "redo-sync 5.7, MariaDB 10.2 to 10.4",
        "innodb-redo-sync",
        (
            f"{COND}, os_event::wait_low, os_event_wait_low, log_write_up_to, "
            f"trx_flush_log_if_needed_low, trx_commit_complete_for_mysql, {SESSION8}",
            f"{COND}, os_event::wait_low, fil_flush, log_write_flush_to_disk_low, log_write_up_to, "
            f"trx_commit_complete_for_mysql, innobase_commit, {SESSION8}",
        ),
        "fsync, os_file_fsync_posix, os_file_flush_func, fil_flush, log_write_flush_to_disk_low, "
        f"log_write_up_to, {SESSION8}",
        "D",
    ),
    Case(
        "redo-sync 8.0 to 9.x",
        "innodb-redo-sync",
        (
            f"{TIMED}, os_event::timed_wait, os_event::wait_time_low, os_event_wait_time_low, "
            f"log_write_up_to, trx_commit_complete_for_mysql, innobase_commit, {SESSION8}",
            f"{STRIPPED}, os_event::timed_wait, os_event::wait_time_low, log_wait_for_flush, "
            f"log_write_up_to, ha_innobase::flush, {SESSION8}",
        ),
        "fdatasync, os_file_flush_func, Log_file_handle::fsync, log_flusher, start_thread",
        "D",
    ),
    Case(
        "redo-sync MariaDB 10.5+",
        "innodb-redo-sync",
        (
            f"syscall, group_commit_lock::acquire, log_write_up_to, trx_commit_complete_for_mysql, "
            f"innobase_commit, {SESSION55}",
        ),
        f"fdatasync, os_file_flush_func, log_t::flush, log_write_up_to, innobase_commit, {SESSION55}",
        "D",
    ),
    Case(
        "redo-sync MariaDB 10.6+ without InnoDB's symbols",
        "innodb-redo-sync",
        (
            f"{COND}, net_real_write, net_flush, Protocol::net_send_ok, Protocol::end_statement, "
            "dispatch_command, do_command, do_handle_one_connection",
        ),
        f"fdatasync, ??, ??, ??, ??, ha_commit_trans, trans_commit_stmt, {SESSION55}",
        "D",
    ),
    Case(
        "page-latch 5.5",
        "innodb-page-latch",
        (f"{RWX}, buf_page_get_gen, btr_cur_search_to_nth_level, {INSERT55}, {SESSION55}",),
        f"page_cur_insert_rec_low, btr_cur_optimistic_insert, {INSERT55}, {SESSION55}",
    ),
    Case(
        "page-latch MariaDB 10.6+",
        "innodb-page-latch",
        (
            "syscall, ssux_lock_impl<true>::rd_wait, buf_page_get_gen, btr_cur_t::search_leaf, "
            f"row_search_mvcc, {SESSION55}",
        ),
    ),
    # --- full redo log --------------------------------------------------------------------------
    Case(
        "sync-flush 5.1, 5.5",
        "innodb-sync-flush",
        (
            f"{COND51}, os_event_wait_low, buf_flush_wait_batch_end, log_preflush_pool_modified_pages, "
            f"log_check_margins, {INSERT55}, {SESSION55}",
        ),
        "pwrite64, os_file_pwrite, fil_io, buf_flush_buffered_writes, buf_flush_batch, "
        f"log_preflush_pool_modified_pages, log_checkpoint_margin, log_check_margins, {SESSION55}",
        "D",
    ),
    Case(
        "sync-flush 5.7, MariaDB 10.2 to 10.4",
        "innodb-sync-flush",
        (
            "clock_nanosleep, nanosleep, os_thread_sleep, buf_flush_wait_flushed, "
            f"log_preflush_pool_modified_pages, log_checkpoint_margin, row_ins_clust_index_entry, {SESSION8}",
        ),
        "fsync, os_file_flush_func, buf_dblwr_flush_buffered_writes, buf_flush_do_batch, pc_flush_slot, "
        "buf_flush_page_cleaner_coordinator, start_thread",
        "D",
    ),
    Case(
        "sync-flush 8.0 to 9.x",
        "innodb-sync-flush",
        (
            f"clock_nanosleep, nanosleep, log_free_check_wait, row_ins_clust_index_entry, {SESSION8}",
        ),
    ),
    Case(
        "sync-flush MariaDB 10.5+",
        "innodb-sync-flush",
        (
            f"{COND}, psi_cond_wait, buf_flush_wait, buf_flush_wait_flushed, log_free_check, {SESSION55}",
        ),
        "fdatasync, os_file_flush_func, buf_dblwr_t::flush_buffered_writes, buf_flush_page_cleaner",
        "D",
    ),
    # --- transactions and locks -----------------------------------------------------------------
    Case(
        "trx-sys 5.1, 5.5: kernel_mutex without a deadlock check",
        "innodb-trx-sys",
        (
            f"{MUTEX55}, trx_start_if_not_started, {READ55}, {SESSION55}",
            f"{MUTEX55}, trx_commit_off_kernel, innobase_commit, {SESSION55}",
        ),
        f"read_view_open_now, trx_assign_read_view, {READ55}, {SESSION55}",
    ),
    Case(
        "trx-sys 5.6 to 9.x",
        "innodb-trx-sys",
        (
            f"{MUTEX57}, MVCC::view_open, trx_assign_read_view, row_search_mvcc, {SESSION8}",
            f"{MUTEX57_INLINED}, trx_commit_in_memory, trx_commit_low, {SESSION8}",
        ),
    ),
    Case(
        "lock-sys 5.7",
        "innodb-lock-sys",
        (f"{MUTEX57}, lock_rec_lock, lock_clust_rec_read_check_and_lock, {SESSION8}",),
        f"lock_rec_print, lock_print_info_all_transactions, srv_printf_innodb_monitor, {SESSION8}",
    ),
    # --- binary log -----------------------------------------------------------------------------
    Case(
        "binlog-sync 5.6 to 9.x",
        "binlog-sync",
        (
            f"{COND}, Commit_stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage, "
            f"MYSQL_BIN_LOG::ordered_commit, {SESSION8}",
            f"{LLL}, MYSQL_BIN_LOG::change_stage, MYSQL_BIN_LOG::ordered_commit, {SESSION8}",
        ),
        "fdatasync, my_sync, IO_CACHE_ostream::sync, MYSQL_BIN_LOG::sync_binlog_file, "
        f"MYSQL_BIN_LOG::ordered_commit, {SESSION8}",
        "D",
    ),
    Case(
        "binlog-sync MariaDB",
        "binlog-sync",
        (
            f"{COND}, THD::wait_for_wakeup_ready, MYSQL_BIN_LOG::write_transaction_to_binlog_events, {SESSION55}",
        ),
        "fdatasync, my_sync, MYSQL_BIN_LOG::flush_and_sync, MYSQL_BIN_LOG::trx_group_commit_leader, "
        f"{SESSION55}",
        "D",
    ),
    Case(
        "binlog-sync 5.1, 5.5",
        "binlog-sync",
        (
            f"{LLL51}, innobase_xa_prepare, ha_prepare, {SESSION}",
            f"{LLL51}, MYSQL_BIN_LOG::write, {SESSION}",
        ),
        f"fsync, my_sync, MYSQL_BIN_LOG::flush_and_sync, MYSQL_BIN_LOG::write, {SESSION}",
        "D",
    ),
    Case(
        "binlog-group-commit: a leader that writes",
        "binlog-group-commit",
        (f"{COND}, Stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage, {SESSION}",),
        f"my_b_copy_to_file, MYSQL_BIN_LOG::process_flush_stage_queue, MYSQL_BIN_LOG::ordered_commit, {SESSION}",
    ),
    # --- table names, before metadata locks -----------------------------------------------------
    Case(
        "table-name-lock 5.1",
        "table-name-lock",
        (f"{COND51}, wait_for_condition, open_table, open_tables, {SESSION}",),
        "row_insert_for_mysql, ha_innobase::write_row, copy_data_between_tables, mysql_alter_table, "
        f"{SESSION}",
    ),
    Case(
        "range-estimate 9.x",
        "innodb-range-estimate",
        (
            "Buf_fetch<Buf_fetch_normal>::single_page, buf_page_get_gen, "
            "btr_cur_search_to_nth_level, ??, ha_innobase::records_in_range, "
            "handler::multi_range_read_info_const, DsMrr_impl::dsmrr_info_const, "
            f"check_quick_select, get_key_scans_params, test_quick_select, {SESSION8}",
        ),
    ),
    Case(
        "range-estimate MariaDB without names of engines",
        "innodb-range-estimate",
        (
            "??, ??, ??, handler::multi_range_read_info_const, ??, ??, "
            f"SQL_SELECT::test_quick_select, ??, JOIN::optimize_inner, {SESSION}",
        ),
    ),
    Case(
        "thread-concurrency: the one inside computes",
        "innodb-thread-concurrency",
        (
            "clock_nanosleep, nanosleep, innobase_srv_conc_enter_innodb, ha_innobase::rnd_next, "
            f"handler::ha_rnd_next, TableScanIterator::DoRead, {SESSION8}",
        ),
        f"Item_func_like::val_int, FilterIterator::DoRead, AggregateIterator::DoRead, {SESSION8}",
    ),
    Case(
        "adaptive-hash 5.5: a SELECT keeps the latch while it computes",
        "innodb-adaptive-hash",
        (
            f"{RWX}, btr_cur_update_in_place, btr_cur_optimistic_update, row_upd_clust_rec, {SESSION55}",
            f"{RWS}, row_search_for_mysql, ha_innobase::index_read, join_read_key, {SESSION55}",
        ),
        f"mysql_sha1_result, Item_func_sha::val_str, Item_func_benchmark::val_int, {SESSION55}",
    ),
    # --- wrappers and names of single versions ------------------------------------------------
    Case(
        "buffer-pool-mutex 5.7: the list of dirty pages",
        "innodb-buffer-pool-mutex",
        (
            f"{MUTEX57}, buf_flush_insert_into_flush_list, buf_flush_note_modification, mtr_t::commit, {SESSION8}",
        ),
    ),
    Case(
        "dict-lock 5.7: partitions are opened, by a policy's own frame",
        "innodb-dict-lock",
        (
            f"{COND}, os_event::wait_low, sync_array_wait_event, TTASEventMutex<BlockMutexPolicy>::wait, "
            f"BlockMutexPolicy<TTASEventMutex>::enter, Ha_innopart_share::open_table_parts, ha_innopart::open, {SESSION8}",
        ),
    ),
    Case(
        "binlog-purge 9.7",
        "binlog-purge",
        (
            f"{LLL}, mysql_mutex_v1_native::_lock, Binlog_index_monitor::find_log_pos, show_binlogs, {SESSION8}",
        ),
        f"unlink, my_delete, Binlog_index_monitor::purge_logs_in_list, MYSQL_BIN_LOG::purge_logs, {SESSION8}",
        "D",
    ),
    Case(
        "semisync-wait 9.x",
        "semisync-wait",
        (f"{TIMED}, ReplSemiSyncSource::commitTrx, repl_semi_report_commit, {SESSION8}",),
    ),
    Case(
        "table-open MariaDB: names that the allocator tcmalloc has, too",
        "table-open-lock",
        (f"{LLL}, psi_mutex_lock, tc_remove_table, tc_purge, {SESSION55}",),
    ),
    Case(
        "drop-table 5.5: the DROP waits for a page itself",
        "innodb-drop-table",
        (f"{MUTEX55}, dict_table_get, ha_innobase::open, handler::ha_open, {SESSION55}",),
        f"{RWX}, buf_page_get_gen, btr_cur_search_to_nth_level, que_run_threads, que_eval_sql, "
        f"row_drop_table_for_mysql, ha_innobase::delete_table, mysql_rm_table, {SESSION55}",
        "S",
    ),
    # --- table locks --------------------------------------------------------------------------
    Case(
        "autoinc-lock: the bulk insert computes a row",
        "innodb-autoinc-lock",
        (
            f"{COND51}, os_event_wait_low, srv_suspend_mysql_thread, row_mysql_handle_errors, "
            "row_lock_table_autoinc_for_mysql, ha_innobase::innobase_lock_autoinc, "
            f"ha_innobase::write_row, mysql_insert, {SESSION55}",
        ),
        "row_search_for_mysql, ha_innobase::general_fetch, rr_sequential, sub_select, JOIN::exec, "
        "subselect_single_select_engine::exec, Item_subselect::exec, select_insert::send_data, "
        f"end_send, do_select, JOIN::exec, mysql_select, {SESSION55}",
    ),
    Case(
        "myisam-table-lock MariaDB without names of engines",
        "myisam-table-lock",
        (f"{COND}, ??, thr_multi_lock, mysql_lock_tables, lock_tables, {SESSION55}",),
        f"pread, my_pread, ??, ??, ??, handler::ha_rnd_next, rr_sequential, sub_select, {SESSION55}",
    ),
)


def background(scenery: Scenery) -> None:
    """Add what every server has: idle connections, and threads that wait for their turn."""
    scenery.add(IDLE_SESSION, times=20)
    scenery.add("poll, handle_connections_sockets, mysqld_main, main, __libc_start_main")
    scenery.add("sigwait, signal_hand, start_thread")
    scenery.add(f"{COND51}, os_event_wait_low, os_aio_simulated_handle, fil_aio_wait", times=4)
    scenery.add("select, os_thread_sleep, srv_master_thread, start_thread")
    scenery.add(f"{COND}, ??, ??, start_thread, clone3", times=3)


@pytest.mark.parametrize("of_a_dump", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_signature(case: Case, of_a_dump: bool, signatures: catalog.Catalog) -> None:
    """A dump says nothing of states: the frames alone have to give the same verdict."""
    scenery = Scenery()
    background(scenery)
    for stack in case.waiters:
        scenery.add(stack, times=12, state="?" if of_a_dump else "S")
    holder = None
    if case.holder is not None:
        state = "?" if of_a_dump else case.holder_state
        (holder,) = scenery.add(case.holder, state=state)
    analysis = engine.analyze(scenery.capture(), signatures)
    assert analysis.findings, [group.frames[:6] for group in analysis.groups if not group.idle]
    verdict = analysis.findings[0]
    assert verdict.signature == case.signature
    assert verdict.confidence >= case.confidence
    blocker_waits = verdict.blocker is not None and blocker_of(verdict).state == "waiting"
    assert verdict.threads >= 12 * len(case.waiters) - blocker_waits
    if holder is None:
        assert verdict.blocker is None or blocker_of(verdict).state == "waiting"
    else:
        assert blocker_of(verdict).tid == holder


def test_a_server_at_rest(signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    background(scenery)
    analysis = engine.analyze(scenery.capture(), signatures)
    assert analysis.findings == ()
    assert set(analysis.states) == {"idle"}


STEADY = {s.id for s in catalog.load().signatures if s.min_waiters == 1}
"""One waiter is enough for these: nothing but the blocker ends such a wait."""


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.signature not in STEADY], ids=lambda case: case.name
)
def test_one_waiter_for_a_moment_is_no_stall(case: Case, signatures: catalog.Catalog) -> None:
    """Busy servers always have a thread at some latch: nothing sure is said of one."""
    scenery = Scenery()
    background(scenery)
    scenery.add(case.waiters[0])
    work = f"row_sel_store_mysql_rec, row_search_mvcc, ha_innobase::general_fetch, {SESSION55}"
    scenery.add(work, times=6, state="R")
    for finding in engine.analyze(scenery.capture(), signatures).findings:
        assert finding.confidence < 0.5
