// SPDX-License-Identifier: Apache-2.0
// sux_lock<> of MariaDB 10.6 and later (storage/innobase/include/sux_lock.h): the latch of an index or
// of a page. Threads sleep on its first word while one holds it in mode U or X, or is the next to;
// that one sleeps on the second while readers hold it. The owner is behind these words.
#include <stdlib.h>

#include "lock/server_memory.h"

#define FOR_IO UINT64_MAX // the read or write of the page releases it
#define RECURSIVE_X 0xffffu
#define READERS_WRITER (1u << 31)
#define LATCH_BYTES 24
#define MAX_CALLERS 12

struct layout {
	int32_t word, readers;	   // in ssux_lock_impl
	int32_t recursive, writer; // in sux_lock<ssux_lock_impl<true>>, which begins with one
	int32_t part;
};

#define FIELD(member, key)                                                                         \
	{                                                                                          \
		key, NULL, offsetof(struct layout, member)                                         \
	}
static const struct stall_layout_field fields[] = {
	FIELD(word, "ssux_lock_impl<true>.writer"),
	FIELD(readers, "ssux_lock_impl<true>.readers"),
	FIELD(recursive, "sux_lock<ssux_lock_impl<true>>.recursive"),
	FIELD(writer, "sux_lock<ssux_lock_impl<true>>.writer"),
	FIELD(part, "sux_lock<ssux_lock_impl<true>>.lock"),
};

// Functions whose latch is that of an index or of a page. Without one of them a word may be of a
// plain srw_lock, which has no owner.
static const char *const latch_users[] = {
	"ssux_lock::psi_",	     "buf_page_get_gen",	"buf_page_get_low",
	"buf_page_optimistic_get",   "buf_page_optimistic_fix", "buf_page_try_get",
	"buf_page_create",	     "mtr_t::page_lock",	"mtr_t::upgrade_buffer_fix",
	"mtr_t::index_lock_upgrade", "mtr_t::lock_upgrade",	"btr_latch_prev",
};

static const char *const helpers[] = {
	"syscall",
	"srw_mutex_impl<",
	"ssux_lock_impl<",
	"void ssux_lock_impl<",
	"void srw_mutex_impl<",
};

static bool starts_with(const char *symbol, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!strncmp(symbol, names[i], strlen(names[i])))
			return true;
	return false;
}

// The first function above the helpers must use such a latch.
static bool waits_for_latch(const struct stall_server_memory *memory, uint32_t thread)
{
	const struct stall_unwound *unwound = memory->unwound;
	const struct stall_stack *stack = &unwound->stacks[thread];
	bool helped = false;

	for (uint32_t i = 0; i < stack->count && i < MAX_CALLERS; i++) {
		const char *symbol = unwound->frames[stack->frames[i]].symbol;

		if (!symbol)
			return false;
		if (starts_with(symbol, helpers, sizeof(helpers) / sizeof(helpers[0]))) {
			helped = true;
			continue;
		}
		if (!strncmp(symbol, "void ", 5))
			symbol += 5;
		return helped && (strstr(symbol, "sux_lock<") || // of it, or with it as an argument
				  starts_with(symbol, latch_users,
					      sizeof(latch_users) / sizeof(latch_users[0])));
	}
	return false;
}

struct latch {
	uint32_t word, readers, recursive;
	uint64_t writer;
};

static bool read_latch(const struct stall_server_memory *memory, const struct layout *layout,
		       uint64_t address, struct latch *ret)
{
	uint8_t bytes[LATCH_BYTES];

	if (!stall_server_read(memory, address, bytes, sizeof(bytes)))
		return false;
	*ret = (struct latch){
		.word = stall_half(bytes, layout->part + layout->word),
		.readers = stall_half(bytes, layout->part + layout->readers) & ~READERS_WRITER,
		.recursive = stall_half(bytes, layout->recursive),
		.writer = stall_word(bytes, layout->writer),
	};
	return true;
}

static bool fits(const struct layout *layout)
{
	return layout->part + layout->word + 4 <= LATCH_BYTES &&
	       layout->part + layout->readers + 4 <= LATCH_BYTES &&
	       layout->recursive + 4 <= LATCH_BYTES && layout->writer + 8 <= LATCH_BYTES;
}

// Which of the two words: only wr_wait() waits for readers.
static bool waits_for_readers(const struct stall_server_memory *memory, uint32_t thread)
{
	const struct stall_stack *stack = &memory->unwound->stacks[thread];

	for (uint32_t i = 0; i < stack->count && i < MAX_CALLERS; i++) {
		const char *symbol = memory->unwound->frames[stack->frames[i]].symbol;
		if (symbol && strstr(symbol, "::wr_wait("))
			return true;
	}
	return false;
}

static void report(struct stall_server_memory *memory, const struct layout *layout,
		   const struct stall_memory_waiter *waiter)
{
	bool for_readers = waits_for_readers(memory, waiter->thread);
	uint64_t address =
		waiter->word - layout->part - (for_readers ? layout->readers : layout->word);
	struct latch before, latch;

	if (!read_latch(memory, layout, address, &before) ||
	    !read_latch(memory, layout, address, &latch))
		return;
	uint32_t owner = stall_server_thread_of(memory, latch.writer);
	// A writer is one of the process's threads, or the I/O of the page, and counts what it took.
	if (latch.writer && latch.writer != FOR_IO && owner == STALL_NO_THREAD)
		return;
	if (!latch.writer != !latch.recursive)
		return;
	memory->found[waiter->thread] = (struct stall_memory_lock){
		.found = true,
		.kind = STALL_LOCK_RWLOCK,
		.address = address,
		.owner = owner == waiter->thread ? STALL_NO_THREAD : owner,
		.doubtful = before.writer != latch.writer || before.recursive != latch.recursive,
		.readers = latch.readers,
		.mode = latch.writer == FOR_IO		? "for I/O"
			: latch.recursive & RECURSIVE_X ? "exclusive"
			: latch.recursive		? "SX"
							: NULL,
	};
}

struct stall_error *stall_sux_locks_find(struct stall_server_memory *memory)
{
	struct layout layout = {};

	if (!stall_layout_fields(memory->layout, fields, sizeof(fields) / sizeof(fields[0]),
				 &layout) ||
	    !fits(&layout))
		return NULL;
	for (size_t i = 0; i < memory->waiter_count && !stall_server_late(memory); i++)
		if (waits_for_latch(memory, memory->waiters[i].thread))
			report(memory, &layout, &memory->waiters[i]);
	return NULL;
}
