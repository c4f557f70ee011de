# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  a stack reads best on few lines
"""A scene for each signature, and a similar one of another signature.

Long: one table, with an entry for each signature of the catalog.

The call chains are those of the servers' sources; frames that builds inline are left out in some.
"""

from __future__ import annotations

import msgspec

__all__ = ["SCENES", "Scene"]


class Scene(msgspec.Struct, frozen=True):
    """``near``: a stack that many threads have, and the signature that it belongs to, or None."""

    signature: str
    waiters: tuple[str, ...]
    near: tuple[str, str | None]
    holder: str = ""
    near_holder: str = ""
    verdict: str | None = None
    """Where the scene's root is another signature: which one; this one is in its chain."""


SQL = "mysql_execute_command, mysql_parse, dispatch_command, do_command, handle_one_connection"
COND = "futex_wait, pthread_cond_wait@@GLIBC_2.3.2"
TIMED = "__futex_abstimed_wait_common64, __pthread_cond_wait_common, ___pthread_cond_timedwait64"
LLL = "__lll_lock_wait, ___pthread_mutex_lock, inline_mysql_mutex_lock"
RAW = "__lll_lock_wait, pthread_mutex_lock"
MUTEX = f"{COND}, os_event_wait_low, sync_array_wait_event, mutex_spin_wait"
MUTEX8 = f"{COND}, os_event::wait_low, sync_array_wait_event, TTASEventMutex<GenericPolicy>::wait"
RWS = f"{COND}, os_event_wait_low, sync_array_wait_event, rw_lock_s_lock_spin"
RWX = f"{COND}, os_event_wait_low, sync_array_wait_event, rw_lock_x_lock_func"
EVENT = f"{COND}, os_event_wait_low"
MDL = f"{TIMED}, MDL_wait::timed_wait, MDL_context::acquire_lock"
SELECT = f"row_search_for_mysql, ha_innobase::index_read, JOIN::exec, mysql_select, {SQL}"
INSERT = f"row_ins_index_entry_low, row_ins, row_insert_for_mysql, ha_innobase::write_row, mysql_insert, {SQL}"
COMMIT = f"innobase_commit, ha_commit_trans, trans_commit, {SQL}"
READ = "pread64, os_file_pread, os_aio_func, fil_io, buf_read_page_low, buf_read_page, buf_page_get_gen"
DROP = (
    f"row_drop_table_for_mysql, ha_innobase::delete_table, ha_delete_table, mysql_rm_table, {SQL}"
)

MYISAM_WAIT = f"{COND}, wait_for_lock, thr_multi_lock, mysql_lock_tables, lock_tables, {SQL}"
ROCKS_LOCK = f"{RAW}, rocksdb::port::Mutex::Lock"
MONGO = "mongo::assembleResponse, mongo::MyMessageHandler::process, mongo::PortMessageServer::handleIncomingMsg"
WT_COND = "pthread_cond_timedwait, __wt_cond_wait_signal"
WT_SESSION = "__wt_btcur_insert, __curfile_insert, mongo::WiredTigerRecordStore::insertRecords, mongo::ServiceStateMachine::_runNextInGuard"
SEM = "do_futex_wait.constprop.0, __new_sem_wait_slow, sem_wait, PGSemaphoreLock"
LATCH = "epoll_wait, WaitEventSetWaitBlock, WaitEventSetWait, WaitLatch"
HEAVY = f"{LATCH}, ProcSleep, WaitOnLock, LockAcquireExtended"
PG = "PortalRun, exec_simple_query, PostgresMain, BackendRun, ServerLoop, PostmasterMain"

