// SPDX-License-Identifier: Apache-2.0
// One step up a stack, and the expressions that it evaluates.
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "unwind/dwarf_codes.h"
#include "unwind/unwind.h"

#define CODE(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

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

static const uint64_t cfa = 0x7080;

#define CHECK_VALUE(expected, ...)                                                                 \
	do {                                                                                       \
		uint64_t value_ = 0;                                                               \
		CHECK_INT(stall_expression_evaluate(CODE(__VA_ARGS__), &regs, NULL, &memory,       \
						    &value_),                                      \
			  STALL_STEP_CALLER);                                                      \
		CHECK_INT(value_, expected);                                                       \
	} while (0)
#define CHECK_FAILS(step, ...)                                                                     \
	do {                                                                                       \
		uint64_t value_ = 0;                                                               \
		CHECK_INT(stall_expression_evaluate(CODE(__VA_ARGS__), &regs, NULL, &memory,       \
						    &value_),                                      \
			  step);                                                                   \
	} while (0)

// What GNU ld writes for the procedure linkage table: CFA = rsp + 8 + ((rip & 15) >= 11) * 8.
static void test_plt_expression(void)
{
	for (uint64_t pc = 0x401020; pc < 0x401030; pc++) {
		set_reg(STALL_REG_SP, 0x7000);
		set_reg(STALL_REG_PC, pc);
		CHECK_VALUE(0x7008 + ((pc & 15) >= 11 ? 8 : 0), DW_OP_breg0 + 7, 8,
			    DW_OP_breg0 + 16, 0, DW_OP_lit0 + 15, DW_OP_and, DW_OP_lit0 + 11,
			    DW_OP_ge, DW_OP_lit0 + 3, DW_OP_shl, DW_OP_plus);
	}
}

#define MINIMUM 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01 // 1 << 63

static void test_constants(void)
{
	CHECK_VALUE(200, DW_OP_const1u, 200);
	CHECK_VALUE(-56, DW_OP_const1s, 200);
	CHECK_VALUE(0xfffe, DW_OP_const2u, 0xfe, 0xff);
	CHECK_VALUE(-2, DW_OP_const2s, 0xfe, 0xff);
	CHECK_VALUE(0xfffffffe, DW_OP_const4u, 0xfe, 0xff, 0xff, 0xff);
	CHECK_VALUE(-2, DW_OP_const4s, 0xfe, 0xff, 0xff, 0xff);
	CHECK_VALUE(0x0807060504030201, DW_OP_const8u, 1, 2, 3, 4, 5, 6, 7, 8);
	CHECK_VALUE(-2, DW_OP_const8s, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff);
	CHECK_VALUE(624485, DW_OP_constu, 0xe5, 0x8e, 0x26);
	CHECK_VALUE(-123456, DW_OP_consts, 0xc0, 0xbb, 0x78);
	CHECK_VALUE(INT64_MIN, DW_OP_constu, MINIMUM);
	CHECK_VALUE(31, DW_OP_lit31);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_const4u, 1, 2, 3);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_constu, 0x80);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_plus_uconst);
}

static void test_arithmetic(void)
{
	CHECK_VALUE(INT64_MIN, DW_OP_constu, MINIMUM, DW_OP_const1s, 0xff, DW_OP_div);
	CHECK_VALUE(-3, DW_OP_const1s, 0xfa, DW_OP_lit0 + 2, DW_OP_div);
	CHECK_VALUE(2, DW_OP_lit0 + 17, DW_OP_lit0 + 5, DW_OP_mod);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0 + 1, DW_OP_lit0, DW_OP_div);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0 + 1, DW_OP_lit0, DW_OP_mod);
	CHECK_VALUE(0, DW_OP_lit0 + 1, DW_OP_const1u, 64, DW_OP_shl);
	CHECK_VALUE(0, DW_OP_lit0 + 1, DW_OP_const1u, 64, DW_OP_shr);
	CHECK_VALUE(-1, DW_OP_const1s, 0xff, DW_OP_const1u, 200, DW_OP_shra);
	CHECK_VALUE(1, DW_OP_const1s, 0xff, DW_OP_lit0, DW_OP_lt);
	CHECK_VALUE(0, DW_OP_const1s, 0xff, DW_OP_lit0, DW_OP_gt);
	CHECK_VALUE(1, DW_OP_lit0, DW_OP_lit0, DW_OP_le);
	CHECK_VALUE(0, DW_OP_lit0, DW_OP_lit0, DW_OP_ne);
	CHECK_VALUE(1, DW_OP_lit0, DW_OP_lit0, DW_OP_eq);
	CHECK_VALUE(5, DW_OP_const1s, 0xfb, DW_OP_abs);
	CHECK_VALUE(-5, DW_OP_lit0 + 5, DW_OP_neg);
	CHECK_VALUE(-6, DW_OP_lit0 + 5, DW_OP_not);
	CHECK_VALUE(7, DW_OP_lit0 + 5, DW_OP_lit0 + 3, DW_OP_or);
	CHECK_VALUE(6, DW_OP_lit0 + 5, DW_OP_lit0 + 3, DW_OP_xor);
	CHECK_VALUE(15, DW_OP_lit0 + 5, DW_OP_lit0 + 3, DW_OP_mul);
	CHECK_VALUE(133, DW_OP_lit0 + 5, DW_OP_plus_uconst, 0x80, 1);
	// [1 2 3] -> [3 1 2]; 3 - 1 + 2 by two operations from the top: 1 - 2 = -1.
	CHECK_VALUE(-1, DW_OP_lit0 + 1, DW_OP_lit0 + 2, DW_OP_lit0 + 3, DW_OP_rot, DW_OP_minus);
	CHECK_VALUE(7, DW_OP_lit0 + 7, DW_OP_lit0 + 9, DW_OP_pick, 1);
	CHECK_VALUE(7, DW_OP_lit0 + 7, DW_OP_lit0 + 9, DW_OP_over);
	CHECK_VALUE(2, DW_OP_lit0 + 7, DW_OP_lit0 + 9, DW_OP_swap, DW_OP_minus);
	CHECK_VALUE(14, DW_OP_lit0 + 7, DW_OP_dup, DW_OP_plus);
	CHECK_VALUE(7, DW_OP_lit0 + 7, DW_OP_lit0 + 9, DW_OP_drop, DW_OP_nop);
}

