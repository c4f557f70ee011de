// SPDX-License-Identifier: Apache-2.0
// Threads of one process in a ring, in the terms of a snapshot.
#ifndef STALL_RING_THREADS_H
#define STALL_RING_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "rings/ring_file.h"
#include "snapshot/snapshot.h"

// A slot in use, copied.
struct stall_ring_thread {
	struct stall_wait_slot slot; // in a wait while slot.seq is odd
	bool has_stack;
	struct stall_ring_stack_copy copy;
	uint8_t *stack; // in the arena; NULL: none, or no room for it
};

struct stall_ring_threads {
	struct stall_ring_thread *threads; // by tid, one of each
	size_t count;
	uint64_t newest_ns; // the latest time in any of them
	size_t full;	    // stacks without room in the arena
};

static inline bool stall_ring_thread_is_waiting(const struct stall_ring_thread *thread)
{
	return thread->slot.seq & 1;
}

// Copies at most max_stack bytes of each stack into the arena.
struct stall_error *stall_ring_threads_init(struct stall_ring_threads *threads,
					    const struct stall_ring *ring,
					    struct stall_arena *arena, size_t max_stack);
void stall_ring_threads_deinit(struct stall_ring_threads *threads);

// By its tid in its own pid namespace; NULL: it has no slot.
const struct stall_ring_thread *stall_ring_threads_find(const struct stall_ring_threads *threads,
							pid_t ns_tid);

// Sets the wait of the thread: stack, registers, label, lock and duration. Of a thread that is in
// no wait nothing else is known.
void stall_ring_thread_fill(const struct stall_ring_thread *from, uint64_t now_ns,
			    struct stall_thread *thread);

// The object that threads in a call (enum stall_ring_call) wait for; NONE: it is no wait.
enum stall_object stall_ring_object(uint32_t call);

// Those that the library keeps: the callee-saved ones, SP and PC.
void stall_ring_regs_fill(const __u64 regs[STALL_BPF_PT_REGS], struct stall_regs *ret);

#endif
