// SPDX-License-Identifier: Apache-2.0
// Steps frames with a row that a fuzzer of unwind information has found.
#ifndef STEP_FRAMES_H
#define STEP_FRAMES_H

#include "unwind/unwind.h"

// Up to `steps` frames, with registers and a stack made of the input's own bytes.
static inline void step_frames(const struct stall_row *row, const uint8_t *data, size_t size,
			       int steps)
{
	struct stall_stack_memory memory = {.copy = data, .address = 0x7f0000000000, .size = size};
	struct stall_regs regs = {.valid = (1U << STALL_REGS) - 1};

	for (int i = 0; i < STALL_REGS; i++)
		regs.value[i] = memory.address + (uint64_t)i * 64;
	for (int i = 0; i < steps; i++) {
		if (stall_unwind_step(row, &regs, &memory, &regs) != STALL_STEP_CALLER)
			break;
	}
}

#endif
