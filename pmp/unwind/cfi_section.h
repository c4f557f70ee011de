// SPDX-License-Identifier: Apache-2.0
// .eh_frame or .debug_frame of a file, given to libdw as far as it is sound.
#ifndef STALL_CFI_SECTION_H
#define STALL_CFI_SECTION_H

#include <elfutils/libdw.h>
#include <stdbool.h>

#include "base/error.h"
#include "unwind/elf_file.h"

struct stall_cfi_section;

// .eh_frame, or else .debug_frame. *ret is NULL where the file has none, or none that can be used.
struct stall_error *stall_cfi_section_open(const struct stall_elf *elf, bool is_eh_frame,
					   struct stall_cfi_section **ret);
void stall_cfi_section_destroy(struct stall_cfi_section *section);

// The frame (free it) of a virtual address of the file; NULL where nothing covers it. *ret_bad
// becomes true where something covers it that makes no sense, and is left alone elsewhere.
Dwarf_Frame *stall_cfi_section_frame(struct stall_cfi_section *section, uint64_t address,
				     bool *ret_bad);

#endif
