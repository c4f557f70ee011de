// SPDX-License-Identifier: Apache-2.0
// Who touched a page last: a hash table by address.
#ifndef STALL_GROWTH_PAGES_H
#define STALL_GROWTH_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STALL_GROWTH_MAX_PAGES (UINT64_C(1) << 24) // 64 GiB of them: 640 MiB of table
#define STALL_HUGE_PAGES 512			   // pages of 4 KiB in one of 2 MiB

struct stall_growth_page {
	uint64_t address; // 0: free
	uint32_t toucher; // index
	uint32_t weight;  // pages that it stands for
};

struct stall_growth_pages {
	struct stall_growth_page *slots;
	size_t capacity, count; // capacity: a power of two
	uint64_t no_room;	// faults beyond the limit
	bool is_sampled;	// a page stands for others, too
	// The latest touch in each 2 MiB, built by stall_growth_pages_index_blocks.
	struct stall_growth_page *blocks;
	size_t block_capacity;
};

void stall_growth_pages_deinit(struct stall_growth_pages *pages);
struct stall_error *stall_growth_pages_set(struct stall_growth_pages *pages, uint64_t address,
					   uint32_t toucher, uint32_t weight);
// NULL: nobody was seen.
struct stall_growth_page *stall_growth_pages_find(const struct stall_growth_pages *pages,
						  uint64_t address);
struct stall_error *stall_growth_pages_index_blocks(struct stall_growth_pages *pages);
// A page of the same 2 MiB that somebody touched.
const struct stall_growth_page *stall_growth_pages_find_block(
	const struct stall_growth_pages *pages, uint64_t address);

#endif
