// SPDX-License-Identifier: Apache-2.0
// Evaluates DWARF expressions of unwind information, from their bytes.
#ifndef STALL_EXPRESSION_H
#define STALL_EXPRESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "snapshot/snapshot.h"

// How a step, or a part of one, ended.
enum stall_step {
	STALL_STEP_CALLER,    // the result is in *ret: of a step, the caller's registers
	STALL_STEP_OUTERMOST, // there is no caller
	STALL_STEP_NO_REGISTERS,
	STALL_STEP_NO_MEMORY,
	STALL_STEP_BAD,
};

// The copied stack, and a function that reads memory outside it (eight bytes; false: unreadable).
struct stall_stack_memory {
	const uint8_t *copy;
	uint64_t address;
	size_t size;
	bool (*read)(void *arg, uint64_t address, uint64_t *ret);
	void *arg;
};

static inline bool stall_stack_read(const struct stall_stack_memory *memory, uint64_t address,
				    uint64_t *ret)
{
	uint64_t at = address - memory->address;

	if (at < memory->size && memory->size - at >= sizeof(*ret)) {
		memcpy(ret, memory->copy + at, sizeof(*ret));
		return true;
	}
	return memory->read && memory->read(memory->arg, address, ret);
}

// The final value on the expression's stack. `cfa` is its initial value; NULL: the stack begins
// empty.
enum stall_step stall_expression_evaluate(const uint8_t *code, size_t size,
					  const struct stall_regs *regs, const uint64_t *cfa,
					  const struct stall_stack_memory *memory, uint64_t *ret);

#endif
