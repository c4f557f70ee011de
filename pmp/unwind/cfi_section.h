// SPDX-License-Identifier: Apache-2.0
// .eh_frame or .debug_frame of a file: finds the entry of an address. Nothing in it is trusted.
#ifndef STALL_CFI_SECTION_H
#define STALL_CFI_SECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/bytes.h"
#include "unwind/elf_file.h"

struct stall_cfi_section;

// The part that functions share ("common information entry").
struct stall_cfi_cie {
	uint64_t code_alignment, data_alignment; // the latter is signed, in two's complement
	uint64_t return_register;
	uint8_t pointer_encoding; // DW_EH_PE_*, of addresses in its FDEs
	bool has_data;		  // its FDEs have a block of data before the program
	bool signal;
	struct stall_bytes program;
};

// A function, or a part of one ("frame description entry").
struct stall_cfi_fde {
	struct stall_cfi_cie cie;
	uint64_t start, end; // virtual addresses of the file
	struct stall_bytes program;
};

// *ret is NULL where the file has no such section, or none that can be used.
struct stall_error *stall_cfi_section_open(const struct stall_elf *elf, bool is_eh_frame,
					   struct stall_cfi_section **ret);
void stall_cfi_section_destroy(struct stall_cfi_section *section);

// Points into the section. False: nothing covers the address; *ret_bad becomes true where invalid
// data may cover it, and is unchanged elsewhere.
bool stall_cfi_section_find(const struct stall_cfi_section *section, uint64_t address,
			    struct stall_cfi_fde *ret, bool *ret_bad);

// An encoded address in the section's bytes. False: its encoding is not supported.
bool stall_cfi_section_pointer(const struct stall_cfi_section *section, uint8_t encoding,
			       struct stall_bytes *bytes, uint64_t *ret);

#endif
