// SPDX-License-Identifier: Apache-2.0
// One step up a stack, and the expressions that it evaluates.
#include <dwarf.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "check.h"
#include "unwind/expression.h"
#include "unwind/unwind.h"

#define OPS(...) ((Dwarf_Op[]){__VA_ARGS__}), sizeof((Dwarf_Op[]){__VA_ARGS__}) / sizeof(Dwarf_Op)

static uint8_t stack_bytes[256];
static const struct stall_stack_memory memory = {.copy = stack_bytes,
						 .address = 0x7000,
						 .size = sizeof(stack_bytes)};
static struct stall_regs regs;

static void set_word(uint64_t address, uint64_t value)
{
	memcpy(stack_bytes + (address - 0x7000), &value, sizeof(value));
}

static void set_reg(int reg, uint64_t value)
{
	regs.value[reg] = value;
	regs.valid |= 1U << reg;
}

static enum stall_step evaluate(const Dwarf_Op *ops, size_t count, uint64_t *ret)
{
	static const uint64_t cfa = 0x7080;
	_cleanup_free_ struct stall_expression *expression = NULL;
	struct stall_error *err = stall_expression_create(ops, count, &expression);

	if (err) {
		stall_error_destroy(err);
		return STALL_STEP_BAD;
	}
	return stall_expression_evaluate(expression, &regs, &cfa, &memory, ret);
}

#define CHECK_VALUE(expected, ...)                                                                 \
	do {                                                                                       \
		uint64_t value_ = 0;                                                               \
		CHECK_INT(evaluate(OPS(__VA_ARGS__), &value_), STALL_STEP_CALLER);                 \
		CHECK_INT(value_, expected);                                                       \
	} while (0)
#define CHECK_FAILS(step, ...)                                                                     \
	do {                                                                                       \
		uint64_t value_ = 0;                                                               \
		CHECK_INT(evaluate(OPS(__VA_ARGS__), &value_), step);                              \
	} while (0)

// What GNU ld writes for the procedure linkage table: CFA = rsp + 8 + ((rip & 15) >= 11) * 8.
static void test_plt_expression(void)
{
	for (uint64_t pc = 0x401020; pc < 0x401030; pc++) {
		set_reg(STALL_REG_SP, 0x7000);
		set_reg(STALL_REG_PC, pc);
		CHECK_VALUE(0x7008 + ((pc & 15) >= 11 ? 8 : 0), {DW_OP_breg7, 8, 0, 0},
			    {DW_OP_breg16, 0, 0, 2}, {DW_OP_lit15, 0, 0, 4}, {DW_OP_and, 0, 0, 5},
			    {DW_OP_lit11, 0, 0, 6}, {DW_OP_ge, 0, 0, 7}, {DW_OP_lit3, 0, 0, 8},
			    {DW_OP_shl, 0, 0, 9}, {DW_OP_plus, 0, 0, 10});
	}
}

static void test_arithmetic(void)
{
	uint64_t minimum = (uint64_t)INT64_MIN, minus_one = UINT64_MAX;

	CHECK_VALUE(minimum, {DW_OP_constu, minimum, 0, 0}, {DW_OP_consts, minus_one, 0, 9},
		    {DW_OP_div, 0, 0, 18});
	CHECK_VALUE((uint64_t)-3, {DW_OP_consts, (uint64_t)-6, 0, 0}, {DW_OP_lit2, 0, 0, 9},
		    {DW_OP_div, 0, 0, 10});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_lit1, 0, 0, 0}, {DW_OP_lit0, 0, 0, 1},
		    {DW_OP_div, 0, 0, 2});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_lit1, 0, 0, 0}, {DW_OP_lit0, 0, 0, 1},
		    {DW_OP_mod, 0, 0, 2});
	CHECK_VALUE(0, {DW_OP_lit1, 0, 0, 0}, {DW_OP_constu, 64, 0, 1}, {DW_OP_shl, 0, 0, 3});
	CHECK_VALUE(minus_one, {DW_OP_consts, minus_one, 0, 0}, {DW_OP_constu, 200, 0, 9},
		    {DW_OP_shra, 0, 0, 11});
	CHECK_VALUE(1, {DW_OP_consts, minus_one, 0, 0}, {DW_OP_lit0, 0, 0, 9},
		    {DW_OP_lt, 0, 0, 10});
	CHECK_VALUE(5, {DW_OP_consts, (uint64_t)-5, 0, 0}, {DW_OP_abs, 0, 0, 2});
	// [1 2 3] -> [3 1 2]; 3 - 1 + 2 by two operations from the top: 1 - 2 = -1.
	CHECK_VALUE(minus_one, {DW_OP_lit1, 0, 0, 0}, {DW_OP_lit2, 0, 0, 1}, {DW_OP_lit3, 0, 0, 2},
		    {DW_OP_rot, 0, 0, 3}, {DW_OP_minus, 0, 0, 4});
	CHECK_VALUE(7, {DW_OP_lit7, 0, 0, 0}, {DW_OP_lit9, 0, 0, 1}, {DW_OP_pick, 1, 0, 2});
}

