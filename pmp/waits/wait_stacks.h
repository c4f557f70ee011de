// SPDX-License-Identifier: Apache-2.0
// Stacks as names of frames, each kept once, up to a limit.
#ifndef STALL_WAIT_STACKS_H
#define STALL_WAIT_STACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/worker.h"

#define STALL_MAX_STACKS 16384
#define STALL_MAX_STACK_NAMES 512 // frames of one; a STALL_MAX_FRAMES stack fits
#define STALL_MAX_NAME_BYTES (16 << 20)
// Lines repeat the names of each stack: of one, after which its outer frames are left out, and of all
// together.
#define STALL_MAX_STACK_BYTES (64 << 10)
#define STALL_MAX_STACKS_BYTES ((size_t)256 << 20)

struct stall_wait_stacks;

struct stall_error *stall_wait_stacks_create(struct stall_wait_stacks **ret);
void stall_wait_stacks_destroy(struct stall_wait_stacks *stacks); // NULL is fine

// The stack of a thread of the snapshot: 1 and up. 0: it has no frames, or there is no room; then
// *full is set.
uint32_t stall_wait_stacks_add(struct stall_wait_stacks *stacks, const struct stall_snapshot *of,
			       const struct stall_unwound *unwound, const struct stall_stack *stack,
			       bool *full);

// Some stack had no room.
bool stall_wait_stacks_is_full(const struct stall_wait_stacks *stacks);

// Innermost first: "function", "module+0xoffset", "0xaddress". They live as long as `stacks`.
const char *const *stall_wait_stacks_frames(const struct stall_wait_stacks *stacks, uint32_t stack,
					    size_t *ret_count);

static inline void stall_wait_stacks_destroyp(struct stall_wait_stacks **stacks)
{
	stall_wait_stacks_destroy(*stacks);
}

#endif
