// SPDX-License-Identifier: Apache-2.0
#include "unwind/cfi_check.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <stddef.h>

#define MAX_REGISTER 255	// the ABI numbers them up to 129
#define MAX_PROGRAM (64U << 10) // MySQL 9.7 has one of 1,408 bytes
#define MAX_REMEMBERED 64

struct bytes {
	const uint8_t *at, *end;
	bool torn;
};

static void skip(struct bytes *bytes, uint64_t size)
{
	uint64_t left = (uint64_t)(bytes->end - bytes->at);

	bytes->torn |= size > left;
	bytes->at += size > left ? left : size;
}

static uint8_t next_byte(struct bytes *bytes)
{
	if (bytes->at == bytes->end) {
		bytes->torn = true;
		return 0;
	}
	return *bytes->at++;
}

// ULEB128; one that does not fit 64 bits is torn.
static uint64_t next_number(struct bytes *bytes)
{
	uint64_t value = 0;

	for (unsigned int shift = 0; shift < 64; shift += 7) {
		uint8_t byte = next_byte(bytes);

		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return value;
	}
	bytes->torn = true;
	return value;
}

// Of DW_CFA_* below 0x40: a letter for each operand. r: a register; n: a number; b: a block; digits:
// so many bytes. DW_CFA_set_loc, which nobody writes, and what is of other processors is not here.
static const char *const operands[0x40] = {
	[DW_CFA_nop] = "",
	[DW_CFA_advance_loc1] = "1",
	[DW_CFA_advance_loc2] = "2",
	[DW_CFA_advance_loc4] = "4",
	[DW_CFA_offset_extended] = "rn",
	[DW_CFA_restore_extended] = "r",
	[DW_CFA_undefined] = "r",
	[DW_CFA_same_value] = "r",
	[DW_CFA_register] = "rr",
	[DW_CFA_remember_state] = "",
	[DW_CFA_restore_state] = "",
	[DW_CFA_def_cfa] = "rn",
	[DW_CFA_def_cfa_register] = "r",
	[DW_CFA_def_cfa_offset] = "n",
	[DW_CFA_def_cfa_expression] = "b",
	[DW_CFA_expression] = "rb",
	[DW_CFA_offset_extended_sf] = "rn",
	[DW_CFA_def_cfa_sf] = "rn",
	[DW_CFA_def_cfa_offset_sf] = "n",
	[DW_CFA_val_offset] = "rn",
	[DW_CFA_val_offset_sf] = "rn",
	[DW_CFA_val_expression] = "rb",
	[DW_CFA_GNU_args_size] = "n",
	[DW_CFA_GNU_negative_offset_extended] = "rn",
};

static bool skip_operands(struct bytes *program, const char *letters)
{
	for (; *letters && !program->torn; letters++) {
		if (*letters == 'r' && next_number(program) > MAX_REGISTER)
			return false;
		if (*letters == 'n')
			next_number(program);
		if (*letters == 'b')
			skip(program, next_number(program));
		if (*letters >= '1' && *letters <= '9')
			skip(program, (uint64_t)(*letters - '0'));
	}
	return !program->torn;
}

static bool program_fits(struct bytes program)
{
	int remembered = 0;

	if (program.at > program.end || program.end - program.at > MAX_PROGRAM)
		return false;
	while (program.at < program.end) {
		uint8_t operation = next_byte(&program);
		// The upper two bits tell of three, which have an operand in the others.
		const char *letters = operation < 0x40			    ? operands[operation]
				      : (operation & 0xc0) == DW_CFA_offset ? "n"
									    : "";

		if (!letters || !skip_operands(&program, letters))
			return false;
		remembered += operation == DW_CFA_remember_state;
		remembered -= operation == DW_CFA_restore_state;
		if (remembered < 0 || remembered > MAX_REMEMBERED)
			return false;
	}
	return true;
}

