// SPDX-License-Identifier: Apache-2.0
// The memory of the ring's file. It exists before it is touched, or a full disk would be a SIGBUS.
#include "inproc/recorder_memory.h"

#include <sys/mman.h>

// A thousand threads may have so much of the file in memory; more threads, more.
#define BUDGET_PAGES (15500000 / STALL_RING_PAGE)
#define BUDGET_THREADS 1000
#define RESERVED_PAGES 256 // that stacks leave to all else
#define SLOT_PAGES 2	   // of a stack that each of so many threads can have
#define MAX_PAGES (STALL_RING_MAX_FILE / STALL_RING_PAGE)
#define MAX_TRIES 4
#define MAX_AT_ONCE 64 // pages; a stack has 16

// A bit for each page: it is there; it is counted, because it is there or one thread makes it.
static uint64_t there[MAX_PAGES / 64], counted[MAX_PAGES / 64];
// Pages that are there, or are being made: in all, of stacks, and of those what is deep, beyond
// SLOT_PAGES.
static uint32_t there_count, stack_count, deep_count;

static pid_t process; // ours

__attribute__((constructor)) static void remember_process(void)
{
	process = raw_call0(SYS_getpid);
}

bool recorder_is_own_process(void)
{
	return raw_call0(SYS_getpid) == process;
}

void recorder_ring_lost(struct recorder_ring *ring, enum stall_wait_lost cause)
{
	__atomic_fetch_add(&ring->header->lost[cause], 1, __ATOMIC_RELAXED);
}

static inline uint32_t load(const uint32_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static bool is_set(const uint64_t *bits, uint64_t page)
{
	return __atomic_load_n(&bits[page / 64], __ATOMIC_RELAXED) >> page % 64 & 1;
}

// False: it was set before.
static bool set(uint64_t *bits, uint64_t page)
{
	uint64_t bit = 1ULL << page % 64;

	return !(__atomic_fetch_or(&bits[page / 64], bit, __ATOMIC_RELAXED) & bit);
}

static void unset(uint64_t *bits, uint64_t page)
{
	__atomic_fetch_and(&bits[page / 64], ~(1ULL << page % 64), __ATOMIC_RELAXED);
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
	if (set(counted, page))
		count(ring, page, 1);
	set(there, page);
}

static void unset_there(const struct recorder_ring *ring, uint64_t page)
{
	unset(there, page);
	unset(counted, page);
	count(ring, page, -1);
}

static uint32_t threads(const struct recorder_ring *ring)
{
	uint32_t used = load(&ring->slots_used);

	return used > BUDGET_THREADS ? used : BUDGET_THREADS;
}

static uint32_t budget(const struct recorder_ring *ring)
{
	return (uint64_t)BUDGET_PAGES * threads(ring) / BUDGET_THREADS;
}

// What is left for deep stacks by the others, those of threads that are yet to come included.
static uint32_t deep_budget(const struct recorder_ring *ring)
{
	uint32_t others = load(&there_count) - load(&stack_count) + RESERVED_PAGES +
			  threads(ring) * SLOT_PAGES;
	uint32_t all = budget(ring);

	return others < all ? all - others : 0;
}

static bool take(uint32_t *count, uint32_t pages, uint32_t limit)
{
	uint32_t seen = load(count);

	do {
		if (seen + pages > limit)
			return false;
	} while (!__atomic_compare_exchange_n(count, &seen, seen + pages, true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	return true;
}

static void add(uint32_t *count, uint32_t pages)
{
	__atomic_fetch_add(count, pages, __ATOMIC_RELAXED);
}

// Counts those pages that are not, if they are in the budget, before they are made: that takes a
// call, in which many threads can be at once, some of them for the same page. *ret_reserved: a bit for
// each page that this thread has counted.
static bool reserve(struct recorder_ring *ring, uint64_t first, uint64_t last,
		    uint64_t *ret_reserved)
{
	uint32_t all = 0, stack = 0, deep = 0;
	uint64_t reserved = 0;

	for (uint64_t page = first; page <= last; page++) {
		if (is_set(counted, page))
			continue;
		reserved |= 1ULL << (page - first);
		all++;
		stack += is_stack(ring, page);
		deep += is_deep(ring, page);
	}
	if (first < ring->layout.stacks_offset / STALL_RING_PAGE) // header and slots
		add(&there_count, all);
	else if (!deep && !take(&there_count, all, budget(ring)))
		return false;
	else if (deep && !take(&deep_count, deep, deep_budget(ring)))
		return false;
	else if (deep)
		add(&there_count, all);
	add(&stack_count, stack);
	for (uint64_t page = first; page <= last; page++) {
		uint64_t bit = 1ULL << (page - first);

		if ((reserved & bit) && !set(counted, page)) { // another thread was first
			count(ring, page, -1);
			reserved &= ~bit;
		}
	}
	*ret_reserved = reserved;
	return true;
}

// They could not be made; those that another thread has made stay.
static void unreserve(struct recorder_ring *ring, uint64_t first, uint64_t reserved)
{
	for (uint64_t page = first; reserved; page++, reserved >>= 1) {
		if ((reserved & 1) && !is_set(there, page))
			unset_there(ring, page);
	}
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
		if (!is_set(there, first++))
			return false;
	}
	return true;
}

bool recorder_ring_has(struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	uint64_t first = offset / STALL_RING_PAGE, last = (offset + size - 1) / STALL_RING_PAGE;
	uint64_t reserved;

	if (recorder_ring_has_already(ring, offset, size))
		return true;
	while (is_set(there, first) && first < last)
		first++;
	if (last - first >= MAX_AT_ONCE || !reserve(ring, first, last, &reserved))
		return false;
	if (!populate(ring, first * STALL_RING_PAGE, (last - first + 1) * STALL_RING_PAGE)) {
		unreserve(ring, first, reserved);
		return false;
	}
	for (uint64_t page = first; page <= last; page++)
		set_there(ring, page);
	return true;
}

uint32_t recorder_stack_share(const struct recorder_ring *ring)
{
	uint32_t used = load(&ring->slots_used), deep = deep_budget(ring);
	uint64_t size = (SLOT_PAGES + (deep + used) / (used + 1)) * STALL_RING_PAGE; // rounded up

	return ring->is_whole || size > ring->layout.stack_stride ? ring->layout.stack_stride
								  : size;
}

// A thread that is in no wait needs no stack there. That costs a call: only when memory is scarce, or
// has become so since.
void recorder_stack_release(struct recorder_ring *ring, uint32_t slot)
{
	uint32_t pages = ring->layout.stack_stride / STALL_RING_PAGE;
	uint64_t start = ring->layout.stacks_offset / STALL_RING_PAGE + (uint64_t)slot * pages;
	bool is_scarce = load(&deep_count) >= deep_budget(ring) / 8 * 7;
	uint64_t kept = is_scarce ? SLOT_PAGES : recorder_stack_share(ring) / STALL_RING_PAGE;
	uint64_t first = start + kept, end = first;

	for (; !ring->is_whole && end < start + pages && is_set(there, end); end++)
		unset_there(ring, end);
	if (end > first && raw_call3(SYS_madvise, recorder_ring_at(ring, first * STALL_RING_PAGE),
				     (end - first) * STALL_RING_PAGE, MADV_REMOVE)) {
		while (end > first)
			set_there(ring, --end);
	}
}

void recorder_memory_forget(void)
{
	recorder_clear(there, sizeof(there));
	recorder_clear(counted, sizeof(counted));
	there_count = stack_count = deep_count = 0;
	process = raw_call0(SYS_getpid);
}
