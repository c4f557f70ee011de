// SPDX-License-Identifier: Apache-2.0
// The distinct stacks of a capture, and the distinct kernel frames in them: threads of a stalled
// server are in few places.
#ifndef STALL_CAPTURE_STACKS_H
#define STALL_CAPTURE_STACKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "capture/kernel_symbols.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_capture_stack {
	uint32_t *frames; // ids of frames, innermost first
	uint32_t count;
};

struct stall_capture_stacks {
	struct stall_capture_stack *stacks;
	size_t stack_count;
	uint32_t *user;	  // per thread: index of its stack, or UINT32_MAX
	uint32_t *kernel; // the same of its kernel stack
	// Kernel frames have the ids after those of the user frames.
	struct stall_kernel_symbol *kernel_frames;
	size_t kernel_frame_count;
	uint32_t *frame_ids; // storage of the stacks
};

struct stall_error *stall_capture_stacks_init(struct stall_capture_stacks *stacks,
					      const struct stall_snapshot *snapshot,
					      const struct stall_unwound *unwound);
void stall_capture_stacks_deinit(struct stall_capture_stacks *stacks);

#endif
