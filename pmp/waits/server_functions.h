// SPDX-License-Identifier: Apache-2.0
// The functions in which database servers wait for locks of their own, which no system call shows
// apart. They are entered once a lock was found taken, never for a lock that is free.
#ifndef STALL_SERVER_FUNCTIONS_H
#define STALL_SERVER_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ebpf/waits.h"

// What the lock argument is, for those who want to know more of it.
enum stall_server_detail {
	STALL_DETAIL_NONE,
	STALL_DETAIL_LATCH,	   // an InnoDB mutex or rwlock; the second argument says which
	STALL_DETAIL_QUERY_THREAD, // InnoDB's que_thr_t, whose transaction waits for a row or table
	STALL_DETAIL_MDL_WAIT,	   // MDL_wait, at the start of its MDL_context
};

struct stall_server_function {
	const char *name; // as it is shown: "lock_wait_suspend_thread"
	// As symbol tables have it: see stall_worker_find_functions. Ends with NULL.
	const char *patterns[3];
	enum stall_wait_role role; // of a wait inside it
	bool event;		   // it is no wait: being called is what has happened
	bool prepares; // the wait is not in it, but in this other one, which its caller calls next:
	const char *waits_in[3];
	uint8_t lock_arg, second_arg; // 1 to 6, 0 none
	enum stall_server_detail detail;
	const char *versions; // that have it
};

// Indexes are the `function` of stall_bpf_uprobe, and those of stall_wait_server less 1.
extern const struct stall_server_function stall_server_functions[];
extern const size_t stall_server_function_count;

#endif