static void test_memory_and_registers(void)
{
	uint64_t value;

	set_word(0x7010, 0x1122334455667788);
	CHECK_VALUE(0x1122334455667788, DW_OP_const2u, 0x10, 0x70, DW_OP_deref);
	CHECK_VALUE(0x7788, DW_OP_const2u, 0x10, 0x70, DW_OP_deref_size, 2);
	CHECK_FAILS(STALL_STEP_NO_MEMORY, DW_OP_lit0, DW_OP_deref);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_const2u, 0x10, 0x70, DW_OP_deref_size, 9);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_const2u, 0x10, 0x70, DW_OP_deref_size, 0);
	set_reg(STALL_REG_SP, 0x7000);
	CHECK_VALUE(0x6ff8, DW_OP_bregx, 7, 0x78);
	regs.valid &= ~(1U << STALL_REG_RBX);
	CHECK_FAILS(STALL_STEP_NO_REGISTERS, DW_OP_breg0 + 3, 0);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_bregx, 40, 0);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_breg31, 0);
	// Of a register's rule the CFA is on the stack already.
	CHECK_INT(stall_expression_evaluate(CODE(DW_OP_lit0 + 16, DW_OP_minus), &regs, &cfa,
					    &memory, &value),
		  STALL_STEP_CALLER);
	CHECK_INT(value, 0x7070);
}

static void test_hostile_expressions(void)
{
	uint8_t pushes[65];
	uint64_t value;

	CHECK_FAILS(STALL_STEP_BAD, DW_OP_plus);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_plus);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_over);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_drop);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_pick, 200);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_rot);
	// Jumps to itself, forever; into nowhere; over the rest; to the end.
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_skip, 0xfd, 0xff);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_skip, 0xe8, 0x03, DW_OP_lit0);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_skip, 0xfb, 0xff);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_skip, 0);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_bra, 0, 0);
	CHECK_VALUE(4, DW_OP_lit0 + 4, DW_OP_skip, 1, 0, DW_OP_lit0 + 5);
	CHECK_VALUE(4, DW_OP_lit0 + 4, DW_OP_lit0 + 1, DW_OP_bra, 1, 0, DW_OP_lit0 + 5, DW_OP_nop);
	CHECK_VALUE(5, DW_OP_lit0 + 4, DW_OP_lit0, DW_OP_bra, 1, 0, DW_OP_lit0 + 5, DW_OP_nop);
	// DW_OP_addr, fbreg, call4, call_frame_cfa, stack_value, xderef: not in unwind information.
	CHECK_FAILS(STALL_STEP_BAD, 0x03, 0, 0, 0, 0, 0, 0, 0, 0);
	CHECK_FAILS(STALL_STEP_BAD, 0x91, 0);
	CHECK_FAILS(STALL_STEP_BAD, 0x99, 0, 0, 0, 0);
	CHECK_FAILS(STALL_STEP_BAD, 0x9c);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, 0x9f);
	CHECK_FAILS(STALL_STEP_BAD, DW_OP_lit0, DW_OP_lit0, 0x18);
	memset(pushes, DW_OP_lit0 + 1, sizeof(pushes));
	for (size_t count = 0; count <= 65; count++)
		CHECK_INT(stall_expression_evaluate(pushes, count, &regs, NULL, &memory, &value),
			  count >= 1 && count <= 64 ? STALL_STEP_CALLER : STALL_STEP_BAD);
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

static void test_step_by_expressions(void)
{
	static const uint8_t where[] = {DW_OP_breg0 + 7, 0x18},
			     back[] = {DW_OP_lit0 + 8, DW_OP_minus};
	struct stall_regs caller;

	set_usual_row();
	start_at(0x7000);
	set_word(0x7010, 0x402000);
	row->cfa_expression = where;
	row->cfa_size = sizeof(where);
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_CALLER);
	CHECK_INT(caller.value[STALL_REG_PC], 0x402000);
	CHECK_INT(caller.value[STALL_REG_SP], 0x7018);
	row->rules[0] = (struct stall_rule){.kind = STALL_RULE_EXPRESSION,
					    .reg = STALL_REG_PC,
					    .size = sizeof(back),
					    .expression = back};
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_CALLER);
	CHECK_INT(caller.value[STALL_REG_PC], 0x402000);
	row->rules[0].kind = STALL_RULE_VAL_EXPRESSION;
	CHECK_INT(stall_unwind_step(row, &regs, &memory, &caller), STALL_STEP_CALLER);
	CHECK_INT(caller.value[STALL_REG_PC], 0x7010);
	row->cfa_size = 1; // torn
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
	test_constants();
	test_arithmetic();
	test_memory_and_registers();
	test_hostile_expressions();
	test_step();
	test_step_by_expressions();
	test_growth();
	return check_done();
}
