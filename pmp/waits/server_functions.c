// SPDX-License-Identifier: Apache-2.0
#include "waits/server_functions.h"

// Argument numbers are those of the functions' declarations; `this` is the first of a method.
const struct stall_server_function stall_server_functions[] = {
	// storage/innobase/sync/sync0arr: a cell is reserved for the latch (2) and its type (3) by
	// who is about to wait, who then waits for the cell unless the latch has become free.
	{
		.name = "sync_array_reserve_cell",
		.patterns = {"sync_array_reserve_cell", "_Z23sync_array_reserve_cell*"},
		.role = STALL_ROLE_MUTEX,
		.prepares = true,
		.waits_in = {"sync_array_wait_event", "_Z21sync_array_wait_event*"},
		.lock_arg = 2,
		.second_arg = 3,
		.detail = STALL_DETAIL_LATCH,
		.versions = "MySQL 5.1 to 9.7, MariaDB to 10.5",
	},
	{
		.name = "srw_mutex_impl::wait_and_lock",
		.patterns = {"_ZN14srw_mutex_implILb?EE13wait_and_lockEv"},
		.role = STALL_ROLE_MUTEX,
		.lock_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "ssux_lock_impl::rd_wait",
		.patterns = {"_ZN14ssux_lock_implILb?EE7rd_waitEv"},
		.role = STALL_ROLE_RWLOCK,
		.lock_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "ssux_lock_impl::wr_wait",
		.patterns = {"_ZN14ssux_lock_implILb?EE7wr_waitEj"},
		.role = STALL_ROLE_RWLOCK,
		.lock_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "srv_suspend_mysql_thread",
		.patterns = {"srv_suspend_mysql_thread"},
		.role = STALL_ROLE_ROW_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_QUERY_THREAD,
		.versions = "MySQL 5.1 and 5.5",
	},
	{
		.name = "lock_wait_suspend_thread",
		.patterns = {"_Z24lock_wait_suspend_threadP9que_thr_t"},
		.role = STALL_ROLE_ROW_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_QUERY_THREAD,
		.versions = "MySQL 5.6 to 9.7, MariaDB to 10.5",
	},
	{
		.name = "lock_wait",
		.patterns = {"_Z9lock_waitP9que_thr_t"},
		.role = STALL_ROLE_ROW_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_QUERY_THREAD,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "MDL_wait::timed_wait",
		.patterns = {"_ZN8MDL_wait10timed_waitE*"},
		.role = STALL_ROLE_METADATA_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_MDL_WAIT,
		.versions = "MySQL 5.5 to 9.7, MariaDB",
	},
	// Deadlocks. In 5.5, which is C, transactions are weighed against each other only to choose
	// the victim of a cycle; later versions, which are C++, do it elsewhere too.
	{
		.name = "trx_weight_ge",
		.patterns = {"trx_weight_ge"},
		.event = true,
		.lock_arg = 1,
		.second_arg = 2,
		.versions = "MySQL 5.5",
	},
	{
		.name = "lock_deadlock_select_victim",
		.patterns = {"_ZL27lock_deadlock_select_victim*"},
		.event = true,
		.versions = "MySQL 5.6",
	},
	{
		.name = "DeadlockChecker::select_victim",
		.patterns = {"_ZNK15DeadlockChecker13select_victimEv"},
		.event = true,
		.versions = "MySQL 5.7 to 8.0.17, MariaDB 10.2 to 10.5",
	},
	{
		.name = "lock_notify_about_deadlock",
		.patterns = {"_Z26lock_notify_about_deadlock*"},
		.event = true,
		.second_arg = 2,
		.versions = "MySQL 8.0.18 to 9.7",
	},
	{
		.name = "Deadlock::report",
		.patterns = {"_ZN8DeadlockL6reportE*", "_ZN8Deadlock6reportE*"},
		.event = true,
		.second_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
};
const size_t stall_server_function_count =
	sizeof(stall_server_functions) / sizeof(stall_server_functions[0]);

_Static_assert(sizeof(stall_server_functions) / sizeof(stall_server_functions[0]) <= 64,
	       "STALL_BPF_UPROBE_FUNCTIONS");
