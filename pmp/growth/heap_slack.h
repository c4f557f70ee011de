// SPDX-License-Identifier: Apache-2.0
// What glibc's malloc holds free: read from its arenas in the process's memory, without a call.
#ifndef STALL_HEAP_SLACK_H
#define STALL_HEAP_SLACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "growth/mappings.h"
#include "proc/target.h"

// Bytes. The free chunks of the bins, and the top of each arena, which malloc keeps for later.
struct stall_heap_slack {
	const char *unknown; // why; NULL: known. Static
	uint64_t arenas;
	uint64_t system; // taken from the kernel
	uint64_t free, top;
	bool is_partial; // not all chunks were read: `free` is a lower limit
};

struct stall_error *stall_heap_slack_read(const struct stall_target *target,
					  const struct stall_growth_mappings *mappings,
					  struct stall_heap_slack *ret);

#endif
