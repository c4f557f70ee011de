// SPDX-License-Identifier: Apache-2.0
// Unwinds and names the registers and stack copies of records, a batch at a time, with the unwinder
// of captures.
#ifndef STALL_WAIT_UNWIND_H
#define STALL_WAIT_UNWIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "ebpf/waits.h"
#include "unwind/worker.h"
#include "waits/wait_process.h"
#include "waits/wait_roles.h"
#include "waits/wait_stacks.h"

// One record, and its result.
struct stall_wait_item {
	struct stall_wait_record record;
	uint64_t received_ns; // when it was received
	uint32_t flow;	      // of stall_fair_take()
	uint32_t process;     // index into stall_wait_processes.processes
	bool identify;	      // its futex word is not known yet
	bool exact;	      // the copy is of one moment, and is the stack of that moment
	const uint8_t *stack; // in the arena
	size_t stack_size;
	uint64_t stack_address;
	struct stall_futex futex; // of futex waits
	// Out:
	uint32_t stack_id;
	enum stall_label label;
	bool identified;
	struct stall_wait_identity identity;
	char *symbol; // of the lock, where it is a global; the caller frees it
};

struct stall_wait_unwinder;

// All are borrowed.
struct stall_wait_unwinder_options {
	struct stall_arena *arena;
	struct stall_worker *worker;
	struct stall_wait_processes *processes;
	struct stall_wait_stacks *stacks;
	uint32_t stacks_per_second; // stacks above this rate are not unwound; in fair shares
};
struct stall_error *stall_wait_unwinder_create(const struct stall_wait_unwinder_options *options,
					       struct stall_wait_unwinder **ret);
void stall_wait_unwinder_destroy(struct stall_wait_unwinder *unwinder); // NULL is fine

// Unwinds and names new stacks, finds known ones in the cache, and identifies the words.
struct stall_error *stall_wait_unwind(struct stall_wait_unwinder *unwinder,
				      struct stall_wait_item *items, size_t count);

// Uses another, empty table of stacks from now on.
void stall_wait_unwinder_set_stacks(struct stall_wait_unwinder *unwinder,
				    struct stall_wait_stacks *stacks);

struct stall_wait_unwound_counts {
	uint64_t unwound, recalled;
	uint64_t over_limit, // not unwound: more than stacks_per_second
		no_room,     // not kept: the table of stacks is full
		failed;	     // the unwinding child died or was late
};
struct stall_wait_unwound_counts stall_wait_unwinder_counts(
	const struct stall_wait_unwinder *unwinder);

static inline void stall_wait_unwinder_destroyp(struct stall_wait_unwinder **unwinder)
{
	stall_wait_unwinder_destroy(*unwinder);
}

#endif
