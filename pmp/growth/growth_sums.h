// SPDX-License-Identifier: Apache-2.0
// Sums by toucher: a stack of a thread, and the way it touches pages.
#ifndef STALL_GROWTH_SUMS_H
#define STALL_GROWTH_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STALL_GROWTH_MAX_TOUCHERS (1u << 20)
#define STALL_NO_TOUCHER UINT32_MAX

struct stall_toucher {
	// The key. A fault without a stack of its own has the hashes instead, and 0 as stack.
	uint64_t hash, site;
	uint32_t stack; // of struct stall_wait_stacks
	int32_t tid;
	uint32_t kind; // enum stall_growth_kind
	uint32_t flags;
	// Pages.
	uint64_t touched; // faults
	uint64_t own;	  // of the process alone: that are there at the end, and were not before
	uint64_t file, shared, gone;
	uint64_t hugetlb; // bytes
};

struct stall_touchers {
	struct stall_toucher *list;
	uint32_t count, capacity;
	uint32_t *slots; // index + 1
	uint32_t slot_count;
	uint64_t no_room; // faults beyond the limit
};

void stall_touchers_deinit(struct stall_touchers *touchers);
// Finds one with the key of `wanted`, or adds it. *ret is STALL_NO_TOUCHER beyond the limit.
struct stall_error *stall_touchers_get(struct stall_touchers *touchers,
				       const struct stall_toucher *wanted, uint32_t *ret);

// The latest stack of each hash.
struct stall_hashed_stack {
	uint64_t hash; // 0: free
	uint32_t stack;
};
struct stall_hashed_stacks {
	struct stall_hashed_stack *slots;
	size_t capacity, count;
};
void stall_hashed_stacks_deinit(struct stall_hashed_stacks *stacks);
struct stall_error *stall_hashed_stacks_set(struct stall_hashed_stacks *stacks, uint64_t hash,
					    uint32_t stack);
// 0: none.
uint32_t stall_hashed_stacks_find(const struct stall_hashed_stacks *stacks, uint64_t hash);

#endif
