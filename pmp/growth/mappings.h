// SPDX-License-Identifier: Apache-2.0
// What each mapping of a process holds in memory: /proc/PID/smaps.
#ifndef STALL_MAPPINGS_H
#define STALL_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proc/target.h"

#define STALL_GROWTH_MAX_MAPPINGS 1000000

struct stall_growth_mapping {
	uint64_t start, end;
	uint64_t page_size; // of its kernel pages: more than 4096 with hugetlb
	// Bytes.
	uint64_t rss, anonymous, swap, huge, hugetlb;
	bool is_file;	// it has a file, or memory that is one: shared memory
	bool is_shared; // others see what is written to it
	bool is_main_stack;
	bool is_heap; // of brk(2)
};

// Sorted by start.
struct stall_growth_mappings {
	struct stall_growth_mapping *list;
	size_t count, capacity;
	// Of all: bytes.
	uint64_t rss, anonymous, swap, huge, hugetlb;
	uint64_t mapped; // of its own, touched or not
	bool cut;	 // more than STALL_GROWTH_MAX_MAPPINGS
};

struct stall_error *stall_growth_mappings_read(const struct stall_target *target,
					       struct stall_growth_mappings *ret);
// From such a text, for tests. *ret must be empty.
struct stall_error *stall_growth_mappings_parse(const char *text, size_t size,
						struct stall_growth_mappings *ret);
void stall_growth_mappings_deinit(struct stall_growth_mappings *mappings);

// The mapping of an address, or NULL.
const struct stall_growth_mapping *stall_growth_mappings_find(
	const struct stall_growth_mappings *mappings, uint64_t address);

#endif
