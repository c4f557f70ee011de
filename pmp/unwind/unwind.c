// SPDX-License-Identifier: Apache-2.0
#include "unwind/unwind.h"

static void set(struct stall_regs *regs, uint8_t reg, uint64_t value)
{
	regs->value[reg] = value;
	regs->valid |= 1U << reg;
}

static enum stall_step compute_cfa(const struct stall_row *row, const struct stall_regs *regs,
				   const struct stall_stack_memory *memory, uint64_t *ret)
{
	if (row->cfa_expression)
		return stall_expression_evaluate(row->cfa_expression, row->cfa_size, regs, NULL,
						 memory, ret);
	if (!(regs->valid & (1U << row->cfa_reg)))
		return STALL_STEP_NO_REGISTERS;
	*ret = regs->value[row->cfa_reg] + (uint64_t)row->cfa_offset;
	return STALL_STEP_CALLER;
}

static enum stall_step load(const struct stall_stack_memory *memory, uint64_t address,
			    uint64_t *ret)
{
	return stall_stack_read(memory, address, ret) ? STALL_STEP_CALLER : STALL_STEP_NO_MEMORY;
}

static enum stall_step apply(const struct stall_rule *rule, const struct stall_regs *regs,
			     uint64_t cfa, const struct stall_stack_memory *memory, uint64_t *ret)
{
	uint8_t from = rule->reg;
	enum stall_step step;
	uint64_t address;

	switch (rule->kind) {
	case STALL_RULE_OFFSET:
		return load(memory, cfa + (uint64_t)rule->offset, ret);
	case STALL_RULE_VAL_OFFSET:
		*ret = cfa + (uint64_t)rule->offset;
		return STALL_STEP_CALLER;
	case STALL_RULE_REGISTER:
		from = rule->other;
		// fall through
	case STALL_RULE_SAME:
		if (!(regs->valid & (1U << from)))
			return STALL_STEP_NO_REGISTERS;
		*ret = regs->value[from];
		return STALL_STEP_CALLER;
	case STALL_RULE_EXPRESSION:
		step = stall_expression_evaluate(rule->expression, rule->size, regs, &cfa, memory,
						 &address);
		return step == STALL_STEP_CALLER ? load(memory, address, ret) : step;
	case STALL_RULE_VAL_EXPRESSION:
		return stall_expression_evaluate(rule->expression, rule->size, regs, &cfa, memory,
						 ret);
	default:
		return STALL_STEP_OUTERMOST;
	}
}

// A call pushes: without growth the walk would never end. A signal may have switched stacks, and
// glibc's vfork has popped its return address into a register while it waits for the child.
static bool grows(const struct stall_row *row, const struct stall_regs *regs, uint64_t cfa)
{
	if (!(regs->valid & (1U << STALL_REG_SP)) || cfa > regs->value[STALL_REG_SP])
		return true;
	if (cfa < regs->value[STALL_REG_SP])
		return false;
	for (uint8_t i = 0; i < row->rule_count; i++)
		if (row->rules[i].reg == STALL_REG_PC)
			return row->rules[i].kind == STALL_RULE_REGISTER;
	return false;
}

enum stall_step stall_unwind_step(const struct stall_row *row, const struct stall_regs *regs,
				  const struct stall_stack_memory *memory, struct stall_regs *ret)
{
	struct stall_regs caller;
	uint64_t cfa, value;
	enum stall_step step = compute_cfa(row, regs, memory, &cfa);

	if (step != STALL_STEP_CALLER)
		return step;
	if (!row->signal && !grows(row, regs, cfa))
		return STALL_STEP_BAD;
	caller.valid = 0;
	for (uint8_t i = 0; i < row->rule_count; i++) {
		const struct stall_rule *rule = &row->rules[i];

		step = apply(rule, regs, cfa, memory, &value);
		if (step == STALL_STEP_CALLER)
			set(&caller, rule->reg, value);
		else if (rule->reg == STALL_REG_PC)
			return step;
	}
	// No rule for the return address means undefined, too.
	if (!(caller.valid & (1U << STALL_REG_PC)) || caller.value[STALL_REG_PC] == 0)
		return STALL_STEP_OUTERMOST;
	if (!(caller.valid & (1U << STALL_REG_SP)))
		set(&caller, STALL_REG_SP, cfa);
	*ret = caller;
	return STALL_STEP_CALLER;
}
