// SPDX-License-Identifier: Apache-2.0
// Whether entries of .eh_frame or .debug_frame can be given to libdw. It believes them: a register
// number in a file decides how much memory it takes and where in it it writes (elfutils 0.188,
// libdw/cfi.c; later ones take up to two gigabytes for a number).
#ifndef STALL_CFI_CHECK_H
#define STALL_CFI_CHECK_H

#include <libelf.h>
#include <stdbool.h>
#include <stdint.h>

// A section's bytes, with some more that can be read after them: dwarf_next_cfi looks for the end
// of a number after the number.
struct stall_cfi_entries {
	const unsigned char *e_ident;
	Elf_Data *data;
	bool is_eh_frame;
};

// `offset` is that of an FDE.
bool stall_cfi_fde_fits(const struct stall_cfi_entries *entries, uint64_t offset);
bool stall_cfi_all_fit(const struct stall_cfi_entries *entries);

#endif
