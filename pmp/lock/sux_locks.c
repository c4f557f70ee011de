// SPDX-License-Identifier: Apache-2.0
// sux_lock<> of MariaDB 10.6 and later (storage/innobase/include/sux_lock.h): the latch of an index or
// of a page. Threads sleep on its first word while one holds it in mode U or X, or is the next to;
// that one sleeps on the second while readers hold it. The owner is behind these words.
#include "lock/sux_locks.h"

#include <stdlib.h>

#include "lock/server_memory.h"

#define FOR_IO UINT64_MAX // the read or write of the page releases it
#define RECURSIVE_X 0xffffu
#define READERS_WRITER (1u << 31)
#define LATCH_BYTES 28 // with the second word before those of the snapshot
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
static bool waits_for_latch(const struct stall_unwound *unwound, uint32_t thread)
{
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
	uint32_t readers, recursive;
	uint64_t writer;
};

// From the bytes around the word that was waited on, which were read when the stacks were copied.
static struct latch latch_of(const struct layout *layout, const uint8_t *bytes, int32_t word)
{
	const uint8_t *latch = bytes + STALL_FUTEX_BEFORE - word;

	return (struct latch){
		.readers = stall_half(latch, LATCH_BYTES, layout->part + layout->readers) &
			   ~READERS_WRITER,
		.recursive = stall_half(latch, LATCH_BYTES, layout->recursive),
		.writer = stall_word(latch, LATCH_BYTES, layout->writer),
	};
}

static bool fits(const struct layout *layout)
{
	return layout->part + layout->word + 4 <= LATCH_BYTES &&
	       layout->part + layout->readers + 4 <= LATCH_BYTES &&
	       layout->recursive + 4 <= LATCH_BYTES && layout->writer + 8 <= LATCH_BYTES;
}

// Which of the two words: only wr_wait() waits for readers.
static bool waits_for_readers(const struct stall_unwound *unwound, uint32_t thread)
{
	const struct stall_stack *stack = &unwound->stacks[thread];

	for (uint32_t i = 0; i < stack->count && i < MAX_CALLERS; i++) {
		const char *symbol = unwound->frames[stack->frames[i]].symbol;
		if (symbol && strstr(symbol, "::wr_wait("))
			return true;
	}
	return false;
}

static const struct stall_futex *futex_of(const struct stall_snapshot *snapshot, uint32_t process,
					  uint64_t address)
{
	size_t low = 0, high = snapshot->futex_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct stall_futex *futex = &snapshot->futexes[middle];

		if (futex->process == process && futex->address == address)
			return futex;
		if (futex->process < process ||
		    (futex->process == process && futex->address < address))
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

static const char *mode_of(const struct latch *latch)
{
	if (latch->writer == FOR_IO)
		return "for I/O";
	if (!latch->recursive)
		return NULL;
	return latch->recursive & RECURSIVE_X ? "exclusive" : "SX";
}

static void report(const struct stall_server_memory *memory, const struct layout *layout,
		   const struct stall_futex *futex, uint32_t thread, bool for_readers)
{
	int32_t word = layout->part + (for_readers ? layout->readers : layout->word);
	const struct latch latch = latch_of(layout, futex->bytes, word);
	const struct latch before =
		futex->read_twice ? latch_of(layout, futex->first, word) : latch;
	uint32_t owner = stall_server_thread_of(memory, latch.writer);

	// A writer is one of the process's threads, or the I/O of the page, and counts what it took.
	if (latch.writer && latch.writer != FOR_IO && owner == STALL_NO_THREAD)
		return;
	if (!latch.writer != !latch.recursive)
		return;
	memory->found[thread] = (struct stall_memory_lock){
		.found = true,
		.kind = STALL_LOCK_RWLOCK,
		.address = futex->address - word,
		.owner = owner == thread ? STALL_NO_THREAD : owner,
		.doubtful = before.writer != latch.writer || before.recursive != latch.recursive,
		.readers = latch.readers,
		.mode = mode_of(&latch),
	};
}

void stall_sux_locks_find(const struct stall_server_memory *memory,
			  const struct stall_unwound *unwound, const struct stall_locks *locks)
{
	const struct stall_snapshot *snapshot = memory->snapshot;
	struct layout layout = {};

	if (!stall_layout_fields(memory->layout, fields, sizeof(fields) / sizeof(fields[0]),
				 &layout) ||
	    !fits(&layout))
		return;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];
		uint32_t lock = locks->thread_lock[i];

		if (thread->process != memory->process || lock == UINT32_MAX ||
		    locks->locks[lock].kind != STALL_LOCK_UNKNOWN ||
		    !waits_for_latch(unwound, (uint32_t)i))
			continue;
		const struct stall_futex *futex =
			futex_of(snapshot, memory->process, locks->locks[lock].futex);
		if (futex && futex->readable)
			report(memory, &layout, futex, (uint32_t)i,
			       waits_for_readers(unwound, (uint32_t)i));
	}
}
