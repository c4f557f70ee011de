// SPDX-License-Identifier: Apache-2.0
// The contents of a section of an ELF file, unpacked where it is compressed.
#ifndef STALL_ELF_SECTION_H
#define STALL_ELF_SECTION_H

#include "unwind/elf_file.h"

// The place of a section in its file.
struct stall_elf_place {
	uint64_t offset, stored, address;
	uint64_t size;	    // more than `stored` where it is compressed
	uint32_t packed_by; // ELFCOMPRESS_*; 0: it is not
};

// False: there is none, it is not in this file, or it is larger than `limit`.
bool stall_elf_place_find(const struct stall_elf *elf, const char *name, size_t limit,
			  struct stall_elf_place *ret);
bool stall_elf_place_is_readable(const struct stall_elf *elf, const struct stall_elf_place *place,
				 size_t limit);
// What it holds, with a NUL after it; free it.
struct stall_error *stall_elf_place_load(const struct stall_elf *elf,
					 const struct stall_elf_place *place, size_t limit,
					 uint8_t **ret);

#endif