static void test_memory_and_registers(void)
{
	set_word(0x7010, 0x1122334455667788);
	CHECK_VALUE(0x1122334455667788, {DW_OP_constu, 0x7010, 0, 0}, {DW_OP_deref, 0, 0, 3});
	CHECK_VALUE(0x7788, {DW_OP_constu, 0x7010, 0, 0}, {DW_OP_deref_size, 2, 0, 3});
	CHECK_VALUE(0x7070, {DW_OP_call_frame_cfa, 0, 0, 0}, {DW_OP_lit16, 0, 0, 0},
		    {DW_OP_minus, 0, 0, 1});
	CHECK_FAILS(STALL_STEP_NO_MEMORY, {DW_OP_lit0, 0, 0, 0}, {DW_OP_deref, 0, 0, 1});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_constu, 0x7010, 0, 0}, {DW_OP_deref_size, 9, 0, 3});
	regs.valid &= ~(1U << STALL_REG_RBX);
	CHECK_FAILS(STALL_STEP_NO_REGISTERS, {DW_OP_breg3, 0, 0, 0});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_bregx, 40, 0, 0});
}

static void test_hostile_expressions(void)
{
	Dwarf_Op pushes[100];

	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_plus, 0, 0, 0});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_lit1, 0, 0, 0}, {DW_OP_drop, 0, 0, 1});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_lit1, 0, 0, 0}, {DW_OP_pick, 200, 0, 1});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_lit1, 0, 0, 0}, {DW_OP_rot, 0, 0, 1});
	// Jumps to itself, for ever; into nowhere; over the rest.
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_skip, (uint64_t)-3, 0, 0});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_skip, 1000, 0, 0}, {DW_OP_lit1, 0, 0, 3});
	CHECK_VALUE(4, {DW_OP_lit4, 0, 0, 0}, {DW_OP_skip, 1, 0, 1}, {DW_OP_lit5, 0, 0, 4});
	CHECK_VALUE(4, {DW_OP_lit4, 0, 0, 0}, {DW_OP_lit1, 0, 0, 1}, {DW_OP_bra, 1, 0, 2},
		    {DW_OP_lit5, 0, 0, 5}, {DW_OP_nop, 0, 0, 6});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_fbreg, 0, 0, 0});
	CHECK_FAILS(STALL_STEP_BAD, {DW_OP_call4, 0, 0, 0});
	for (size_t i = 0; i < 100; i++)
		pushes[i] = (Dwarf_Op){DW_OP_lit1, 0, 0, i};
	uint64_t value;
	CHECK_INT(evaluate(pushes, 64, &value), STALL_STEP_CALLER);
	CHECK_INT(evaluate(pushes, 65, &value), STALL_STEP_BAD);
	CHECK_INT(evaluate(pushes, 0, &value), STALL_STEP_BAD);
}

// A row with room for a rule.
static _Alignas(16) uint8_t row_bytes[sizeof(struct stall_row) + sizeof(struct stall_rule)];
static struct stall_row *const row = (struct stall_row *)row_bytes;

static void set_usual_row(void)
{
	memset(row_bytes, 0, sizeof(row_bytes));
	row->cfa_reg = STALL_REG_SP;
	row->cfa_offset = 16;
	row->rule_count = 1;
	row->rules[0] =
		(struct stall_rule){.kind = STALL_RULE_OFFSET, .reg = STALL_REG_PC, .offset = -8};
}

static void start_at(uint64_t sp)
{
	regs = (struct stall_regs){};
	set_reg(STALL_REG_SP, sp);
	set_reg(STALL_REG_PC, 0x401000);
}

static void test_step(void)
{
	struct stall_regs caller;

	set_usual_row();
	start_at(0x7000);
	set_word(0x7008, 0x402000);
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_CALLER);
	CHECK_INT(caller.value[STALL_REG_PC], 0x402000);
	CHECK_INT(caller.value[STALL_REG_SP], 0x7010);
	CHECK_INT(caller.valid, 1U << STALL_REG_PC | 1U << STALL_REG_SP);
	set_word(0x7008, 0);
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_OUTERMOST);
	row->rules[0].kind = STALL_RULE_UNDEFINED;
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_OUTERMOST);
	// rbp is not known, as with registers from /proc/PID/task/TID/syscall.
	set_usual_row();
	row->cfa_reg = STALL_REG_RBP;
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_NO_REGISTERS);
	// The copy ends at 0x7100.
	set_usual_row();
	start_at(0x70f8);
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_NO_MEMORY);
	start_at(UINT64_MAX - 8);
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_BAD);
}

static void test_growth(void)
{
	struct stall_regs caller;

	set_usual_row();
	start_at(0x7040);
	set_word(0x7018, 0x402000);
	row->cfa_offset = -0x20;
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_BAD);
	row->cfa_offset = 0;
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_BAD);
	// A handler on a stack of its own was entered from anywhere.
	row->signal = true;
	row->cfa_offset = -0x20;
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_CALLER);
}

int main(void)
{
	test_plt_expression();
	test_arithmetic();
	test_memory_and_registers();
	test_hostile_expressions();
	test_step();
	test_growth();
	return check_done();
}
