// SPDX-License-Identifier: Apache-2.0
#include "unwind/cfi.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/lengths.h"
#include "snapshot/snapshot.h"
#include "unwind/cfi_section.h"
#include "unwind/dwarf_codes.h"

#define MAX_PROGRAM (64U << 10) // MySQL 9.7 has one of 1,408 bytes
#define MAX_REMEMBERED 64

// A row, freed with the file.
struct kept {
	struct kept *next;
	struct stall_row row;
};

struct stall_cfi {
	struct stall_cfi_section *eh_frame;
	// Read when it is first needed.
	const struct stall_elf *debug_frame_file; // NULL: there is none
	bool is_debug_frame_own;		  // it is of the file itself
	struct stall_cfi_section *debug_frame;
	bool tried_debug_frame;
	struct kept *rows;
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
	// A section that cannot be read counts as missing.
	stall_error_destroy(stall_cfi_section_open(elf, true, &cfi->eh_frame));
	cfi->is_debug_frame_own = has_debug_frame(elf);
	cfi->debug_frame_file = cfi->is_debug_frame_own	 ? elf
				: has_debug_frame(debug) ? debug
							 : NULL;
	*ret = cfi;
	return NULL;
}

void stall_cfi_destroy(struct stall_cfi *cfi)
{
	if (!cfi)
		return;
	stall_cfi_section_destroy(cfi->debug_frame);
	stall_cfi_section_destroy(cfi->eh_frame);
	for (struct kept *kept = cfi->rows, *next; kept; kept = next) {
		next = kept->next;
		free(kept);
	}
	free(cfi);
}

const char *stall_cfi_source(const struct stall_cfi *cfi)
{
	if (cfi->eh_frame)
		return cfi->debug_frame_file ? "both" : ".eh_frame";
	return cfi->debug_frame_file ? ".debug_frame" : "none";
}

// NULL: no section covers the address.
static const struct stall_cfi_section *find_fde(struct stall_cfi *cfi, uint64_t address,
						struct stall_cfi_fde *ret, bool *ret_bad)
{
	if (cfi->eh_frame && stall_cfi_section_find(cfi->eh_frame, address, ret, ret_bad))
		return cfi->eh_frame;
	if (cfi->debug_frame_file && !cfi->tried_debug_frame) {
		cfi->tried_debug_frame = true;
		stall_error_destroy(
			stall_cfi_section_open(cfi->debug_frame_file, false, &cfi->debug_frame));
	}
	if (cfi->debug_frame && stall_cfi_section_find(cfi->debug_frame, address, ret, ret_bad))
		return cfi->debug_frame;
	return NULL;
}

bool stall_cfi_starts_at(struct stall_cfi *cfi, uint64_t address)
{
	struct stall_cfi_fde fde;
	bool bad = false;
	const struct stall_cfi_section *section = find_fde(cfi, address, &fde, &bad);

	// The entry of a signal trampoline begins a byte before its code.
	return section && (section == cfi->eh_frame || cfi->is_debug_frame_own) &&
	       fde.start == address && !fde.cie.signal;
}

enum cfa_kind { CFA_UNKNOWN, CFA_REGISTER, CFA_EXPRESSION };

struct state {
	enum cfa_kind cfa;
	uint64_t cfa_reg;
	uint64_t cfa_offset; // in two's complement
	const uint8_t *cfa_expression;
	uint32_t cfa_size;
	struct stall_rule rules[STALL_REGS];
};

struct machine {
	const struct stall_cfi_section *section;
	const struct stall_cfi_fde *fde;
	bool in_cie;
	uint64_t location; // the state is valid from here on
	struct state state, initial;
	struct state remembered[MAX_REMEMBERED];
	size_t depth;
};

struct instruction {
	uint8_t code;
	uint64_t reg;
	uint64_t value; // the other operand; of a block, its length
	const uint8_t *block;
};

