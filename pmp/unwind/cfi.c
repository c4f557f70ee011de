// SPDX-License-Identifier: Apache-2.0
#include "unwind/cfi.h"

#include <dwarf.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "unwind/cfi_section.h"
#include "unwind/expression.h"

// What a row owns; freed with the file.
struct block {
	struct block *next;
	_Alignas(16) uint8_t data[];
};

struct stall_cfi {
	struct stall_cfi_section *eh_frame;
	// Read when it is first asked for.
	const struct stall_elf *debug_frame_file; // NULL: there is none
	struct stall_cfi_section *debug_frame;
	bool tried_debug_frame;
	struct block *blocks;
};

static bool has_debug_frame(const struct stall_elf *elf)
{
	const Elf64_Shdr *section = elf ? stall_elf_section(elf, ".debug_frame") : NULL;

	return section && section->sh_type != SHT_NOBITS && section->sh_size;
}

struct stall_error *stall_cfi_create(const struct stall_elf *elf, const struct stall_elf *debug,
				     struct stall_cfi **ret)
{
	struct stall_cfi *cfi = calloc(1, sizeof(*cfi));

	if (!cfi)
		return &stall_enomem;
	// What cannot be read is as good as none.
	stall_error_destroy(stall_cfi_section_open(elf, true, &cfi->eh_frame));
	cfi->debug_frame_file = has_debug_frame(elf) ? elf : has_debug_frame(debug) ? debug : NULL;
	*ret = cfi;
	return NULL;
}

void stall_cfi_destroy(struct stall_cfi *cfi)
{
	if (!cfi)
		return;
	stall_cfi_section_destroy(cfi->debug_frame);
	stall_cfi_section_destroy(cfi->eh_frame);
	for (struct block *block = cfi->blocks, *next; block; block = next) {
		next = block->next;
		free(block);
	}
	free(cfi);
}

const char *stall_cfi_source(const struct stall_cfi *cfi)
{
	if (cfi->eh_frame)
		return cfi->debug_frame_file ? "both" : ".eh_frame";
	return cfi->debug_frame_file ? ".debug_frame" : "none";
}

static Dwarf_Frame *find_frame(struct stall_cfi *cfi, uint64_t address, bool *ret_bad)
{
	Dwarf_Frame *frame = NULL;

	if (cfi->eh_frame)
		frame = stall_cfi_section_frame(cfi->eh_frame, address, ret_bad);
	if (frame || !cfi->debug_frame_file)
		return frame;
	if (!cfi->tried_debug_frame) {
		cfi->tried_debug_frame = true;
		stall_error_destroy(
			stall_cfi_section_open(cfi->debug_frame_file, false, &cfi->debug_frame));
	}
	return cfi->debug_frame ? stall_cfi_section_frame(cfi->debug_frame, address, ret_bad)
				: NULL;
}

static const struct stall_expression *keep_expression(struct stall_cfi *cfi, const Dwarf_Op *ops,
						      size_t count)
{
	_cleanup_free_ struct stall_expression *expression = NULL;
	struct stall_error *err = stall_expression_create(ops, count, &expression);

	if (err) {
		stall_error_destroy(err);
		return NULL;
	}
	size_t size = sizeof(*expression) + expression->count * sizeof(expression->ops[0]);
	struct block *block = malloc(sizeof(*block) + size);
	if (!block)
		return NULL;
	memcpy(block->data, expression, size);
	block->next = cfi->blocks;
	cfi->blocks = block;
	return (const struct stall_expression *)block->data;
}

static bool decode_cfa(struct stall_cfi *cfi, Dwarf_Frame *frame, struct stall_row *row)
{
	Dwarf_Op *ops;
	size_t count;

	if (dwarf_frame_cfa(frame, &ops, &count) != 0 || count == 0)
		return false;
	if (count == 1 && ops->atom == DW_OP_bregx && ops->number < STALL_REGS) {
		row->cfa_reg = (uint8_t)ops->number;
		row->cfa_offset = (int64_t)ops->number2;
		return true;
	}
	if (count == 1 && ops->atom >= DW_OP_breg0 && ops->atom < DW_OP_breg0 + STALL_REGS) {
		row->cfa_reg = ops->atom - DW_OP_breg0;
		row->cfa_offset = (int64_t)ops->number;
		return true;
	}
	row->cfa_is_expression = true;
	row->cfa_expression = keep_expression(cfi, ops, count);
	return row->cfa_expression;
}