SCENES = (
    # --- InnoDB: transactions and locks -----------------------------------------------------------
    Scene(
        "innodb-index-lock",
        (f"{RWS}, btr_cur_search_to_nth_level, {SELECT}",),
        (f"{RWS}, buf_page_get_gen, btr_cur_search_to_nth_level, {SELECT}", "innodb-page-latch"),
        f"{READ}, btr_cur_latch_leaves, btr_cur_pessimistic_insert, {INSERT}",
    ),
    Scene(
        "innodb-deadlock-check",
        (f"{MUTEX}, lock_rec_lock, lock_clust_rec_read_check_and_lock, {SELECT}",),
        (
            f"{MUTEX}, lock_rec_lock, lock_clust_rec_read_check_and_lock, {SELECT}",
            "innodb-lock-sys",
        ),
        f"lock_deadlock_search, lock_deadlock_check_and_resolve, lock_rec_enqueue_waiting, {SELECT}",
    ),
    Scene(
        "innodb-row-lock",
        (f"{EVENT}, lock_wait_suspend_thread, row_mysql_handle_errors, {SELECT}",),
        (
            f"{EVENT}, lock_wait_suspend_thread, row_mysql_handle_errors, row_lock_table_autoinc_for_mysql, ha_innobase::innobase_lock_autoinc, {SQL}",
            "innodb-autoinc-lock",
        ),
    ),
    Scene(
        "innodb-autoinc-lock",
        (
            f"{EVENT}, srv_suspend_mysql_thread, row_mysql_handle_errors, row_lock_table_autoinc_for_mysql, ha_innobase::innobase_lock_autoinc, handler::update_auto_increment, {SQL}",
        ),
        (
            f"{EVENT}, srv_suspend_mysql_thread, row_mysql_handle_errors, {INSERT}",
            "innodb-row-lock",
        ),
        f"row_ins, ha_innobase::write_row, select_insert::send_data, mysql_select, {SQL}",
    ),
    Scene(
        "innodb-trx-sys",
        (f"{MUTEX8}, MVCC::view_open, trx_assign_read_view, row_search_mvcc, {SQL}",),
        (f"{MUTEX8}, trx_undo_assign_undo, trx_undo_report_row_operation, {INSERT}", "innodb-rseg"),
    ),
    Scene(
        "innodb-lock-sys",
        (f"{MUTEX8}, lock_trx_release_locks, trx_commit_in_memory, {COMMIT}",),
        (f"{MUTEX8}, trx_erase_lists, trx_commit_low, {COMMIT}", "innodb-trx-sys"),
    ),
    Scene(
        "innodb-rseg",
        (f"{MUTEX}, trx_undo_assign_undo, trx_undo_report_row_operation, {INSERT}",),
        (f"{MUTEX}, read_view_open_now, trx_assign_read_view, {SELECT}", "innodb-trx-sys"),
    ),
    # --- InnoDB: the log --------------------------------------------------------------------------
    Scene(
        "innodb-redo-sync",
        (f"{EVENT}, log_write_up_to, trx_commit_complete_for_mysql, {COMMIT}",),
        (
            f"{MUTEX}, log_reserve_and_open, mtr_commit, btr_cur_optimistic_insert, {INSERT}",
            "innodb-redo-latch",
        ),
        f"fsync, os_file_flush_func, fil_flush, log_write_up_to, {COMMIT}",
    ),
    Scene(
        "innodb-redo-latch",
        (
            f"{MUTEX}, log_reserve_and_open, mtr_commit, btr_cur_optimistic_insert, {INSERT}",
            f"{TIMED}, os_event::timed_wait, os_event_wait_time_low, log_buffer_reserve, mtr_t::Command::execute, mtr_t::commit, {INSERT}",
        ),
        (f"{EVENT}, log_write_up_to, trx_commit_complete_for_mysql, {COMMIT}", "innodb-redo-sync"),
    ),
    Scene(
        "innodb-sync-flush",
        (f"clock_nanosleep, nanosleep, log_free_check_wait, row_ins_clust_index_entry, {INSERT}",),
        (
            f"clock_nanosleep, nanosleep, os_thread_sleep, buf_LRU_get_free_block, buf_page_init_for_read, {SELECT}",
            "innodb-free-page",
        ),
    ),
    Scene(
        "innodb-doublewrite",
        (
            f"{EVENT}, buf_dblwr_add_to_batch, buf_flush_page, buf_do_flush_list_batch, pc_flush_slot",
            f"{EVENT}, Double_write::enqueue, dblwr::write, buf_flush_page, pc_flush_slot",
        ),
        (
            f"{EVENT}, buf_flush_wait_batch_end, buf_flush_list, log_preflush_pool_modified_pages, log_check_margins, {INSERT}",
            "innodb-sync-flush",
        ),
        "fsync, os_file_flush_func, fil_flush, buf_dblwr_flush_buffered_writes, buf_flush_do_batch",
    ),
    # --- InnoDB: the buffer pool ------------------------------------------------------------------
    Scene(
        "innodb-page-latch",
        (f"{RWX}, buf_page_get_gen, btr_cur_search_to_nth_level, {INSERT}",),
        (f"{RWX}, btr_cur_search_to_nth_level, {INSERT}", "innodb-index-lock"),
        f"page_cur_insert_rec_low, btr_cur_optimistic_insert, {INSERT}",
        f"page_cur_insert_rec_low, btr_page_split_and_insert, btr_cur_pessimistic_insert, {INSERT}",
    ),
    Scene(
        "innodb-free-page",
        (
            f"select, os_thread_sleep, buf_LRU_get_free_block, buf_page_init_for_read, buf_read_page, {SELECT}",
            f"{TIMED}, buf_LRU_get_free_block, buf_page_init_for_read, buf_read_page, {SELECT}",
        ),
        (
            f"{MUTEX}, buf_LRU_get_free_block, buf_page_init_for_read, buf_read_page, {SELECT}",
            "innodb-buffer-pool-mutex",
        ),
        "pwrite64, os_file_pwrite, fil_io, buf_flush_LRU_list_batch, pc_flush_slot, start_thread",
    ),
    Scene(
        "innodb-buffer-pool-mutex",
        (
            f"{MUTEX}, buf_page_make_young, buf_page_get_gen, {SELECT}",
            f"{MUTEX8}, buf_LRU_get_free_block, {SELECT}",
        ),
        (f"{RWS}, buf_page_get_gen, btr_cur_search_to_nth_level, {SELECT}", "innodb-page-latch"),
        f"buf_LRU_search_and_free_block, buf_LRU_get_free_block, buf_read_page, {SELECT}",
    ),
    Scene(
        "innodb-buffer-pool-resize",
        (
            f"{RWS}, buf_page_get_gen, btr_cur_search_to_nth_level, {SELECT}",
            f"{MUTEX8}, buf_LRU_get_free_block, {SELECT}",
        ),
        (f"{MUTEX8}, buf_LRU_get_free_block, {SELECT}", "innodb-buffer-pool-mutex"),
        "buf_pool_withdraw_blocks, buf_pool_resize, buf_resize_thread, start_thread",
    ),
    Scene(
        "innodb-page-io",
        (
            f"{READ}, btr_cur_search_to_nth_level, {SELECT}",
            f"{RWS}, buf_wait_for_read, buf_page_get_gen, {SELECT}",
        ),
        (f"{RWS}, buf_page_get_gen, btr_cur_search_to_nth_level, {SELECT}", "innodb-page-latch"),
    ),
    Scene(
        "innodb-read-ahead",
        (
            f"{EVENT}, os_aio_func, fil_io, buf_read_page_low, buf_read_ahead_linear, buf_page_get_gen, {SELECT}",
        ),
        (
            f"{EVENT}, os_aio_func, fil_io, buf_read_page_low, buf_read_page, buf_page_get_gen, {SELECT}",
            "innodb-page-io",
        ),
    ),
    Scene(
        "innodb-adaptive-hash",
        (
            f"{RWX}, btr_search_info_update_slow, btr_cur_search_to_nth_level, {SELECT}",
            f"{RWS}, btr_search_guess_on_hash, btr_cur_search_to_nth_level, {SELECT}",
        ),
        (f"{RWS}, btr_cur_search_to_nth_level, {SELECT}", "innodb-index-lock"),
        f"ha_remove_all_nodes_to_page, btr_search_drop_page_hash_index, {SELECT}",
        f"page_copy_rec_list_end, btr_page_split_and_insert, {INSERT}",
    ),
    # --- InnoDB: files and the dictionary ---------------------------------------------------------
    Scene(
        "innodb-file-extend",
        (
            f"{MUTEX}, fil_mutex_enter_and_prepare_for_io, fil_io, buf_read_page_low, {SELECT}",
            f"{RWX}, fsp_reserve_free_extents, btr_cur_pessimistic_insert, {INSERT}",
        ),
        (f"{READ}, {SELECT}", "innodb-page-io"),
        f"posix_fallocate64, fil_space_extend, fsp_try_extend_data_file, fsp_reserve_free_extents, btr_cur_pessimistic_insert, {INSERT}",
    ),
    Scene(
        "innodb-drop-table",
        (f"{MUTEX}, dict_table_open_on_name, ha_innobase::open, handler::ha_open, {SQL}",),
        (
            f"{MUTEX}, dict_table_open_on_name, ha_innobase::open, handler::ha_open, {SQL}",
            "innodb-dict-lock",
        ),
        f"btr_search_drop_page_hash_index, buf_LRU_flush_or_remove_pages, fil_delete_tablespace, {DROP}",
        f"row_rename_table_for_mysql, ha_innobase::rename_table, mysql_rename_table, {SQL}",
    ),
    Scene(
        "innodb-table-stats",
        (f"{LLL}, open_table, open_tables, open_and_lock_tables, {SQL}",),
        (f"{LLL}, open_table, open_tables, open_and_lock_tables, {SQL}", "table-open-lock"),
        f"{READ}, btr_estimate_number_of_different_key_vals, dict_update_statistics, ha_innobase::open, open_table_from_share, open_unireg_entry, open_table, {SQL}",
        f"open64, my_open, open_table_def, open_unireg_entry, open_table, {SQL}",
    ),
    Scene(
        "innodb-dict-lock",
        (
            f"{RWS}, row_mysql_freeze_data_dictionary_func, row_ins_check_foreign_constraints, {INSERT}",
            f"syscall, ssux_lock_impl<false>::wr_wait, dict_sys_t::lock_wait, ha_innobase::open, {SQL}",
        ),
        (f"{RWS}, buf_page_get_gen, dict_load_table, {SQL}", "innodb-page-latch"),
        f"write, row_rename_table_for_mysql, ha_innobase::rename_table, {SQL}",
    ),
    Scene(
        "innodb-purge",
        (
            f"{RWX}, row_mysql_lock_data_dictionary_func, ha_innobase::create, {SQL}",
            f"{MUTEX}, dict_table_open_on_name, ha_innobase::open, {SQL}",
        ),
        (f"{READ}, {SELECT}", "innodb-page-io"),
        f"{READ}, row_purge_remove_sec_if_poss_leaf, row_purge, row_purge_step, srv_worker_thread",
    ),
    # --- InnoDB: the rest -------------------------------------------------------------------------
    Scene(
        "innodb-sync-array",
        (
            f"{RAW}, os_mutex_enter, sync_array_enter, sync_array_reserve_cell, mutex_spin_wait, buf_page_get_gen, {SELECT}",
        ),
        (f"{MUTEX}, buf_page_get_gen, {SELECT}", "innodb-buffer-pool-mutex"),
    ),
    Scene(
        "innodb-thread-concurrency",
        (
            f"nanosleep, os_thread_sleep, srv_conc_enter_innodb, ha_innobase::index_read, {SQL}",
            f"{EVENT}, srv_conc_enter_innodb, ha_innobase::write_row, {SQL}",
        ),
        (f"nanosleep, os_thread_sleep, row_mysql_delay_if_needed, {INSERT}", "innodb-purge"),
        f"row_search_for_mysql, ha_innobase::general_fetch, {SQL}",
    ),
    Scene(
        "innodb-range-estimate",
        (
            f"{READ}, btr_cur_search_to_nth_level, btr_estimate_n_rows_in_range, ha_innobase::records_in_range, handler::multi_range_read_info_const, check_quick_select, {SQL}",
        ),
        (f"{READ}, btr_cur_search_to_nth_level, {SELECT}", "innodb-page-io"),
    ),
    # --- SQL layer --------------------------------------------------------------------------------
    Scene(
        "table-open-lock",
        (f"{LLL}, open_table, open_tables, {SQL}",),
        (f"{MDL}, open_table_get_mdl_lock, open_table, open_tables, {SQL}", "metadata-lock"),
        f"open64, my_open, open_table_def, get_table_share, open_table, {SQL}",
    ),
    Scene(
        "table-name-lock",
        (f"{COND}, wait_for_condition, open_table, open_tables, {SQL}",),
        (f"{COND}, get_table_share, open_table, open_tables, {SQL}", "table-open-lock"),
        f"row_insert_for_mysql, copy_data_between_tables, mysql_alter_table, {SQL}",
    ),
    Scene(
        "metadata-lock",
        (f"{MDL}, open_table_get_mdl_lock, open_table, open_tables, {SQL}",),
        (f"{MDL}, Item_func_get_lock::val_int, {SQL}", "user-level-lock"),
    ),
    Scene(
        "global-read-lock",
        (f"{MDL}, ha_commit_trans, trans_commit, {SQL}",),
        (
            f"{TIMED}, MDL_wait::timed_wait, TABLE_SHARE::wait_for_old_version, tdc_wait_for_old_version, open_table, {SQL}",
            "table-flush-wait",
        ),
    ),
    Scene(
        "table-flush-wait",
        (
            f"{TIMED}, MDL_wait::timed_wait, TABLE_SHARE::wait_for_old_version, open_table, {SQL}",
            f"{TIMED}, TDC_element::flush, close_cached_tables, {SQL}",
        ),
        (f"{MDL}, open_table_get_mdl_lock, open_table, {SQL}", "metadata-lock"),
        f"Item_func_like::val_int, sub_select, JOIN::exec, mysql_select, {SQL}",
    ),
    Scene(
        "disk-full",
        (
            f"{TIMED}, wait_for_free_space, my_write, mi_nommap_pwrite, _mi_write_static_record, mi_write, ha_myisam::write_row, {SQL}",
        ),
        (f"{MDL}, open_table_get_mdl_lock, open_table, {SQL}", "metadata-lock"),
    ),
    Scene(
        "myisam-table-lock",
        (MYISAM_WAIT,),
        (MYISAM_WAIT, "table-lock"),
        f"pread64, my_pread, _mi_read_static_record, mi_scan, ha_myisam::rnd_next, mysql_update, {SQL}",
    ),
    Scene(
        "table-lock",
        (MYISAM_WAIT,),
        (MYISAM_WAIT, "myisam-table-lock"),
        f"heap_scan, ha_heap::rnd_next, mysql_update, {SQL}",
        f"mi_write, ha_myisam::write_row, mysql_insert, {SQL}",
    ),
    Scene(
        "user-level-lock",
        (
            f"{TIMED}, Interruptible_wait::wait, Item_func_get_lock::val_int, {SQL}",
            f"{MDL}, Item_func_get_lock::val_int, {SQL}",
        ),
        (f"{TIMED}, Interruptible_wait::wait, Item_func_sleep::val_int, {SQL}", None),
    ),
    Scene(
        "thread-list-lock",
        (
            f"{LLL}, one_thread_per_connection_end, do_handle_one_connection",
            f"{LLL}, mysqld_list_processes, {SQL}",
        ),
        (f"{LLL}, fill_status, get_schema_tables_result, {SQL}", "status-variables-lock"),
        "clone, pthread_create, create_thread_to_handle_connection, create_new_thread, handle_connections_sockets, mysqld_main",
    ),
    Scene(
        "plugin-lock",
        (
            f"{LLL}, intern_plugin_lock, plugin_thdvar_init, THD::init, {SQL}",
            f"{LLL}, plugin_lock_by_name, ha_resolve_by_name, {SQL}",
        ),
        (f"{LLL}, THD::init, THD::THD, {SQL}", "status-variables-lock"),
        f"pread64, innobase_init, ha_initialize_handlerton, plugin_initialize, mysql_install_plugin, {SQL}",
    ),
    Scene(
        "query-cache",
        (
            f"{COND}, Query_cache::lock, Query_cache::invalidate, mysql_insert, {SQL}",
            f"{TIMED}, Query_cache::try_lock, Query_cache::send_result_to_client, mysql_parse, dispatch_command, do_command",
        ),
        (f"{LLL}, close_thread_tables, {SQL}", "table-open-lock"),
        f"Query_cache::free_query, Query_cache::invalidate_query_block_list, Query_cache::invalidate_table, mysql_update, {SQL}",
    ),
    Scene(
        "status-variables-lock",
        (
            f"{LLL}, fill_status, get_schema_tables_result, {SQL}",
            f"{LLL}, PFS_status_variable_cache::do_materialize_all, {SQL}",
        ),
        (f"{LLL}, calc_sum_of_all_status, mysqld_list_processes, {SQL}", "thread-list-lock"),
        f"show_status_array, fill_status, get_schema_tables_result, {SQL}",
    ),
    Scene(
        "time-zone-lock",
        (
            f"__lll_lock_wait_private, __tz_convert, __localtime_r, Time_zone_system::gmt_sec_to_TIME, {SQL}",
        ),
        (f"__lll_lock_wait_private, _int_free, free, my_free, {SQL}", "malloc-lock"),
    ),
    Scene(
        "malloc-lock",
        (
            f"__lll_lock_wait_private, _int_malloc, __libc_malloc, my_malloc, alloc_root, {SQL}",
            f"{RAW}, _myfree, st_join_table::cleanup, {SQL}",
        ),
        (f"{LLL}, close_thread_tables, {SQL}", "table-open-lock"),
        f"madvise, systrim, _int_free, free, my_free, {SQL}",
    ),
    Scene(
        "row-buffer-memory",
        (
            f"__memset_avx2_erms, calloc, my_malloc, create_tmp_table, st_select_lex_unit::prepare, {SQL}",
            f"memset, alloc_root, ha_partition::init_record_priority_queue, ha_partition::index_init, {SQL}",
        ),
        (f"__memset_avx2_erms, row_sel_store_mysql_rec, {SELECT}", None),
    ),
    # --- replication ------------------------------------------------------------------------------
    Scene(
        "binlog-sync",
        (
            f"{COND}, Commit_stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage, MYSQL_BIN_LOG::ordered_commit, {SQL}",
        ),
        (
            f"{COND}, Commit_stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage, MYSQL_BIN_LOG::ordered_commit, {SQL}",
            "binlog-group-commit",
        ),
        f"fdatasync, my_sync, MYSQL_BIN_LOG::sync_binlog_file, MYSQL_BIN_LOG::ordered_commit, {SQL}",
        f"my_b_copy_to_file, MYSQL_BIN_LOG::process_flush_stage_queue, MYSQL_BIN_LOG::ordered_commit, {SQL}",
    ),
    Scene(
        "binlog-group-commit",
        (
            f"{COND}, THD::wait_for_wakeup_ready, MYSQL_BIN_LOG::write_transaction_to_binlog_events, {SQL}",
        ),
        (
            f"{TIMED}, ReplSemiSyncMaster::commitTrx, repl_semi_report_commit, {SQL}",
            "semisync-wait",
        ),
        f"write, my_write, MYSQL_BIN_LOG::write_cache, MYSQL_BIN_LOG::trx_group_commit_leader, {SQL}",
    ),
    Scene(
        "binlog-purge",
        (
            f"{LLL}, MYSQL_BIN_LOG::find_log_pos, mysql_binlog_send, com_binlog_dump, {SQL}",
            f"{LLL}, show_binlogs, {SQL}",
        ),
        (f"{LLL}, MYSQL_BIN_LOG::write, MYSQL_BIN_LOG::log_xid, {SQL}", "binlog-group-commit"),
        f"unlink, my_delete, MYSQL_BIN_LOG::purge_logs, MYSQL_BIN_LOG::purge_logs_before_date, {SQL}",
    ),
    Scene(
        "gtid-lock",
        (f"{LLL}, Gtid_state::update_on_commit, MYSQL_BIN_LOG::finish_commit, {SQL}",),
        (
            f"{TIMED}, Gtid_state::wait_for_sidno, Gtid_state::wait_for_gtid_set, Item_wait_for_executed_gtid_set::val_int, {SQL}",
            None,
        ),
        f"Gtid_set::to_string, Gtid_state::to_string, mysql_show_variables, {SQL}",
    ),
    Scene(
        "group-flow-control",
        (f"{TIMED}, Flow_control_module::do_wait, group_replication_trans_before_commit, {SQL}",),
        (f"{TIMED}, Repl_semi_sync_master::commit_trx, {SQL}", "semisync-wait"),
    ),
    Scene(
        "login-hang",
        (
            f"poll, send_dg, __res_context_send, gethostbyaddr_r, getnameinfo, ip_to_hostname, {SQL}",
        ),
        (f"{TIMED}, Repl_semi_sync_master::commit_trx, {SQL}", "semisync-wait"),
    ),
    Scene(
        "semisync-wait",
        (
            f"{TIMED}, ReplSemiSyncMaster::commitTrx, repl_semi_report_commit, Trans_delegate::after_commit, {SQL}",
            f"{TIMED}, Repl_semi_sync_master::commit_trx, {SQL}",
        ),
        (
            f"{COND}, Stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage, {SQL}",
            "binlog-group-commit",
        ),
    ),
    Scene(
        "replication-apply",
        (
            f"{COND}, Commit_order_manager::wait_for_its_turn, MYSQL_BIN_LOG::ordered_commit, slave_worker_exec_event, handle_slave_worker",
        ),
        (
            f"{COND}, wait_for_commit::wait_for_prior_commit2, ha_commit_one_phase, {SQL}",
            "binlog-group-commit",
        ),
        "row_search_mvcc, ha_innobase::rnd_next, Rows_log_event::find_row, Rows_log_event::do_apply_event, handle_slave_worker",
    ),
    Scene(
        "galera-order",
        (
            f"{COND}, gu::Lock::wait, galera::Monitor<galera::ReplicatorSMM::CommitOrder>::enter, galera::ReplicatorSMM::pre_commit, galera_pre_commit, wsrep_run_wsrep_commit, {COMMIT}",
        ),
        (
            f"{COND}, gu::Lock::wait, galera::ServiceThd::thd_func, start_thread",
            None,
        ),
        "row_search_mvcc, ha_innobase::rnd_next, Rows_log_event::find_row, Rows_log_event::do_apply_event, wsrep_apply_events, wsrep_apply_cb, galera::TrxHandle::apply, galera::ReplicatorSMM::apply_trx, galera::ReplicatorSMM::process_trx",
    ),
    Scene(
        "galera-replicate",
        (
            f"{COND}, gcs_replv, galera::Gcs::replv, galera::ReplicatorSMM::replicate, galera_pre_commit, wsrep_run_wsrep_commit, {COMMIT}",
        ),
        (
            f"{COND}, fifo_lock_get, gu_fifo_get_head, gcs_recv, galera::GcsActionSource::process, galera::ReplicatorSMM::async_recv, wsrep_replication_process",
            None,
        ),
    ),
    # --- other engines ----------------------------------------------------------------------------
    Scene(
        "aria-log-sync",
        (f"{COND}, translog_flush, ma_commit, maria_commit, ha_commit_one_phase, {SQL}",),
        (f"{COND}, find_block, pagecache_read, _ma_fetch_keypage, {SQL}", "aria-pagecache"),
        f"fdatasync, my_sync, translog_sync_files, translog_flush, ma_commit, {SQL}",
    ),
    Scene(
        "aria-pagecache",
        (
            f"{LLL}, pagecache_unlock, _ma_search, ha_maria::index_read_map, {SQL}",
            f"{COND}, find_key_block, key_cache_read, _mi_fetch_keypage, {SQL}",
        ),
        (MYISAM_WAIT, "table-lock"),
        f"pwrite64, my_pwrite, flush_cached_blocks, flush_pagecache_blocks_int, ma_extra, {SQL}",
    ),
    Scene(
        "rocksdb-write-stall",
        (
            f"pthread_cond_wait, std::condition_variable::wait, rocksdb::WriteThread::BlockingAwaitState, rocksdb::WriteThread::AwaitState, rocksdb::WriteThread::JoinBatchGroup, rocksdb::DBImpl::WriteImpl, {SQL}",
        ),
        (
            f"{ROCKS_LOCK}, rocksdb::InstrumentedMutex::Lock, rocksdb::DBImpl::GetImpl, {SQL}",
            "rocksdb-mutex",
        ),
        "pwrite64, rocksdb::PosixWritableFile::Append, rocksdb::CompactionJob::Run, rocksdb::DBImpl::BackgroundCompaction",
    ),
    Scene(
        "rocksdb-mutex",
        (
            f"{ROCKS_LOCK}, rocksdb::InstrumentedMutex::Lock, rocksdb::DBImpl::GetAndRefSuperVersion, {SQL}",
        ),
        (
            f"{ROCKS_LOCK}, rocksdb::LRUCacheShard::Lookup, rocksdb::BlockBasedTable::Get, {SQL}",
            "rocksdb-block-cache",
        ),
        "write, rocksdb::VersionSet::ProcessManifestWrites, rocksdb::VersionSet::LogAndApply, rocksdb::DBImpl::BackgroundCompaction",
    ),
    Scene(
        "rocksdb-row-lock",
        (
            f"pthread_cond_timedwait, myrocks::Rdb_cond_var::WaitFor, rocksdb::PointLockManager::AcquireWithTimeout, rocksdb::PointLockManager::TryLock, rocksdb::PessimisticTransaction::TryLock, {SQL}",
            f"pthread_cond_timedwait, rocksdb::TransactionDBCondVarImpl::WaitFor, rocksdb::TransactionLockMgr::AcquireWithTimeout, rocksdb::TransactionLockMgr::TryLock, {SQL}",
        ),
        (
            f"{ROCKS_LOCK}, rocksdb::PointLockManager::TryLock, rocksdb::PessimisticTransaction::TryLock, {SQL}",
            "rocksdb-mutex",
        ),
    ),
    Scene(
        "rocksdb-block-cache",
        (
            f"{ROCKS_LOCK}, rocksdb::MutexLock::MutexLock, rocksdb::LRUCacheShard::Release, rocksdb::BlockBasedTable::Get, {SQL}",
        ),
        (
            f"{ROCKS_LOCK}, rocksdb::InstrumentedMutex::Lock, rocksdb::DBImpl::ReleaseSnapshot, {SQL}",
            "myrocks-snapshot-mutex",
        ),
    ),
    Scene(
        "myrocks-snapshot-mutex",
        (
            f"{ROCKS_LOCK}, rocksdb::InstrumentedMutex::Lock, rocksdb::DBImpl::GetSnapshotImpl, rocksdb::DBImpl::GetSnapshot, myrocks::Rdb_transaction_impl::acquire_snapshot, {SQL}",
        ),
        (
            f"{ROCKS_LOCK}, rocksdb::InstrumentedMutex::Lock, rocksdb::DBImpl::GetImpl, {SQL}",
            "rocksdb-mutex",
        ),
    ),
    Scene(
        "myrocks-stats-mutex",
        (
            f"{LLL}, myrocks::Rdb_ddl_manager::adjust_stats, {SQL}",
            f"{LLL}, myrocks::Rdb_dict_manager::add_stats, {SQL}",
        ),
        (f"{LLL}, plugin_lock_by_name, ha_resolve_by_name, {SQL}", "plugin-lock"),
    ),
    Scene(
        "tokudb-checkpoint",
        (
            f"__futex_abstimed_wait_common64, pthread_rwlock_rdlock, toku_multi_operation_client_lock, toku_txn_commit, tokudb_commit, {SQL}",
        ),
        (
            f"{COND}, toku_cond_wait, wait_till_output_already_written_or_output_buffer_available, toku_logger_maybe_fsync, toku_txn_maybe_fsync_log, {SQL}",
            "tokudb-log-sync",
        ),
        f"toku_rollback_cmd_insert, toku_rollback_commit, toku_txn_commit_txn, tokudb_commit, {SQL}",
    ),
    Scene(
        "tokudb-log-sync",
        (
            f"{COND}, toku_cond_wait, toku_logger_maybe_fsync, toku_txn_maybe_fsync_log, tokudb_commit, {SQL}",
        ),
        (
            f"{COND}, toku_cond_wait_with_source_location, evictor::wait_for_cache_pressure_to_subside, toku_cachetable_maybe_flush_some, {SQL}",
            "tokudb-cachetable",
        ),
        f"fsync, toku_file_fsync, toku_logger_maybe_fsync, tokudb_commit, {SQL}",
    ),
    Scene(
        "tokudb-cachetable",
        (
            f"{COND}, toku_cond_wait_with_source_location, evictor::wait_for_cache_pressure_to_subside, toku_cachetable_get_and_pin_with_dep_pairs, {SQL}",
            f"{COND}, toku::frwlock::write_lock, toku_cachetable_get_and_pin_nonblocking, {SQL}",
        ),
        (
            f"{COND}, toku::frwlock::read_lock, toku_checkpoint_safe_client_lock, toku_db_remove, {SQL}",
            "tokudb-checkpoint",
        ),
        "compress2, toku_serialize_ftnode_to, toku_ftnode_flush_callback, cachetable_evicter, work_on_kibbutz",
    ),
    Scene(
        "pbxt-plugin-self-deadlock",
        (
            f"{LLL}, intern_plugin_lock, plugin_thdvar_init, THD::init, THD::THD, myxt_create_thread, tabc_fr_run_thread, thr_main",
        ),
        (
            f"{LLL}, intern_plugin_lock, plugin_thdvar_init, THD::init, THD::THD, myxt_create_thread, tabc_fr_run_thread, thr_main",
            "plugin-lock",
        ),
        "pthread_cond_wait, xt_wait_cond, xt_xres_init, pbxt_init, ha_initialize_handlerton, plugin_initialize, plugin_init, main",
    ),
    Scene(
        "pbxt-checkpoint",
        (
            f"{TIMED}, xt_timed_wait_cond, XTTabCache::tc_fetch, XTTabCache::xt_tc_read, ha_pbxt::index_read, {SQL}",
        ),
        (MYISAM_WAIT, "table-lock"),
        "fsync, xt_flush_file, xt_tab_flush_table, xres_cp_main, xres_cp_run_thread, thr_main",
    ),
    # --- MongoDB and WiredTiger -------------------------------------------------------------------
    Scene(
        "mongodb-write-lock",
        (
            f"pthread_rwlock_wrlock, mongo::RWLockBase::lock, mongo::SimpleRWLock::lock, mongo::Lock::DBWrite::lockOther, mongo::Lock::DBWrite::lockDB, mongo::receivedInsert, {MONGO}",
        ),
        (
            f"pthread_rwlock_wrlock, mongo::RWLockBase::lock, mongo::SimpleRWLock::lock, mongo::Lock::DBWrite::lockOther, mongo::Lock::DBWrite::lockDB, mongo::receivedInsert, {MONGO}",
            "mongodb-exception-unwind",
        ),
        f"mongo::BtreeBucket<mongo::V1>::insertHere, mongo::DataFileMgr::insert, mongo::receivedInsert, {MONGO}",
        f"uw_frame_state_for, _Unwind_RaiseException, __cxa_throw, mongo::uasserted, mongo::BtreeBucket<mongo::V1>::insertHere, mongo::DataFileMgr::insert, mongo::receivedInsert, {MONGO}",
    ),
    Scene(
        "mongodb-exception-unwind",
        (
            f"pthread_rwlock_wrlock, mongo::SimpleRWLock::lock, mongo::Lock::DBWrite::lockDB, mongo::receivedInsert, {MONGO}",
            f"{RAW}, dl_iterate_phdr, _Unwind_Find_FDE, uw_frame_state_for, _Unwind_RaiseException, __cxa_throw, mongo::uasserted, mongo::receivedInsert, {MONGO}",
        ),
        (
            f"pthread_rwlock_wrlock, mongo::SimpleRWLock::lock, mongo::Lock::DBWrite::lockDB, mongo::receivedInsert, {MONGO}",
            "mongodb-write-lock",
        ),
        f"_Unwind_RaiseException, __cxa_throw, mongo::uasserted, mongo::DataFileMgr::insert, mongo::receivedInsert, {MONGO}",
    ),
    Scene(
        "mongodb-file-prealloc",
        (
            f"pthread_cond_wait, boost::condition_variable_any::wait, mongo::FileAllocator::allocateAsap, mongo::MongoDataFile::open, mongo::Database::addAFile, mongo::DataFileMgr::insert, mongo::receivedInsert, {MONGO}",
        ),
        (
            "pthread_cond_wait, boost::condition_variable_any::wait, mongo::FileAllocator::run, thread_proxy, start_thread",
            None,
        ),
        "posix_fallocate64, mongo::FileAllocator::ensureLength, mongo::FileAllocator::run, thread_proxy, start_thread",
    ),
    Scene(
        "mongodb-ticket-wait",
        (
            "sem_timedwait, mongo::TicketHolder::waitForTicketUntil, mongo::LockerImpl::_acquireTicket, mongo::ServiceStateMachine::_runNextInGuard",
        ),
        (
            "recvmsg, asio::detail::socket_ops::sync_recv, mongo::transport::TransportLayerASIO::ASIOSession::sourceMessage, mongo::ServiceStateMachine::_sourceMessage, mongo::ServiceStateMachine::_runNextInGuard",
            None,
        ),
        f"pread64, __posix_file_read, __wt_read, __wt_page_in_func, {WT_SESSION}",
    ),
    Scene(
        "wiredtiger-eviction",
        (
            f"{WT_COND}, __wt_cache_eviction_worker, __wt_txn_begin, {WT_SESSION}",
            f"__wt_reconcile, __wt_evict, __evict_page, __wt_cache_eviction_worker, {WT_SESSION}",
        ),
        (f"{WT_COND}, __wt_evict_thread_run, __thread_run, start_thread", None),
        "pwrite64, __posix_file_write, __wt_block_write, __wt_reconcile, __wt_evict, __evict_page, __wt_evict_thread_run, __thread_run",
    ),
    Scene(
        "wiredtiger-checkpoint",
        (
            f"{RAW}, __wt_spin_lock, __wt_session_get_dhandle, {WT_SESSION}",
            f"{RAW}, __wt_schema_drop, {WT_SESSION}",
        ),
        (
            f"{WT_COND}, __wt_cache_eviction_worker, __wt_txn_begin, {WT_SESSION}",
            "wiredtiger-eviction",
        ),
        "fdatasync, __posix_file_sync, __wt_checkpoint_sync, __checkpoint_tree_helper, __txn_checkpoint, __wt_txn_checkpoint, __ckpt_server",
    ),
    Scene(
        "wiredtiger-log-sync",
        (f"{WT_COND}, __wt_log_force_sync, __wt_txn_commit, {WT_SESSION}",),
        (f"{WT_COND}, __log_wrlsn_server, start_thread", None),
        f"fdatasync, __posix_file_sync, __wt_log_force_sync, __wt_txn_commit, {WT_SESSION}",
    ),
    # --- PostgreSQL -------------------------------------------------------------------------------
    Scene(
        "postgres-wal-sync",
        (
            f"{SEM}, LWLockAcquireOrWait, XLogFlush, RecordTransactionCommit, CommitTransaction, {PG}",
        ),
        (
            f"{SEM}, LWLockAcquire, ProcArrayEndTransaction, CommitTransaction, {PG}",
            "postgres-procarray",
        ),
        f"fdatasync, pg_fdatasync, issue_xlog_fsync, XLogWrite, XLogFlush, RecordTransactionCommit, {PG}",
    ),
    Scene(
        "postgres-sync-replication",
        (f"{LATCH}, SyncRepWaitForLSN, CommitTransaction, {PG}",),
        (f"{LATCH}, WalSndLoop, exec_replication_command, PostgresMain", None),
    ),
    Scene(
        "postgres-procarray",
        (
            f"{SEM}, LWLockAcquire, GetSnapshotData, GetTransactionSnapshot, {PG}",
            f"{SEM}, ProcArrayEndTransaction, CommitTransaction, {PG}",
        ),
        (
            f"{SEM}, LWLockAcquire, SimpleLruReadPage, SubTransGetTopmostTransaction, {PG}",
            "postgres-lwlock",
        ),
    ),
    Scene(
        "postgres-buffer-io",
        (
            f"{LATCH}, ConditionVariableSleep, WaitIO, StartBufferIO, ReadBuffer_common, ReadBufferExtended, heapgettup, {PG}",
        ),
        (
            f"{SEM}, LWLockAcquire, LockBuffer, heap_update, {PG}",
            "postgres-lwlock",
        ),
        f"pread64, FileRead, mdread, smgrread, ReadBuffer_common, ReadBufferExtended, heapgettup, {PG}",
    ),
    Scene(
        "postgres-checkpoint-wait",
        (
            f"{LATCH}, ConditionVariableSleep, RequestCheckpoint, createdb, standard_ProcessUtility, {PG}",
        ),
        (f"{LATCH}, CheckpointWriteDelay, BufferSync, CheckPointGuts, CheckpointerMain", None),
        "fsync, pg_fsync, FileSync, ProcessSyncRequests, CheckPointGuts, CreateCheckPoint, CheckpointerMain, AuxiliaryProcessMain",
    ),
    Scene(
        "postgres-lwlock",
        (
            f"{SEM}, LWLockAcquire, LockBuffer, heap_update, {PG}",
            f"semop, PGSemaphoreLock, LWLockAcquire, LockRelationOid, {PG}",
        ),
        (f"{SEM}, LWLockAcquire, XLogInsertRecord, heap_insert, {PG}", "postgres-wal-sync"),
    ),
    Scene(
        "postgres-replication-slot",
        (
            f"{SEM}, LWLockAcquire, ReplicationSlotAcquire, StartLogicalReplication, {PG}",
            f"{LATCH}, ConditionVariableSleep, ReplicationSlotDrop, {PG}",
        ),
        (f"{LATCH}, SyncRepWaitForLSN, CommitTransaction, {PG}", "postgres-sync-replication"),
    ),
    Scene(
        "postgres-recovery-conflict",
        (
            "select, pg_usleep, WaitExceedsMaxStandbyDelay, ResolveRecoveryConflictWithVirtualXIDs, ResolveRecoveryConflictWithLock, ProcSleep, StandbyAcquireAccessExclusiveLock, standby_redo, StartupXLOG, StartupProcessMain",
        ),
        (f"{HEAVY}, LockRelationOid, relation_open, {PG}", "postgres-heavyweight-lock"),
    ),
    Scene(
        "postgres-extend",
        (
            f"{HEAVY}, LockRelationForExtension, RelationGetBufferForTuple, heap_insert, {PG}",
            f"{HEAVY}, LockRelationForExtension, ExtendBufferedRelShared, {PG}",
        ),
        (f"{HEAVY}, XactLockTableWait, heap_update, {PG}", "postgres-heavyweight-lock"),
        f"pwrite64, FileWrite, mdextend, smgrextend, ReadBuffer_common, RelationAddExtraBlocks, heap_insert, {PG}",
    ),
    Scene(
        "postgres-heavyweight-lock",
        (f"{HEAVY}, XactLockTableWait, heap_update, ExecUpdate, {PG}",),
        (
            f"{HEAVY}, LockRelationForExtension, RelationGetBufferForTuple, heap_insert, {PG}",
            "postgres-extend",
        ),
    ),
)
