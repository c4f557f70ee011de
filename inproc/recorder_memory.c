// SPDX-License-Identifier: Apache-2.0
// The memory of the ring's file. It exists before it is touched, or a full disk would be a SIGBUS.
#include <sys/mman.h>

#include "recorder_private.h"

// A thousand threads may have so much of the file in memory; more threads, more.
#define BUDGET_PAGES (15500000 / STALL_RING_PAGE)
#define BUDGET_THREADS 1000
#define RESERVED_PAGES 256 // that stacks leave to all else
#define SLOT_PAGES 2	   // of a stack that each of so many threads can have
#define MAX_PAGES (STALL_RING_MAX_FILE / STALL_RING_PAGE)
#define MAX_TRIES 4

static uint64_t there[MAX_PAGES / 64]; // a bit for each page
// Pages: in all, of stacks, and of those what is deep, beyond SLOT_PAGES.
static uint32_t there_count, stack_count, deep_count;

static inline uint32_t load(const uint32_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static bool is_there(uint64_t page)
{
	return __atomic_load_n(&there[page / 64], __ATOMIC_RELAXED) >> page % 64 & 1;
}

static bool is_stack(const struct recorder_ring *ring, uint64_t page)
{
	return page >= ring->layout.stacks_offset / STALL_RING_PAGE &&
	       page < ring->layout.stats_offset / STALL_RING_PAGE;
}

static bool is_deep(const struct recorder_ring *ring, uint64_t page)
{
	uint64_t first = ring->layout.stacks_offset / STALL_RING_PAGE;

	return is_stack(ring, page) &&
	       (page - first) % (ring->layout.stack_stride / STALL_RING_PAGE) >= SLOT_PAGES;
}

static void count(const struct recorder_ring *ring, uint64_t page, int32_t by)
{
	__atomic_fetch_add(&there_count, by, __ATOMIC_RELAXED);
	if (is_stack(ring, page))
		__atomic_fetch_add(&stack_count, by, __ATOMIC_RELAXED);
	if (is_deep(ring, page))
		__atomic_fetch_add(&deep_count, by, __ATOMIC_RELAXED);
}

static void set_there(const struct recorder_ring *ring, uint64_t page)
{
	uint64_t bit = 1ULL << page % 64;

	if (!(__atomic_fetch_or(&there[page / 64], bit, __ATOMIC_RELAXED) & bit))
		count(ring, page, 1);
}

static void set_gone(const struct recorder_ring *ring, uint64_t page)
{
	__atomic_fetch_and(&there[page / 64], ~(1ULL << page % 64), __ATOMIC_RELAXED);
	count(ring, page, -1);
}

static uint32_t threads(void)
{
	uint32_t used = recorder_slots_used();

	return used > BUDGET_THREADS ? used : BUDGET_THREADS;
}

static uint32_t budget(void)
{
	return (uint64_t)BUDGET_PAGES * threads() / BUDGET_THREADS;
}

// What is left for deep stacks by the others, those of threads that are yet to come included.
static uint32_t deep_budget(void)
{
	uint32_t others =
		load(&there_count) - load(&stack_count) + RESERVED_PAGES + threads() * SLOT_PAGES;
	uint32_t all = budget();

	return others < all ? all - others : 0;
}

static bool is_in_budget(struct recorder_ring *ring, uint64_t first, uint64_t last)
{
	uint32_t deep = 0;

	if (first < ring->layout.stacks_offset / STALL_RING_PAGE) // header and slots
		return true;
	for (uint64_t page = first; page <= last; page++)
		deep += is_deep(ring, page) && !is_there(page);
	if (deep)
		return load(&deep_count) + deep <= deep_budget();
	return load(&there_count) + (last - first + 1) <= budget();
}

static bool populate(struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	long result = -EINTR;

	for (int i = 0; i < MAX_TRIES && (result == -EINTR || result == -EAGAIN); i++)
		result = raw_call3(SYS_madvise, recorder_ring_at(ring, offset), size,
				   RECORDER_POPULATE_WRITE);
	return result == 0;
}

bool recorder_ring_has_already(const struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	uint64_t first = offset / STALL_RING_PAGE, last = (offset + size - 1) / STALL_RING_PAGE;

	while (!ring->is_whole && first <= last) {
		if (!is_there(first++))
			return false;
	}
	return true;
}

bool recorder_ring_has(struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	uint64_t first = offset / STALL_RING_PAGE, last = (offset + size - 1) / STALL_RING_PAGE;

	if (recorder_ring_has_already(ring, offset, size))
		return true;
	while (is_there(first) && first < last)
		first++;
	if (!is_in_budget(ring, first, last) ||
	    !populate(ring, first * STALL_RING_PAGE, (last - first + 1) * STALL_RING_PAGE))
		return false;
	for (uint64_t page = first; page <= last; page++)
		set_there(ring, page);
	return true;
}

uint32_t recorder_stack_share(const struct recorder_ring *ring)
{
	uint32_t used = recorder_slots_used(), deep = deep_budget();
	uint64_t size = (SLOT_PAGES + (deep + used) / (used + 1)) * STALL_RING_PAGE; // rounded up

	return ring->is_whole || size > ring->layout.stack_stride ? ring->layout.stack_stride
								  : size;
}

// A thread that is in no wait needs no stack there. That costs a call: only when memory is scarce, or
// has become so since.
void recorder_stack_give_back(struct recorder_ring *ring, uint32_t slot)
{
	uint32_t pages = ring->layout.stack_stride / STALL_RING_PAGE;
	uint64_t start = ring->layout.stacks_offset / STALL_RING_PAGE + (uint64_t)slot * pages;
	bool is_scarce = load(&deep_count) >= deep_budget() / 8 * 7;
	uint64_t kept = is_scarce ? SLOT_PAGES : recorder_stack_share(ring) / STALL_RING_PAGE;
	uint64_t first = start + kept, end = first;

	for (; !ring->is_whole && end < start + pages && is_there(end); end++)
		set_gone(ring, end);
	if (end > first && raw_call3(SYS_madvise, recorder_ring_at(ring, first * STALL_RING_PAGE),
				     (end - first) * STALL_RING_PAGE, MADV_REMOVE)) {
		while (end > first)
			set_there(ring, --end);
	}
}

void recorder_memory_forget(void)
{
	recorder_clear(there, sizeof(there));
	there_count = stack_count = deep_count = 0;
}