// For each instruction a letter for each operand: r: a register; n, s: a number, unsigned or
// signed; b: a block; p: a pointer; a digit: that many bytes. NULL: it is of another processor, or
// of none.
static const char *const operands[0x40] = {
	[DW_CFA_nop] = "",
	[DW_CFA_set_loc] = "p",
	[DW_CFA_advance_loc1] = "1",
	[DW_CFA_advance_loc2] = "2",
	[DW_CFA_advance_loc4] = "4",
	[DW_CFA_offset_extended] = "rn",
	[DW_CFA_restore_extended] = "r",
	[DW_CFA_undefined] = "r",
	[DW_CFA_same_value] = "r",
	[DW_CFA_register] = "rn",
	[DW_CFA_remember_state] = "",
	[DW_CFA_restore_state] = "",
	[DW_CFA_def_cfa] = "rn",
	[DW_CFA_def_cfa_register] = "r",
	[DW_CFA_def_cfa_offset] = "n",
	[DW_CFA_def_cfa_expression] = "b",
	[DW_CFA_expression] = "rb",
	[DW_CFA_offset_extended_sf] = "rs",
	[DW_CFA_def_cfa_sf] = "rs",
	[DW_CFA_def_cfa_offset_sf] = "s",
	[DW_CFA_val_offset] = "rn",
	[DW_CFA_val_offset_sf] = "rs",
	[DW_CFA_val_expression] = "rb",
	[DW_CFA_MIPS_advance_loc8] = "8",
	[DW_CFA_GNU_args_size] = "n",
	[DW_CFA_GNU_negative_offset_extended] = "rn",
};

static bool read_operands(const struct machine *m, const char *letters, struct stall_bytes *program,
			  struct instruction *ret)
{
	for (; *letters; letters++) {
		if (*letters == 'r')
			ret->reg = stall_bytes_uleb(program);
		else if (*letters == 's')
			ret->value = stall_bytes_sleb(program);
		else if (*letters == 'n' || *letters == 'b')
			ret->value = stall_bytes_uleb(program);
		else if (*letters == 'p')
			program->torn |=
				!stall_cfi_section_pointer(m->section, m->fde->cie.pointer_encoding,
							   program, &ret->value);
		else
			ret->value = stall_bytes_number(program, (unsigned int)(*letters - '0'));
		if (*letters == 'b')
			ret->block = stall_bytes_take(program, ret->value);
	}
	return !program->torn;
}

static bool read_instruction(const struct machine *m, struct stall_bytes *program,
			     struct instruction *ret)
{
	uint8_t byte = (uint8_t)stall_bytes_number(program, 1), low = byte & 0x3f;

	*ret = (struct instruction){.code = byte & 0xc0, .reg = low, .value = low};
	if (ret->code == 0) {
		ret->code = byte;
		return operands[byte] && read_operands(m, operands[byte], program, ret);
	}
	if (ret->code == DW_CFA_offset)
		ret->value = stall_bytes_uleb(program);
	return !program->torn;
}

// Rules of registers that are not tracked are dropped.
static bool set_rule(struct machine *m, const struct instruction *in, struct stall_rule rule)
{
	if (in->reg < STALL_REGS)
		m->state.rules[in->reg] = rule;
	return true;
}

static bool set_offset(struct machine *m, const struct instruction *in, enum stall_rule_kind kind,
		       uint64_t offset)
{
	return set_rule(m, in, (struct stall_rule){.kind = kind, .offset = (int64_t)offset});
}

static bool set_expression(struct machine *m, const struct instruction *in,
			   enum stall_rule_kind kind)
{
	return set_rule(m, in,
			(struct stall_rule){.kind = kind,
					    .size = (uint32_t)in->value,
					    .expression = in->block});
}

// Numbers past 255 name no register of any processor.
static bool set_register(struct machine *m, const struct instruction *in)
{
	return set_rule(m, in,
			(struct stall_rule){.kind = STALL_RULE_REGISTER,
					    .other = in->value < UINT8_MAX ? (uint8_t)in->value
									   : UINT8_MAX});
}

// The CIE's rule of the register. In a CIE itself there is nothing to restore.
static bool restore_rule(struct machine *m, const struct instruction *in)
{
	if (in->reg < STALL_REGS)
		m->state.rules[in->reg] = m->initial.rules[in->reg];
	return !m->in_cie;
}

