// SPDX-License-Identifier: Apache-2.0
// Unwind information of one ELF file: call frame instructions (DWARF 5, 6.4), made into rows for
// the stepper.
#ifndef STALL_CFI_H
#define STALL_CFI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/elf_file.h"

enum stall_rule_kind {
	STALL_RULE_UNSPECIFIED,	   // no rule; in no row
	STALL_RULE_UNDEFINED,	   // in a row for the PC only: there is no caller
	STALL_RULE_SAME,	   // the caller's register is this frame's
	STALL_RULE_OFFSET,	   // saved at CFA + offset
	STALL_RULE_VAL_OFFSET,	   // is CFA + offset
	STALL_RULE_REGISTER,	   // is in another register
	STALL_RULE_EXPRESSION,	   // saved at the address that an expression computes
	STALL_RULE_VAL_EXPRESSION, // is the value of an expression
};

struct stall_rule {
	uint8_t kind;
	uint8_t reg;   // the register that the rule restores
	uint8_t other; // STALL_RULE_REGISTER
	uint32_t size; // of the expression
	union {
		int64_t offset;
		const uint8_t *expression; // of the section: lives as long as the struct stall_cfi
	};
};

// The unwind information for one PC. Registers without a rule are unknown in the caller.
struct stall_row {
	bool signal; // the caller was interrupted, not calling: its PC is exact
	uint8_t cfa_reg;
	uint8_t rule_count;	       // at most STALL_REGS
	uint32_t cfa_size;	       // of the expression
	const uint8_t *cfa_expression; // NULL: the CFA is cfa_reg + cfa_offset
	int64_t cfa_offset;
	struct stall_rule rules[];
};

struct stall_cfi;

// Uses .eh_frame of the file, and .debug_frame of the file or of `debug` (may be NULL). Both must
// live as long as the result.
struct stall_error *stall_cfi_create(const struct stall_elf *elf, const struct stall_elf *debug,
				     struct stall_cfi **ret);
void stall_cfi_destroy(struct stall_cfi *cfi);

// ".eh_frame", ".debug_frame", "both", "none".
const char *stall_cfi_source(const struct stall_cfi *cfi);

// The row for a virtual address of the file, owned by `cfi`; NULL where nothing covers it.
// *ret_bad is then true where invalid data covers it.
const struct stall_row *stall_cfi_row(struct stall_cfi *cfi, uint64_t address, bool *ret_bad);

// Whether an entry of the file itself, not of its debug file, starts at the address: an instruction
// does then too.
bool stall_cfi_starts_at(struct stall_cfi *cfi, uint64_t address);

#endif
