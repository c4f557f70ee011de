// SPDX-License-Identifier: Apache-2.0
// Copies of the stacks of threads, from their stack pointers upward.
#ifndef STALL_STACK_COPY_H
#define STALL_STACK_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

// Leaf functions keep data below the stack pointer (System V ABI, AMD64 supplement, 3.2.2).
#define STALL_RED_ZONE 128

struct stall_stack_copy {
	struct stall_thread *thread; // in: process, regs, fs_base; out: stack*
	uint64_t end;		     // in: the stack ends there or below; 0: not known
	size_t capacity;	     // of thread->stack, so that a second copy takes the same room
	bool truncated;		     // the copy ends before the stack does
};

// Copies into the arena what is between the stack pointer, or the red zone below it where that is
// mapped, and the end of the stack, at most max_stack bytes. Threads of one process should stand
// together. A thread without a stack pointer, or with one that points nowhere, gets an empty copy.
// *ret_full counts the threads that found no room in the arena.
struct stall_error *stall_stacks_copy(const struct stall_snapshot *snapshot,
				      struct stall_stack_copy *const *copies, size_t count,
				      size_t max_stack, size_t *ret_full);

#endif
