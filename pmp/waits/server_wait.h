// SPDX-License-Identifier: Apache-2.0
// The lock that a thread waits for in a function with a uprobe.
#ifndef STALL_SERVER_WAIT_H
#define STALL_SERVER_WAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ebpf/waits.h"
#include "proc/target.h"

// What the lock argument points to.
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
	bool event;		   // the call is not a wait: it reports a deadlock
	bool prepares; // the wait is in one of these functions, which its caller calls next:
	const char *waits_in[3];
	uint8_t lock_arg, second_arg; // 1 to 6, 0 none
	enum stall_server_detail detail;
	const char *versions; // that have it
};

// Indexes are the `function` of stall_bpf_uprobe, and those of stall_wait_server less 1.
extern const struct stall_server_function stall_server_functions[];
extern const size_t stall_server_function_count;

struct stall_server_wait {
	const struct stall_server_function *function;
	enum stall_wait_role role;
	uint64_t lock; // address of the lock object, 0 unknown
	// One text for all waiters of the same lock: "latch created at srv0srv.c:1020", "row 2 of
	// page 4 of test.t1 (PRIMARY)", "test.t1"; "": nothing is known.
	char text[160];
};

// Whether the thread is still in the call that the uprobe saw: its stack pointer is below the
// call's frame, and the return address is still there (8 bytes at server->sp of its memory).
bool stall_server_wait_holds(const struct stall_wait_server *server, uint64_t stack_pointer,
			     uint64_t stacked_return_address);
// The same from the copy of a stack, e.g. that of a record, and more certain: the frame above the
// call must be unchanged.
bool stall_server_wait_in_copy(const struct stall_wait_server *server, uint64_t stack_address,
			       const uint8_t *stack, size_t stack_size);

// Reads some of the target's memory, which is checked, never trusted. Row and metadata locks are
// known only while the thread waits. False: `server` is of no known function. `target` may be NULL:
// then nothing is read.
bool stall_server_wait_describe(const struct stall_wait_server *server,
				const struct stall_target *target, struct stall_server_wait *ret);

#endif
