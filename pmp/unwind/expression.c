// SPDX-License-Identifier: Apache-2.0
#include "unwind/expression.h"

#include "unwind/bytes.h"
#include "unwind/dwarf_codes.h"

#define MAX_STEPS 4096 // jumps can make loops
#define MAX_DEPTH 64

struct machine {
	const uint8_t *start;
	struct stall_bytes code;
	uint64_t stack[MAX_DEPTH];
	size_t depth;
	const struct stall_regs *regs;
	const struct stall_stack_memory *memory;
};

static enum stall_step push(struct machine *m, uint64_t value)
{
	if (m->depth == MAX_DEPTH)
		return STALL_STEP_BAD;
	m->stack[m->depth++] = value;
	return STALL_STEP_CALLER;
}

static enum stall_step push_register(struct machine *m, uint64_t reg)
{
	uint64_t offset = stall_bytes_sleb(&m->code);

	if (reg >= STALL_REGS)
		return STALL_STEP_BAD;
	if (!(m->regs->valid & (1U << reg)))
		return STALL_STEP_NO_REGISTERS;
	return push(m, m->regs->value[reg] + offset);
}

// DW_OP_const1u ... DW_OP_const8s: unsigned, signed, and twice the size.
static uint64_t constant(struct machine *m, uint8_t op)
{
	unsigned int size = 1U << ((op - DW_OP_const1u) / 2);

	return (op - DW_OP_const1u) % 2 ? stall_bytes_signed(&m->code, size)
					: stall_bytes_number(&m->code, size);
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

static enum stall_step divide(uint8_t op, uint64_t *a, uint64_t b)
{
	if (b == 0)
		return STALL_STEP_BAD;
	if (op == DW_OP_mod)
		*a %= b;
	else // signed; INT64_MIN / -1 traps
		*a = b == UINT64_MAX ? 0 - *a : (uint64_t)((int64_t)*a / (int64_t)b);
	return STALL_STEP_CALLER;
}

static enum stall_step combine(uint8_t op, uint64_t *a, uint64_t b)
{
	int64_t sa = (int64_t)*a, sb = (int64_t)b;

	switch (op) {
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
	default: // DW_OP_div, DW_OP_mod
		return divide(op, a, b);
	}
	return STALL_STEP_CALLER;
}

static void swap(uint64_t *a, uint64_t *b)
{
	uint64_t t = *a;

	*a = *b;
	*b = t;
}

static enum stall_step shuffle(struct machine *m, uint8_t op)
{
	uint64_t *top = &m->stack[m->depth - 1], index;

	switch (op) {
	case DW_OP_dup:
		return push(m, *top);
	case DW_OP_drop:
		m->depth--;
		return STALL_STEP_CALLER;
	case DW_OP_over:
		return push(m, top[-1]);
	case DW_OP_pick:
		index = stall_bytes_number(&m->code, 1);
		return index < m->depth ? push(m, m->stack[m->depth - 1 - index]) : STALL_STEP_BAD;
	case DW_OP_swap:
		swap(top, top - 1);
		return STALL_STEP_CALLER;
	default: // DW_OP_rot: the third becomes the second, the second the top
		swap(top, top - 1);
		swap(top - 1, top - 2);
		return STALL_STEP_CALLER;
	}
}

// Counts from the next operation (DWARF 5, 2.5.1.5).
static enum stall_step jump(struct machine *m, bool is_taken)
{
	int64_t distance = (int64_t)stall_bytes_signed(&m->code, 2);
	int64_t target = m->code.at - m->start + distance;

	if (!is_taken)
		return STALL_STEP_CALLER;
	if (target < 0 || target > m->code.end - m->start)
		return STALL_STEP_BAD;
	m->code.at = m->start + target;
	return STALL_STEP_CALLER;
}

// How many values an operation takes from the stack.
static size_t operands(uint8_t op)
{
	switch (op) {
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

// Operations of no operand or one. DW_OP_addr is refused: its address would need relocation.
static enum stall_step execute(struct machine *m, uint8_t op)
{
	uint64_t *top = &m->stack[m->depth ? m->depth - 1 : 0];

	switch (op) {
	case DW_OP_nop:
		return STALL_STEP_CALLER;
	case DW_OP_lit0 ... DW_OP_lit31:
		return push(m, op - DW_OP_lit0);
	case DW_OP_const1u ... DW_OP_const8s:
		return push(m, constant(m, op));
	case DW_OP_constu:
		return push(m, stall_bytes_uleb(&m->code));
	case DW_OP_consts:
		return push(m, stall_bytes_sleb(&m->code));
	case DW_OP_breg0 ... DW_OP_breg31:
		return push_register(m, op - DW_OP_breg0);
	case DW_OP_bregx:
		return push_register(m, stall_bytes_uleb(&m->code));
	case DW_OP_deref:
		return dereference(m, 8);
	case DW_OP_deref_size:
		return dereference(m, stall_bytes_number(&m->code, 1));
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
		*top += stall_bytes_uleb(&m->code);
		return STALL_STEP_CALLER;
	case DW_OP_skip:
		return jump(m, true);
	case DW_OP_bra:
		return jump(m, m->stack[--m->depth] != 0);
	default:
		return STALL_STEP_BAD;
	}
}

enum stall_step stall_expression_evaluate(const uint8_t *code, size_t size,
					  const struct stall_regs *regs, const uint64_t *cfa,
					  const struct stall_stack_memory *memory, uint64_t *ret)
{
	struct machine m = {.start = code,
			    .code = stall_bytes_of(code, size),
			    .regs = regs,
			    .memory = memory};

	if (cfa)
		push(&m, *cfa);
	for (size_t steps = 0; stall_bytes_left(&m.code); steps++) {
		uint8_t op = (uint8_t)stall_bytes_number(&m.code, 1);
		size_t needed = operands(op);
		enum stall_step step = STALL_STEP_BAD;

		if (steps == MAX_STEPS || m.depth < needed)
			return STALL_STEP_BAD;
		if (needed == 2 && op != DW_OP_over && op != DW_OP_swap) {
			m.depth--;
			step = combine(op, &m.stack[m.depth - 1], m.stack[m.depth]);
		} else {
			step = execute(&m, op);
		}
		if (m.code.torn)
			return STALL_STEP_BAD;
		if (step != STALL_STEP_CALLER)
			return step;
	}
	if (m.depth == 0)
		return STALL_STEP_BAD;
	*ret = m.stack[m.depth - 1];
	return STALL_STEP_CALLER;
}
