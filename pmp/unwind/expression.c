// SPDX-License-Identifier: Apache-2.0
#include "unwind/expression.h"

#include <dwarf.h>
#include <stdlib.h>

#include "base/cleanup.h"

#define MAX_OPS 1024
#define MAX_STEPS 4096 // jumps can make loops
#define MAX_DEPTH 64

static bool is_supported(uint8_t atom)
{
	switch (atom) {
	case DW_OP_deref:
	case DW_OP_deref_size:
	case DW_OP_const1u ... DW_OP_plus_uconst:
	case DW_OP_shl ... DW_OP_skip: // shl shr shra xor bra eq ge gt le lt ne skip
	case DW_OP_lit0 ... DW_OP_lit31:
	case DW_OP_breg0 ... DW_OP_breg31:
	case DW_OP_bregx:
	case DW_OP_nop:
	case DW_OP_call_frame_cfa:
		return atom != DW_OP_xderef;
	default:
		return false;
	}
}

// A jump counts from the operation after it, which takes three bytes (DWARF 5, 2.5.1.5).
static bool resolve_jump(const Dwarf_Op *ops, size_t count, size_t at, uint32_t *ret)
{
	uint64_t target = ops[at].offset + 3 + ops[at].number;

	// From the end: an operation that libdw put in front has offset 0 too.
	for (size_t i = count; i-- > 0;) {
		if (ops[i].offset == target) {
			*ret = (uint32_t)i;
			return true;
		}
	}
	*ret = (uint32_t)count;
	return target > ops[count - 1].offset && target <= ops[count - 1].offset + 9;
}

struct stall_error *stall_expression_create(const Dwarf_Op *ops, size_t count,
					    struct stall_expression **ret)
{
	bool is_value = count && ops[count - 1].atom == DW_OP_stack_value;

	if (count == 0 || count > MAX_OPS)
		return stall_error_create(STALL_ERROR_LIMIT, "expression of %zu operations", count);
	_cleanup_free_ struct stall_expression *expression =
		malloc(sizeof(*expression) + count * sizeof(expression->ops[0]));
	if (!expression)
		return &stall_enomem;
	expression->is_value = is_value;
	expression->count = (uint32_t)(count - is_value);
	for (size_t i = 0; i < expression->count; i++) {
		struct stall_expression_op *op = &expression->ops[i];

		*op = (struct stall_expression_op){
			.atom = ops[i].atom,
			.number = ops[i].number,
			.number2 = ops[i].number2,
		};
		bool jumps = op->atom == DW_OP_bra || op->atom == DW_OP_skip;
		if (!is_supported(op->atom) || (jumps && !resolve_jump(ops, count, i, &op->jump)))
			return stall_error_create(STALL_ERROR_FORMAT, "expression operation 0x%x",
						  op->atom);
	}
	*ret = no_cleanup_ptr(expression);
	return NULL;
}

struct machine {
	uint64_t stack[MAX_DEPTH];
	size_t depth;
	const struct stall_regs *regs;
	const uint64_t *cfa;
	const struct stall_stack_memory *memory;
};

static enum stall_step push(struct machine *m, uint64_t value)
{
	if (m->depth == MAX_DEPTH)
		return STALL_STEP_BAD;
	m->stack[m->depth++] = value;
	return STALL_STEP_CALLER;
}

static enum stall_step push_register(struct machine *m, uint64_t reg, uint64_t offset)
{
	if (reg >= STALL_REGS)
		return STALL_STEP_BAD;
	if (!(m->regs->valid & (1U << reg)))
		return STALL_STEP_NO_REGISTERS;
	return push(m, m->regs->value[reg] + offset);
}

static enum stall_step dereference(struct machine *m, uint64_t size)
{
	uint64_t word;

	if (size == 0 || size > 8)
		return STALL_STEP_BAD;
	if (!stall_stack_read(m->memory, m->stack[m->depth - 1], &word))
		return STALL_STEP_NO_MEMORY;
	m->stack[m->depth - 1] = size == 8 ? word : word & ((1ULL << (8 * size)) - 1);
	return STALL_STEP_CALLER;
}

static enum stall_step binary(struct machine *m, uint8_t atom)
{
	uint64_t b = m->stack[--m->depth], *a = &m->stack[m->depth - 1];
	int64_t sa = (int64_t)*a, sb = (int64_t)b;

