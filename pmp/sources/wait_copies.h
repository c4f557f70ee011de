// SPDX-License-Identifier: Apache-2.0
// Copies of the stacks of waiters, from the memory of a live process, for sources without stacks.
#ifndef STALL_WAIT_COPIES_H
#define STALL_WAIT_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "waits/wait_process.h"
#include "waits/wait_unwind.h"

// Whether a thread is still in this very wait: see struct stall_wait_source_calls.
typedef bool (*stall_wait_slot_is_fn)(void *state, size_t slot, uint32_t seq);

// Sets stack, words and `exact` of these waits of one process, whose registers are in their records.
struct stall_error *stall_wait_copy_stacks(struct stall_arena *arena,
					   const struct stall_wait_process *process,
					   struct stall_wait_item *const *items, size_t count,
					   stall_wait_slot_is_fn slot_is, void *state);

#endif
