// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <errno.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)

static size_t page_up(size_t size)
{
	return (size + PAGE - 1) & ~(PAGE - 1);
}

struct stall_error *stall_arena_init(struct stall_arena *arena, size_t size)
{
	// MAP_SHARED: the worker that is forked later reads the copies at the same address.
	void *base = mmap(NULL, page_up(size), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return stall_error_os(errno, "cannot reserve %zu bytes for stack copies", size);
	// A core dump of the probe must not hold another process's memory.
	madvise(base, page_up(size), MADV_DONTDUMP);
	*arena = (struct stall_arena){.base = base, .size = page_up(size)};
	return NULL;
}

void stall_arena_deinit(struct stall_arena *arena)
{
	if (arena->base)
		munmap(arena->base, arena->size);
	*arena = (struct stall_arena){};
}

void stall_arena_inherit(const struct stall_arena *arena, bool inherit)
{
	madvise(arena->base, arena->size, inherit ? MADV_DOFORK : MADV_DONTFORK);
}

void *stall_arena_alloc(struct stall_arena *arena, size_t size)
{
	size_t at = (arena->used + 15) & ~(size_t)15;

	if (at > arena->size || size > arena->size - at)
		return NULL;
	arena->used = at + size;
	if (arena->used > arena->high)
		arena->high = arena->used;
	return arena->base + at;
}

void stall_arena_reset(struct stall_arena *arena, size_t keep)
{
	arena->used = arena->held;
	if (keep < arena->held)
		keep = arena->held;
	if (arena->high <= keep)
		return;
	size_t from = page_up(keep);
	// MADV_DONTNEED leaves the pages of a shared mapping in the page cache; REMOVE frees them.
	if (madvise(arena->base + from, page_up(arena->high) - from, MADV_REMOVE) == 0)
		arena->high = from;
}

void stall_arena_hold(struct stall_arena *arena)
{
	arena->held = arena->used;
}

void stall_arena_release(struct stall_arena *arena)
{
	arena->held = 0;
}