	switch (atom) {
	case DW_OP_and:
		*a &= b;
		break;
	case DW_OP_or:
		*a |= b;
		break;
	case DW_OP_xor:
		*a ^= b;
		break;
	case DW_OP_plus:
		*a += b;
		break;
	case DW_OP_minus:
		*a -= b;
		break;
	case DW_OP_mul:
		*a *= b;
		break;
	case DW_OP_div: // signed; INT64_MIN / -1 traps
		if (b == 0)
			return STALL_STEP_BAD;
		*a = sb == -1 ? 0 - *a : (uint64_t)(sa / sb);
		break;
	case DW_OP_mod:
		if (b == 0)
			return STALL_STEP_BAD;
		*a %= b;
		break;
	case DW_OP_shl:
		*a = b < 64 ? *a << b : 0;
		break;
	case DW_OP_shr:
		*a = b < 64 ? *a >> b : 0;
		break;
	case DW_OP_shra:
		*a = (uint64_t)(sa >> (b < 64 ? b : 63));
		break;
	case DW_OP_eq:
		*a = sa == sb;
		break;
	case DW_OP_ne:
		*a = sa != sb;
		break;
	case DW_OP_ge:
		*a = sa >= sb;
		break;
	case DW_OP_gt:
		*a = sa > sb;
		break;
	case DW_OP_le:
		*a = sa <= sb;
		break;
	case DW_OP_lt:
		*a = sa < sb;
		break;
	default:
		return STALL_STEP_BAD;
	}
	return STALL_STEP_CALLER;
}

static void swap(uint64_t *a, uint64_t *b)
{
	uint64_t t = *a;

	*a = *b;
	*b = t;
}

static enum stall_step shuffle(struct machine *m, const struct stall_expression_op *op)
{
	uint64_t *top = &m->stack[m->depth - 1];

	switch (op->atom) {
	case DW_OP_dup:
		return push(m, *top);
	case DW_OP_drop:
		m->depth--;
		return STALL_STEP_CALLER;
	case DW_OP_over:
		return push(m, top[-1]);
	case DW_OP_pick:
		return op->number < m->depth ? push(m, m->stack[m->depth - 1 - op->number])
					     : STALL_STEP_BAD;
	case DW_OP_swap:
		swap(top, top - 1);
		return STALL_STEP_CALLER;
	default: // DW_OP_rot: the third becomes the second, the second the top
		swap(top, top - 1);
		swap(top - 1, top - 2);
		return STALL_STEP_CALLER;
	}
}

static size_t operands(uint8_t atom)
{
	switch (atom) {
	case DW_OP_rot:
		return 3;
	case DW_OP_over:
	case DW_OP_swap:
	case DW_OP_and:
	case DW_OP_div ... DW_OP_mul:
	case DW_OP_or:
	case DW_OP_plus:
	case DW_OP_shl ... DW_OP_xor:
	case DW_OP_eq ... DW_OP_ne:
		return 2;
	case DW_OP_deref:
	case DW_OP_deref_size:
	case DW_OP_dup:
	case DW_OP_drop:
	case DW_OP_pick:
	case DW_OP_abs:
	case DW_OP_neg:
	case DW_OP_not:
	case DW_OP_plus_uconst:
	case DW_OP_bra:
		return 1;
	default:
		return 0;
	}
}

static enum stall_step execute(struct machine *m, const struct stall_expression_op *op)
{
	uint64_t *top = &m->stack[m->depth ? m->depth - 1 : 0];

	switch (op->atom) {
	case DW_OP_nop:
		return STALL_STEP_CALLER;
	case DW_OP_lit0 ... DW_OP_lit31:
		return push(m, op->atom - DW_OP_lit0);
	case DW_OP_const1u ... DW_OP_consts:
		return push(m, op->number);
	case DW_OP_breg0 ... DW_OP_breg31:
		return push_register(m, op->atom - DW_OP_breg0, op->number);
	case DW_OP_bregx:
		return push_register(m, op->number, op->number2);
	case DW_OP_call_frame_cfa:
		return m->cfa ? push(m, *m->cfa) : STALL_STEP_BAD;
	case DW_OP_deref:
		return dereference(m, 8);
	case DW_OP_deref_size:
		return dereference(m, op->number);
	case DW_OP_dup ... DW_OP_rot:
		return shuffle(m, op);
	case DW_OP_abs:
		*top = (int64_t)*top < 0 ? 0 - *top : *top;
		return STALL_STEP_CALLER;
	case DW_OP_neg:
		*top = 0 - *top;
		return STALL_STEP_CALLER;
	case DW_OP_not:
		*top = ~*top;
		return STALL_STEP_CALLER;
	case DW_OP_plus_uconst:
		*top += op->number;
		return STALL_STEP_CALLER;
	default:
		return binary(m, op->atom);
	}
}

enum stall_step stall_expression_evaluate(const struct stall_expression *expression,
					  const struct stall_regs *regs, const uint64_t *cfa,
					  const struct stall_stack_memory *memory, uint64_t *ret)
{
	struct machine m = {.regs = regs, .cfa = cfa, .memory = memory};
	uint32_t at = 0;

	for (size_t steps = 0; at < expression->count; steps++) {
		const struct stall_expression_op *op = &expression->ops[at++];

		if (steps == MAX_STEPS || m.depth < operands(op->atom))
			return STALL_STEP_BAD;
		if (op->atom == DW_OP_skip || (op->atom == DW_OP_bra && m.stack[--m.depth])) {
			at = op->jump;
			continue;
		}
		if (op->atom == DW_OP_bra)
			continue;
		enum stall_step step = execute(&m, op);
		if (step != STALL_STEP_CALLER)
			return step;
	}
	if (m.depth == 0)
		return STALL_STEP_BAD;
	*ret = m.stack[m.depth - 1];
	return STALL_STEP_CALLER;
}
