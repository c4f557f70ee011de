// SPDX-License-Identifier: Apache-2.0
// The memory that a core file holds.
#ifndef STALL_CORE_MEMORY_H
#define STALL_CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/elf_file.h"

struct stall_core_segment {
	uint64_t start, end; // in the process; end is exclusive
	uint64_t offset;     // in the core file
	uint64_t held;	     // bytes from `start` on that the file holds
	uint32_t flags;	     // PF_*
};

struct stall_core_memory {
	struct stall_elf *elf;		     // owned
	struct stall_core_segment *segments; // sorted by start, without overlaps
	size_t count;
	uint64_t missing; // bytes that the file should hold but ends before
};

// Takes `elf` over, on failure too.
struct stall_error *stall_core_memory_create(struct stall_elf *elf, struct stall_core_memory **ret);
void stall_core_memory_destroy(struct stall_core_memory *memory);

// Returns the bytes read from the start of the range on.
size_t stall_core_memory_read(const struct stall_core_memory *memory, uint64_t address, void *buf,
			      size_t size);

#endif