// Bytes of a pointer, 0 where its encoding is none that compilers write. (LSB Core 5.0, 10.5.1.)
static unsigned int pointer_size(uint8_t encoding)
{
	static const uint8_t sizes[16] = {
		[DW_EH_PE_absptr] = 8, [DW_EH_PE_udata2] = 2, [DW_EH_PE_udata4] = 4,
		[DW_EH_PE_udata8] = 8, [DW_EH_PE_sdata2] = 2, [DW_EH_PE_sdata4] = 4,
		[DW_EH_PE_sdata8] = 8,
	};

	return (encoding & ~DW_EH_PE_indirect) <= (DW_EH_PE_datarel | 0x0f) ? sizes[encoding & 0x0f]
									    : 0;
}

// Bytes of a pointer in the CIE's FDEs, 0 where what is said of it cannot be understood.
static unsigned int fde_pointer_size(const Dwarf_CIE *cie)
{
	struct bytes data = {.at = cie->augmentation_data};
	unsigned int size = pointer_size(DW_EH_PE_absptr);

	if (!*cie->augmentation)
		return size;
	if (*cie->augmentation != 'z' || !data.at || data.at > cie->initial_instructions_end ||
	    cie->augmentation_data_size > (size_t)(cie->initial_instructions_end - data.at))
		return 0;
	data.end = data.at + cie->augmentation_data_size;
	for (const char *letter = cie->augmentation + 1; *letter && size && !data.torn; letter++) {
		if (*letter == 'R')
			size = pointer_size(next_byte(&data));
		else if (*letter == 'L')
			skip(&data, 1);
		else if (*letter == 'P')
			skip(&data, pointer_size(next_byte(&data)));
		else if (*letter != 'S')
			return 0;
	}
	return data.torn ? 0 : size;
}

static bool cie_fits(const Dwarf_CIE *cie)
{
	return fde_pointer_size(cie) &&
	       program_fits((struct bytes){cie->initial_instructions, cie->initial_instructions_end,
					   false});
}

static int read_entry(const struct stall_cfi_entries *entries, uint64_t offset, uint64_t *ret_next,
		      Dwarf_CFI_Entry *ret)
{
	*ret_next = offset;
	if (offset >= entries->data->d_size)
		return 1;
	return dwarf_next_cfi(entries->e_ident, entries->data, entries->is_eh_frame, offset,
			      ret_next, ret);
}

// An FDE: two pointers, with "z" in its CIE a block of data, the program.
static bool fde_fits(const struct stall_cfi_entries *entries, const Dwarf_FDE *fde)
{
	struct bytes program = {fde->start, fde->end, false};
	Dwarf_CFI_Entry cie;
	uint64_t next;

	if (read_entry(entries, fde->CIE_pointer, &next, &cie) != 0 || !dwarf_cfi_cie_p(&cie) ||
	    !cie_fits(&cie.cie))
		return false;
	skip(&program, 2 * fde_pointer_size(&cie.cie));
	if (*cie.cie.augmentation == 'z')
		skip(&program, next_number(&program));
	return !program.torn && program_fits(program);
}

bool stall_cfi_fde_fits(const struct stall_cfi_entries *entries, uint64_t offset)
{
	Dwarf_CFI_Entry entry;
	uint64_t next;

	return read_entry(entries, offset, &next, &entry) == 0 && !dwarf_cfi_cie_p(&entry) &&
	       fde_fits(entries, &entry.fde);
}

bool stall_cfi_all_fit(const struct stall_cfi_entries *entries)
{
	Dwarf_CFI_Entry entry;
	uint64_t next;

	for (uint64_t offset = 0;; offset = next) {
		int rc = read_entry(entries, offset, &next, &entry);

		// libdw goes on after an entry that it cannot read, where it knows its end.
		if (rc > 0 || (rc < 0 && next == offset))
			return true;
		if (rc < 0)
			continue;
		if (dwarf_cfi_cie_p(&entry) ? !cie_fits(&entry.cie)
					    : !fde_fits(entries, &entry.fde))
			return false;
	}
}
