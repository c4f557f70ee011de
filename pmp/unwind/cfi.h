// SPDX-License-Identifier: Apache-2.0
// Unwind information of one ELF file: rows for the stepper, decoded by libdw.
#ifndef STALL_CFI_H
#define STALL_CFI_H

#include "base/error.h"
#include "unwind/elf_file.h"
#include "unwind/unwind.h"

struct stall_cfi;

// Uses .eh_frame of the file, and .debug_frame of the file or of `debug` (may be NULL). Both must
// live as long as the result.
struct stall_error *stall_cfi_create(const struct stall_elf *elf, const struct stall_elf *debug,
				     struct stall_cfi **ret);
void stall_cfi_destroy(struct stall_cfi *cfi);

// ".eh_frame", ".debug_frame", "both", "none".
const char *stall_cfi_source(const struct stall_cfi *cfi);

// The row for a virtual address of the file, owned by `cfi`; NULL where nothing covers it.
// *ret_bad then says whether something covers it that makes no sense.
const struct stall_row *stall_cfi_row(struct stall_cfi *cfi, uint64_t address, bool *ret_bad);

#endif