static bool define_cfa(struct machine *m, uint64_t reg, uint64_t offset)
{
	m->state.cfa = CFA_REGISTER;
	m->state.cfa_reg = reg;
	m->state.cfa_offset = offset;
	return true;
}

static bool define_cfa_expression(struct machine *m, const struct instruction *in)
{
	m->state.cfa = CFA_EXPRESSION;
	m->state.cfa_expression = in->block;
	m->state.cfa_size = (uint32_t)in->value;
	return true;
}

static bool remember(struct machine *m)
{
	if (m->depth == MAX_REMEMBERED)
		return false;
	m->remembered[m->depth++] = m->state;
	return true;
}

static bool recall(struct machine *m)
{
	if (m->depth == 0)
		return false;
	m->state = m->remembered[--m->depth];
	return true;
}

static bool advance(struct machine *m, uint64_t units)
{
	uint64_t bytes;

	if (!stall_mul(units, m->fde->cie.code_alignment, &bytes) ||
	    !stall_add(m->location, bytes, &m->location))
		m->location = UINT64_MAX;
	return !m->in_cie;
}

static bool execute(struct machine *m, const struct instruction *in)
{
	uint64_t factored = in->value * m->fde->cie.data_alignment;
	bool has_cfa_register = m->state.cfa == CFA_REGISTER;

	switch (in->code) {
	case DW_CFA_nop:
	case DW_CFA_GNU_args_size: // needed only by exceptions
		return true;
	case DW_CFA_set_loc:
		m->location = in->value;
		return !m->in_cie;
	case DW_CFA_advance_loc:
	case DW_CFA_advance_loc1:
	case DW_CFA_advance_loc2:
	case DW_CFA_advance_loc4:
	case DW_CFA_MIPS_advance_loc8:
		return advance(m, in->value);
	case DW_CFA_offset:
	case DW_CFA_offset_extended:
	case DW_CFA_offset_extended_sf:
		return set_offset(m, in, STALL_RULE_OFFSET, factored);
	case DW_CFA_GNU_negative_offset_extended:
		return set_offset(m, in, STALL_RULE_OFFSET, -factored);
	case DW_CFA_val_offset:
	case DW_CFA_val_offset_sf:
		return set_offset(m, in, STALL_RULE_VAL_OFFSET, factored);
	case DW_CFA_restore:
	case DW_CFA_restore_extended:
		return restore_rule(m, in);
	case DW_CFA_undefined:
		return set_rule(m, in, (struct stall_rule){.kind = STALL_RULE_UNDEFINED});
	case DW_CFA_same_value:
		return set_rule(m, in, (struct stall_rule){.kind = STALL_RULE_SAME});
	case DW_CFA_register:
		return set_register(m, in);
	case DW_CFA_expression:
		return set_expression(m, in, STALL_RULE_EXPRESSION);
	case DW_CFA_val_expression:
		return set_expression(m, in, STALL_RULE_VAL_EXPRESSION);
	case DW_CFA_remember_state:
		return remember(m);
	case DW_CFA_restore_state:
		return recall(m);
	case DW_CFA_def_cfa:
		return define_cfa(m, in->reg, in->value);
	case DW_CFA_def_cfa_sf:
		return define_cfa(m, in->reg, factored);
	case DW_CFA_def_cfa_register:
		return has_cfa_register && define_cfa(m, in->reg, m->state.cfa_offset);
	case DW_CFA_def_cfa_offset:
		return has_cfa_register && define_cfa(m, m->state.cfa_reg, in->value);
	case DW_CFA_def_cfa_offset_sf:
		return has_cfa_register && define_cfa(m, m->state.cfa_reg, factored);
	case DW_CFA_def_cfa_expression:
		return define_cfa_expression(m, in);
	default:
		return false;
	}
}

// Runs the program as far as it concerns the address. False: it is invalid.
static bool run(struct machine *m, struct stall_bytes program, uint64_t address)
{
	if (stall_bytes_left(&program) > MAX_PROGRAM)
		return false;
	while (stall_bytes_left(&program)) {
		struct instruction instruction;

		if (!read_instruction(m, &program, &instruction) || !execute(m, &instruction))
			return false;
		if (m->location > address)
			break;
	}
	return true;
}