// libdw says "at CFA + N" and "is CFA + N" as expressions.
static bool decode_cfa_relative(const Dwarf_Op *ops, size_t count, struct stall_rule *rule)
{
	bool is_value = ops[count - 1].atom == DW_OP_stack_value;
	size_t n = count - is_value;

	if (ops[0].atom != DW_OP_call_frame_cfa || n > 2 ||
	    (n == 2 && ops[1].atom != DW_OP_plus_uconst))
		return false;
	rule->kind = is_value ? STALL_RULE_VAL_OFFSET : STALL_RULE_OFFSET;
	rule->offset = n == 2 ? (int64_t)ops[1].number : 0;
	return true;
}

// False where what the file says about the register cannot be understood.
static bool decode_rule(struct stall_cfi *cfi, Dwarf_Frame *frame, uint8_t reg,
			struct stall_rule *rule)
{
	Dwarf_Op memory[3], *ops;
	size_t count;

	*rule = (struct stall_rule){.reg = reg, .kind = STALL_RULE_UNDEFINED};
	if (dwarf_frame_register(frame, reg, memory, &ops, &count) != 0)
		return false;
	if (count == 0) {
		if (ops == NULL)
			rule->kind = STALL_RULE_SAME;
		return true;
	}
	if (decode_cfa_relative(ops, count, rule))
		return true;
	if (count == 1 && ops->atom == DW_OP_regx && ops->number < STALL_REGS) {
		rule->kind = STALL_RULE_REGISTER;
		rule->other = (uint8_t)ops->number;
		return true;
	}
	rule->kind = STALL_RULE_EXPRESSION;
	rule->expression = keep_expression(cfi, ops, count);
	return rule->expression;
}

// Callee-saved registers (System V ABI, AMD64 supplement, 3.2.1).
static bool survives_calls(uint8_t reg)
{
	return reg == STALL_REG_RBX || reg == STALL_REG_RBP || (reg >= 12 && reg <= 15);
}

// Where nothing is said about a register the ABI decides. libdw's table of it has rax for rbx
// (elfutils 0.188, backends/x86_64_cfi.c), which loses frames whose CFA stands on rbx.
static void apply_abi(struct stall_rule *rule)
{
	if (rule->kind == STALL_RULE_UNDEFINED && survives_calls(rule->reg))
		rule->kind = STALL_RULE_SAME;
	else if (rule->kind == STALL_RULE_SAME && !survives_calls(rule->reg))
		rule->kind = STALL_RULE_UNDEFINED;
}

static bool decode(struct stall_cfi *cfi, Dwarf_Frame *frame, struct stall_row *row,
		   struct stall_rule *rules)
{
	int ra = dwarf_frame_info(frame, NULL, NULL, &row->signal);

	if (ra < 0 || ra >= STALL_REGS || !decode_cfa(cfi, frame, row))
		return false;
	for (uint8_t reg = 0; reg < STALL_REG_PC; reg++) {
		struct stall_rule *rule = &rules[row->rule_count];

		// Without a rule the register is unknown in the caller.
		if (!decode_rule(cfi, frame, reg, rule))
			continue;
		apply_abi(rule);
		row->rule_count += rule->kind != STALL_RULE_UNDEFINED;
	}
	struct stall_rule *rule = &rules[row->rule_count++];
	if (!decode_rule(cfi, frame, (uint8_t)ra, rule))
		return false;
	// "The same" of the PC itself would not move.
	if (rule->kind == STALL_RULE_SAME && ra == STALL_REG_PC)
		return false;
	if (rule->kind == STALL_RULE_SAME)
		*rule = (struct stall_rule){.kind = STALL_RULE_REGISTER, .other = (uint8_t)ra};
	rule->reg = STALL_REG_PC;
	return true;
}

const struct stall_row *stall_cfi_row(struct stall_cfi *cfi, uint64_t address, bool *ret_bad)
{
	bool bad = false;
	_cleanup_free_ Dwarf_Frame *frame = find_frame(cfi, address, &bad);
	struct stall_rule rules[STALL_REGS];
	struct stall_row row = {};

	*ret_bad = frame ? !decode(cfi, frame, &row, rules) : bad;
	if (!frame || *ret_bad)
		return NULL;
	size_t size = sizeof(row) + row.rule_count * sizeof(rules[0]);
	struct block *block = malloc(sizeof(*block) + size);
	if (!block)
		return NULL;
	block->next = cfi->blocks;
	cfi->blocks = block;
	struct stall_row *kept = (struct stall_row *)block->data;
	*kept = row;
	memcpy(kept->rules, rules, row.rule_count * sizeof(rules[0]));
	return kept;
}
