// SPDX-License-Identifier: Apache-2.0
#include "growth/heap_slack.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/read_child.h"

// glibc 2.26 to 2.42, malloc/arena.c and malloc/malloc.c. A heap of a thread begins at a multiple of
// its greatest size, with a pointer to its arena; arenas are a ring, which has the main one.
#define HEAP_ALIGNMENT (UINT64_C(64) << 20)
#define MAX_ARENAS 4096
#define BINS 127
#define MAX_CHUNKS 200000
#define MAX_NS UINT64_C(300000000)
#define ARENA_BYTES 2208
#define SIZE_BITS UINT64_C(7)

// Offsets in struct malloc_state.
struct layout {
	size_t top, bins, next, system;
};
static const struct layout layouts[] = {
	{96, 112, 2160, 2184}, // from 2.27 on: with have_fastchunks
	{88, 104, 2152, 2176},
};

struct arena {
	uint64_t address;
	uint8_t bytes[ARENA_BYTES];
};

// A list of free chunks that is being followed.
struct list {
	uint64_t head, chunk;
	uint64_t words[4]; // of the chunk: previous size, size, next, previous
};

struct reading {
	const struct stall_target *target;
	const struct stall_growth_mappings *mappings;
	struct stall_heap_slack *slack;
	const struct layout *layout;
	struct arena *arenas;
	size_t count;
	uint64_t until_ns; // CLOCK_MONOTONIC
};

static bool is_late(const struct reading *reading)
{
	return stall_clock_ns(CLOCK_MONOTONIC) > reading->until_ns;
}

static uint64_t word_at(const struct arena *arena, size_t offset)
{
	uint64_t word;

	memcpy(&word, arena->bytes + offset, sizeof(word));
	return word;
}

static bool is_own(const struct reading *reading, uint64_t address)
{
	const struct stall_growth_mapping *mapping =
		stall_growth_mappings_find(reading->mappings, address);

	return mapping && !mapping->is_shared;
}

// Follows the ring from one arena. False: it is none, or has another layout.
static bool follow_ring(struct reading *reading, uint64_t first)
{
	uint64_t at = first;

	reading->count = 0;
	do {
		if (reading->count == MAX_ARENAS || !at || at & 7 || !is_own(reading, at) ||
		    is_late(reading))
			return false;
		struct arena *arena = &reading->arenas[reading->count++];
		arena->address = at;
		if (stall_read_child_range(reading->target, at, arena->bytes, ARENA_BYTES) !=
		    ARENA_BYTES)
			return false;
		uint64_t top = word_at(arena, reading->layout->top);
		uint64_t system = word_at(arena, reading->layout->system);
		// An arena that was never used has no top yet; a program's own has its bins there.
		if (top && (!is_own(reading, top) || top & 15) && top != at + reading->layout->top)
			return false;
		if (system & 4095 ||
		    system > reading->mappings->list[reading->mappings->count - 1].end)
			return false;
		at = word_at(arena, reading->layout->next);
	} while (at != first);
	return reading->count > 1;
}

static bool find_arenas(struct reading *reading)
{
	for (size_t i = 0; i < reading->mappings->count && !is_late(reading); i++) {
		const struct stall_growth_mapping *mapping = &reading->mappings->list[i];
		uint64_t arena = 0;

		if (mapping->start % HEAP_ALIGNMENT || mapping->is_file || mapping->is_shared ||
		    !mapping->anonymous ||
		    stall_read_child_range(reading->target, mapping->start, &arena,
					   sizeof(arena)) != sizeof(arena))
			continue;
		for (size_t j = 0; j < sizeof(layouts) / sizeof(layouts[0]); j++) {
			reading->layout = &layouts[j];
			if (follow_ring(reading, arena))
				return true;
		}
	}
	return false;
}