// Callee-saved registers (System V ABI, AMD64 supplement, 3.2.1).
static bool survives_calls(uint8_t reg)
{
	return reg == STALL_REG_RBX || reg == STALL_REG_RBP || (reg >= 12 && reg <= 15);
}

// The rule of the return address, which is in register `reg`, as a rule for the PC.
static bool decode_pc(const struct state *state, uint64_t reg, struct stall_rule *ret)
{
	if (reg >= STALL_REGS)
		return false;
	*ret = state->rules[reg];
	if (ret->kind == STALL_RULE_UNSPECIFIED && !survives_calls((uint8_t)reg))
		return false;
	if (ret->kind == STALL_RULE_UNSPECIFIED || ret->kind == STALL_RULE_SAME)
		*ret = (struct stall_rule){.kind = STALL_RULE_REGISTER, .other = (uint8_t)reg};
	ret->reg = STALL_REG_PC;
	// "The same" of the PC itself would not move.
	return ret->kind != STALL_RULE_REGISTER || ret->other < STALL_REG_PC;
}

// Makes the row; `rules` has room for one of each register.
static bool decode(const struct state *state, const struct stall_cfi_cie *cie,
		   struct stall_row *row, struct stall_rule *rules)
{
	*row = (struct stall_row){.signal = cie->signal};
	if (state->cfa == CFA_EXPRESSION) {
		row->cfa_expression = state->cfa_expression;
		row->cfa_size = state->cfa_size;
	} else if (state->cfa == CFA_REGISTER && state->cfa_reg < STALL_REGS) {
		row->cfa_reg = (uint8_t)state->cfa_reg;
		row->cfa_offset = (int64_t)state->cfa_offset;
	} else {
		return false;
	}
	for (uint8_t reg = 0; reg < STALL_REG_PC; reg++) {
		struct stall_rule rule = state->rules[reg];

		rule.reg = reg;
		// Where there is no rule for a register the ABI decides.
		if (rule.kind == STALL_RULE_UNSPECIFIED && survives_calls(reg))
			rule.kind = STALL_RULE_SAME;
		bool is_lost = rule.kind == STALL_RULE_UNSPECIFIED ||
			       rule.kind == STALL_RULE_UNDEFINED ||
			       (rule.kind == STALL_RULE_REGISTER && rule.other >= STALL_REGS);
		if (!is_lost)
			rules[row->rule_count++] = rule;
	}
	return decode_pc(state, cie->return_register, &rules[row->rule_count++]);
}

static bool interpret(const struct stall_cfi_section *section, const struct stall_cfi_fde *fde,
		      uint64_t address, struct stall_row *row, struct stall_rule *rules)
{
	struct machine m;

	// Remembered rows are written before they are read.
	m.section = section;
	m.fde = fde;
	m.in_cie = true;
	m.location = fde->start;
	m.depth = 0;
	m.state = (struct state){};
	if (!run(&m, fde->cie.program, address))
		return false;
	m.in_cie = false;
	m.initial = m.state;
	return run(&m, fde->program, address) && decode(&m.state, &fde->cie, row, rules);
}

const struct stall_row *stall_cfi_row(struct stall_cfi *cfi, uint64_t address, bool *ret_bad)
{
	struct stall_rule rules[STALL_REGS];
	struct stall_cfi_fde fde;
	struct stall_row row;

	*ret_bad = false;
	const struct stall_cfi_section *section = find_fde(cfi, address, &fde, ret_bad);
	if (!section)
		return NULL;
	*ret_bad = !interpret(section, &fde, address, &row, rules);
	if (*ret_bad)
		return NULL;
	struct kept *kept = malloc(sizeof(*kept) + row.rule_count * sizeof(rules[0]));
	if (!kept)
		return NULL;
	kept->next = cfi->rows;
	cfi->rows = kept;
	kept->row = row;
	memcpy(kept->row.rules, rules, row.rule_count * sizeof(rules[0]));
	return &kept->row;
}
