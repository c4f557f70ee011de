// SPDX-License-Identifier: Apache-2.0
// One step up a stack: registers of a frame and its unwind row in, registers of its caller out.
#ifndef STALL_UNWIND_H
#define STALL_UNWIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "snapshot/snapshot.h"
#include "unwind/worker.h"

// An operation of a DWARF expression, decoded; jumps are resolved to indexes.
struct stall_expression_op {
	uint8_t atom; // DW_OP_*
	uint32_t jump;
	uint64_t number, number2;
};

struct stall_expression {
	uint32_t count;
	bool is_value; // ended with DW_OP_stack_value: the value itself, not its address
	struct stall_expression_op ops[];
};

enum stall_rule_kind {
	STALL_RULE_SAME,       // the caller's register is this frame's
	STALL_RULE_OFFSET,     // saved at CFA + offset
	STALL_RULE_VAL_OFFSET, // is CFA + offset
	STALL_RULE_REGISTER,   // is in another register
	STALL_RULE_EXPRESSION,
	STALL_RULE_UNDEFINED,
};

struct stall_rule {
	uint8_t kind;
	uint8_t reg;   // which register the rule restores
	uint8_t other; // STALL_RULE_REGISTER
	union {
		int64_t offset;
		const struct stall_expression *expression;
	};
};

// What the unwind information says at one PC. Registers without a rule are unknown in the caller.
struct stall_row {
	bool signal; // the caller was interrupted, not calling: its PC is exact
	bool cfa_is_expression;
	uint8_t cfa_reg;
	uint8_t rule_count; // at most STALL_REGS
	union {
		int64_t cfa_offset;
		const struct stall_expression *cfa_expression;
	};
	struct stall_rule rules[];
};

// The copied stack, and what to ask for memory outside it (eight bytes; false: unreadable).
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

enum stall_step {
	STALL_STEP_CALLER,    // *ret holds the caller's registers
	STALL_STEP_OUTERMOST, // there is no caller
	STALL_STEP_NO_REGISTERS,
	STALL_STEP_NO_MEMORY,
	STALL_STEP_BAD,
};

enum stall_step stall_unwind_step(const struct stall_row *row, const struct stall_regs *regs,
				  const struct stall_stack_memory *memory, struct stall_regs *ret);

#endif