// The first chunk of each list that is not empty.
static size_t begin_lists(const struct reading *reading, struct list *lists)
{
	size_t count = 0;

	for (size_t i = 0; i < reading->count; i++) {
		const struct arena *arena = &reading->arenas[i];
		for (size_t bin = 0; bin < BINS; bin++) {
			size_t offset = reading->layout->bins + bin * 16;
			// As if the two pointers were in a chunk.
			uint64_t head = arena->address + offset - 16,
				 chunk = word_at(arena, offset);

			if (chunk && chunk != head)
				lists[count++] = (struct list){.head = head, .chunk = chunk};
		}
	}
	return count;
}

// The server runs meanwhile: a list that makes no sense any more ends.
static bool take_chunk(const struct reading *reading, struct list *list)
{
	uint64_t size = list->words[1] & ~SIZE_BITS;

	if (size < 32 || size & 15 || !is_own(reading, list->chunk) ||
	    !is_own(reading, list->chunk + size - 1)) {
		reading->slack->is_partial = true;
		return false;
	}
	reading->slack->free += size;
	list->chunk = list->words[2];
	return list->chunk != list->head;
}

// One chunk of each list in a round, which is one call.
static struct stall_error *follow_lists(const struct reading *reading, struct list *lists,
					size_t count)
{
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));
	size_t chunks = 0;

	if (!reads)
		return &stall_enomem;
	while (count) {
		size_t kept = 0;

		if (chunks > MAX_CHUNKS || is_late(reading)) {
			reading->slack->is_partial = true;
			return NULL;
		}
		for (size_t i = 0; i < count; i++)
			reads[i] = (struct stall_read){.address = lists[i].chunk,
						       .buf = lists[i].words,
						       .size = sizeof(lists[i].words)};
		struct stall_error *err = stall_read_child_memory(reading->target, reads, count);
		if (err)
			return err;
		for (size_t i = 0; i < count; i++) {
			bool is_read = reads[i].done == sizeof(lists[i].words);

			reading->slack->is_partial |= !is_read;
			if (is_read && take_chunk(reading, &lists[i]))
				lists[kept++] = lists[i];
		}
		chunks += count;
		count = kept;
	}
	return NULL;
}

static void add_tops(const struct reading *reading)
{
	for (size_t i = 0; i < reading->count; i++) {
		if (is_late(reading)) {
			reading->slack->is_partial = true;
			return;
		}
		uint64_t top = word_at(&reading->arenas[i], reading->layout->top), words[2];

		reading->slack->system += word_at(&reading->arenas[i], reading->layout->system);
		if (!top || stall_read_child_range(reading->target, top, words, sizeof(words)) !=
				    sizeof(words))
			continue;
		uint64_t size = words[1] & ~SIZE_BITS;
		if (size && is_own(reading, top) && is_own(reading, top + size - 1))
			reading->slack->top += size;
	}
}

struct stall_error *stall_heap_slack_read(const struct stall_target *target,
					  const struct stall_growth_mappings *mappings,
					  struct stall_heap_slack *ret)
{
	struct reading reading = {
		.target = target,
		.mappings = mappings,
		.slack = ret,
		.until_ns = stall_clock_ns(CLOCK_MONOTONIC) + MAX_NS,
	};
	_cleanup_free_ struct arena *arenas = calloc(MAX_ARENAS, sizeof(*arenas));
	_cleanup_free_ struct list *lists = NULL;

	if (!arenas)
		return &stall_enomem;
	reading.arenas = arenas;
	bool is_found = find_arenas(&reading);
	if (!is_found && is_late(&reading)) {
		ret->unknown = "the arenas of glibc's malloc were not found in time";
		return NULL;
	}
	if (!is_found) {
		ret->unknown = "no arenas of glibc's malloc were found: another allocator, another "
			       "version of glibc, or no thread but the first has allocated";
		return NULL;
	}
	lists = calloc(reading.count * BINS + 1, sizeof(*lists));
	if (!lists)
		return &stall_enomem;
	ret->arenas = reading.count;
	add_tops(&reading);
	size_t count = begin_lists(&reading, lists);
	struct stall_error *err = follow_lists(&reading, lists, count);
	if (err && err->code != STALL_ERROR_NO_MEMORY) { // late, or it has ended
		stall_error_destroy(err);
		ret->is_partial = true;
		err = NULL;
	}
	return err;
}
