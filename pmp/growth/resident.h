// SPDX-License-Identifier: Apache-2.0
// Which pages of a process's own (anonymous) memory there are: /proc/PID/pagemap. A page that is
// swapped out counts.
#ifndef STALL_RESIDENT_H
#define STALL_RESIDENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "growth/mappings.h"
#include "proc/target.h"

#define STALL_PAGE UINT64_C(4096)
// Of one reading: an entry of 8 bytes for each. What a process has beyond it is left out.
#define STALL_RESIDENT_MAX_PAGES (UINT64_C(64) << 18)

struct stall_resident_range {
	uint64_t start, end; // addresses
	uint64_t *bits;	     // of its pages
};

// Sorted by address.
struct stall_resident {
	struct stall_resident_range *ranges;
	size_t count;
	uint64_t pages; // that are there
	bool cut;	// there was more than the limit
};

struct stall_error *stall_resident_read(const struct stall_target *target,
					const struct stall_growth_mappings *mappings,
					struct stall_resident *ret);
void stall_resident_deinit(struct stall_resident *resident);
bool stall_resident_has(const struct stall_resident *resident, uint64_t address);

// The bits of pagemap (Documentation/admin-guide/mm/pagemap.rst).
bool stall_resident_is_own(uint64_t entry);

#endif
