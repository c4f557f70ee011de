// SPDX-License-Identifier: Apache-2.0
#include "introspect/sessions.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "introspect/session_fields.h"
#include "introspect/session_plan.h"
#include "introspect/session_reads.h"

#define MAX_SESSIONS 65536
#define ATTEMPTS 3
// Threads that are read at a time: their memory stays in the caches of the CPU, and less time is
// between the two reads of an object.
#define CHUNK 256
#define LEAST_OBJECT 0x1000
#define FIRST_TEXT 1024 // of a text that ends with a zero: most have ended by then
// A text is read in two parts where it ends with a zero, or as a whole and again.
#define TEXTS ((size_t)CHUNK * 2 * (STALL_SESSION_STATEMENT + 1))
#define SLOTS (CHUNK * STALL_SESSION_NAMES * STALL_SESSION_PLACES)
#define TEXT_CHECKS 3	 // how often a text is read again where its statement's start is not known
#define CHECK_GAP_NS 431 // of no round number of any client's times
#define TABLE 8192	 // a power of two, larger than SLOTS

struct chunk {
	const struct stall_snapshot *snapshot;
	const struct stall_session_plan *plan;
	struct stall_session_reads reads;
	struct stall_session_reading *readings;
	size_t count;
	uint8_t *ranges; // CHUNK times the first, and those that are read again
	char *texts;	 // TEXTS bytes
	size_t texts_used;
	struct stall_session_slot *slots;
	size_t slot_count;
	uint16_t table[TABLE]; // index of a slot + 1, by its address
};

static void chunk_deinit(struct chunk *chunk)
{
	stall_session_reads_deinit(&chunk->reads);
}

static struct stall_error *chunk_init(struct chunk *chunk, const struct stall_snapshot *snapshot,
				      const struct stall_session_plan *plan)
{
	struct stall_arena *arena = snapshot->arena;

	*chunk = (struct chunk){.snapshot = snapshot, .plan = plan};
	chunk->readings = stall_arena_alloc(arena, CHUNK * sizeof(*chunk->readings));
	chunk->ranges = stall_arena_alloc(arena, CHUNK * (plan->first.size + plan->again.size));
	chunk->slots = stall_arena_alloc(arena, SLOTS * sizeof(*chunk->slots));
	chunk->texts = stall_arena_alloc(arena, TEXTS);
	if (!chunk->readings || !chunk->ranges || !chunk->slots || !chunk->texts)
		return stall_error_create(STALL_ERROR_LIMIT, "no memory for connections");
	return stall_session_reads_init(&chunk->reads, CHUNK * WORDS);
}

static const struct stall_thread *thread_of(const struct chunk *chunk,
					    const struct stall_session_reading *reading)
{
	return &chunk->snapshot->threads[reading->thread];
}

static void add_read(struct chunk *chunk, const struct stall_session_reading *reading,
		     uint64_t address, void *buf, size_t size, size_t *ret_done)
{
	stall_session_reads_add(&chunk->reads, thread_of(chunk, reading)->process, address, buf,
				size, ret_done);
}

static void run_reads(struct chunk *chunk)
{
	stall_session_reads_run(&chunk->reads, chunk->snapshot);
}

static void begin(struct chunk *chunk, const uint32_t *threads, size_t count)
{
	size_t size = chunk->plan->first.size + chunk->plan->again.size;

	for (size_t i = 0; i < count; i++)
		chunk->readings[i] = (struct stall_session_reading){
			.thread = threads[i],
			.first = chunk->ranges + i * size,
			.again = chunk->ranges + i * size + chunk->plan->first.size,
			.last_size = UINT32_MAX,
		};
	chunk->count = count;
	chunk->texts_used = 0;
	chunk->slot_count = 0;
	memset(chunk->table, 0, sizeof(chunk->table));
}

// Removes threads that have no object.
static void find_objects(struct chunk *chunk)
{
	size_t left = 0;

	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];

		add_read(chunk, reading, thread_of(chunk, reading)->fs_base + chunk->plan->place,
			 &reading->object, sizeof(reading->object), &reading->object_done);
	}
	run_reads(chunk);
	for (size_t i = 0; i < chunk->count; i++) {
		const struct stall_session_reading *reading = &chunk->readings[i];

		if (reading->object_done == sizeof(reading->object) &&
		    reading->object >= LEAST_OBJECT && !(reading->object & 7))
			chunk->readings[left++] = *reading;
	}
	chunk->count = left;
}

static void read_ranges(struct chunk *chunk, const struct stall_session_ranges *ranges, bool again)
{
	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];
		uint8_t *bytes = again ? reading->again : reading->first;

		for (size_t j = 0; j < ranges->count; j++) {
			const struct stall_session_range *range = &ranges->ranges[j];

			add_read(chunk, reading, reading->object + range->offset, bytes,
				 range->size, &reading->range_done[j]);
			bytes += range->size;
		}
	}
	run_reads(chunk);
}

static bool is_whole(const struct stall_session_ranges *ranges,
		     const struct stall_session_reading *reading)
{
	for (size_t i = 0; i < ranges->count; i++)
		if (reading->range_done[i] != ranges->ranges[i].size)
			return false;
	return true;
}

// In a pool only one of the places that name its thread follows the connection to another one.
static bool names_thread(const struct chunk *chunk, const struct stall_session_reading *reading)
{
	uint64_t fs_base = thread_of(chunk, reading)->fs_base;

	for (enum stall_session_word word = WORD_SELF; word <= WORD_SELF_3; word++)
		if (stall_session_word_of(chunk->plan, reading->first, word) == fs_base)
			return true;
	for (int i = 0; i < 2; i++)
		if (reading->spare_done[i] == sizeof(reading->spare[i]) &&
		    reading->spare[i] == fs_base)
			return true;
	return false;
}

// The places that are not in the ranges.
static void read_spares(struct chunk *chunk)
{
	const struct stall_session_plan *plan = chunk->plan;

	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];

		if (!is_whole(&plan->first, reading) || names_thread(chunk, reading))
			continue;
		for (int j = 0; j < 2; j++) {
			int64_t offset = plan->offset[WORD_SELF_2 + j];

			if (offset >= 0 && plan->first.place[WORD_SELF_2 + j] < 0)
				add_read(chunk, reading, reading->object + offset,
					 &reading->spare[j], sizeof(reading->spare[j]),
					 &reading->spare_done[j]);
		}
	}
	run_reads(chunk);
}

// Removes those that are no connections.
static void keep_connections(struct chunk *chunk, struct stall_sessions *sessions)
{
	const struct stall_session_plan *plan = chunk->plan;
	size_t left = 0;

	for (size_t i = 0; i < chunk->count; i++) {
		const struct stall_session_reading *reading = &chunk->readings[i];
		bool is = is_whole(&plan->first, reading) && names_thread(chunk, reading) &&
			  stall_session_numbers_agree(plan, reading->first);

		sessions->rejected += !is;
		if (is && stall_session_connection(plan, reading->first) &&
		    !stall_session_has_ended(plan, reading->first))
			chunk->readings[left++] = *reading;
	}
	chunk->count = left;
}

static uint64_t transaction_of(const struct chunk *chunk,
			       const struct stall_session_reading *reading)
{
	if (chunk->plan->trx_id < 0 || !stall_session_in_transaction(chunk->plan, reading->first))
		return 0;
	return stall_session_word_of(chunk->plan, reading->first, WORD_TRX);
}

static void add_second(struct chunk *chunk, struct stall_session_reading *reading, uint64_t last)
{
	const struct stall_session_plan *plan = chunk->plan;

	add_read(chunk, reading, last + plan->last_second, reading->second, 12,
		 &reading->second_done);
	if (plan->last_begun >= 0)
		add_read(chunk, reading, last + plan->last_begun, &reading->begun,
			 sizeof(reading->begun), &reading->begun_done);
}

// What is behind a second object: last statements, and transactions.
static void read_second_objects(struct chunk *chunk)
{
	const struct stall_session_plan *plan = chunk->plan;
	bool second = plan->last_delta < 0 && plan->last_second >= 0 && plan->last_length >= 0;

	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];
		uint64_t last = stall_session_last(plan, reading->first);

		reading->trx = transaction_of(chunk, reading);
		if (last && plan->last_delta >= 0)
			reading->last_pointer = last + plan->last_delta;
		else if (last && second)
			add_second(chunk, reading, last);
		if (reading->trx && plan->trx_second >= 0)
			add_read(chunk, reading, reading->trx + plan->trx_second, &reading->trx,
				 sizeof(reading->trx), &reading->trx_done);
	}
	run_reads(chunk);
	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];

		if (reading->second_done == 12 && stall_session_has_begun(plan, reading)) {
			memcpy(&reading->last_pointer, reading->second, 8);
			memcpy(&reading->last_size, reading->second + 8, 4);
		}
		if (plan->trx_second >= 0 && reading->trx_done != sizeof(reading->trx))
			reading->trx = 0;
	}
}

// Each address is read once: states, and names of hosts, are constants of the program.
static const struct stall_session_slot *slot_of(struct chunk *chunk,
						const struct stall_session_reading *reading,
						uint64_t address)
{
	uint32_t process = thread_of(chunk, reading)->process;
	size_t at = (address * UINT64_C(0x9e3779b97f4a7c15)) >> 51;

	for (; chunk->table[at % TABLE]; at++) {
		struct stall_session_slot *slot = &chunk->slots[chunk->table[at % TABLE] - 1];
		if (slot->address == address && slot->process == process)
			return slot;
	}
	struct stall_session_slot *slot = &chunk->slots[chunk->slot_count++];
	chunk->table[at % TABLE] = chunk->slot_count;
	slot->address = address;
	slot->process = process;
	add_read(chunk, reading, address, slot->text, sizeof(slot->text), &slot->done);
	return slot;
}

static void add_names(struct chunk *chunk, struct stall_session_reading *reading)
{
	bool idle = stall_session_is_idle(chunk->plan, reading->first);

	for (int name = 0; name < STALL_SESSION_NAMES; name++) {
		for (int place = 0; place < STALL_SESSION_PLACES; place++) {
			uint64_t address =
				stall_session_word_of(chunk->plan, reading->first,
						      stall_session_name_word(name, place));

			if (address && !(idle && name == NAME_STATE))
				reading->names[name][place] = slot_of(chunk, reading, address);
		}
	}
}

// Without a start a text is read again: that has its place behind the first.
static void add_text(struct chunk *chunk, struct stall_session_reading *reading, uint64_t address,
		     size_t size)
{
	size_t room = stall_session_knows_start(chunk->plan) ? size : 2 * size;

	if (room > TEXTS - chunk->texts_used)
		return;
	reading->text = chunk->texts + chunk->texts_used;
	reading->text_size = size;
	chunk->texts_used += room;
	add_read(chunk, reading, address, reading->text, size, &reading->text_done);
}

static void read_texts(struct chunk *chunk)
{
	const struct stall_session_plan *plan = chunk->plan;

	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];
		size_t size;
		uint64_t address = stall_session_statement(plan, reading, &size);

		if (reading->trx)
			add_read(chunk, reading, reading->trx + plan->trx_id, &reading->trx_id,
				 sizeof(reading->trx_id), &reading->trx_done);
		add_names(chunk, reading);
		if (!address || !size)
			continue;
		if (address == reading->last_pointer && reading->last_size == UINT32_MAX)
			size = FIRST_TEXT;
		add_text(chunk, reading, address, size + !stall_session_knows_start(plan));
	}
	run_reads(chunk);
	for (size_t i = 0; i < chunk->count; i++)
		if (chunk->readings[i].trx_done != sizeof(chunk->readings[i].trx_id))
			chunk->readings[i].trx_id = 0;
}

// Last statements that have no end within their first part.
static void read_long_texts(struct chunk *chunk)
{
	for (size_t i = 0; i < chunk->count; i++) {
		struct stall_session_reading *reading = &chunk->readings[i];

		if (reading->text && reading->text_size == FIRST_TEXT &&
		    reading->text_done == FIRST_TEXT && reading->last_size == UINT32_MAX &&
		    reading->last_pointer && !memchr(reading->text, '\0', FIRST_TEXT))
			add_text(chunk, reading, reading->last_pointer, STALL_SESSION_STATEMENT);
	}
	run_reads(chunk);
}

// Without a start, another statement can have replaced a text while it was read, and a later one can
// have set the same pointer and length since. Then another read of the text differs. A client whose
// statements are in step with the reads could have each of them torn at the same byte, so the times
// between them differ.
static void read_texts_again(struct chunk *chunk)
{
	if (stall_session_knows_start(chunk->plan))
		return;
	for (int n = 0; n < TEXT_CHECKS; n++) {
		uint64_t until = stall_clock_ns(CLOCK_MONOTONIC) + n * CHECK_GAP_NS;

		while (stall_clock_ns(CLOCK_MONOTONIC) < until)
			;
		for (size_t i = 0; i < chunk->count; i++) {
			struct stall_session_reading *reading = &chunk->readings[i];

			if (reading->text && !reading->text_differs)
				add_read(chunk, reading,
					 stall_session_word_of(chunk->plan, reading->first,
							       WORD_QUERY),
					 reading->text + reading->text_size, reading->text_size,
					 &reading->again_done);
		}
		run_reads(chunk);
		for (size_t i = 0; i < chunk->count; i++)
			stall_session_compare_texts(&chunk->readings[i]);
	}
}

// Moves a statement to where it stays.
static struct stall_error *keep_statement(const struct chunk *chunk, struct stall_session *session)
{
	if (!session->statement)
		return NULL;
	char *text = stall_arena_alloc(chunk->snapshot->arena, session->statement_size + 1);
	if (!text)
		return stall_error_create(STALL_ERROR_LIMIT, "no memory for statements");
	memcpy(text, session->statement, session->statement_size);
	session->statement = text;
	return NULL;
}

// Those that did not change become sessions; the others are put to `threads`, to be read again.
static struct stall_error *take(const struct chunk *chunk, struct stall_sessions *sessions,
				uint32_t *threads, size_t *left)
{
	for (size_t i = 0; i < chunk->count; i++) {
		const struct stall_session_reading *reading = &chunk->readings[i];
		struct stall_session *session = &sessions->sessions[sessions->count];

		if (!is_whole(&chunk->plan->again, reading) ||
		    !stall_session_is_same(chunk->plan, reading->first, reading->again) ||
		    reading->text_differs) {
			threads[(*left)++] = reading->thread;
			continue;
		}
		sessions->count++;
		stall_session_take(chunk->plan, chunk->snapshot, reading, session);
		struct stall_error *err = keep_statement(chunk, session);
		if (err)
			return err;
	}
	return NULL;
}

// Removes threads that are done, or have no connection.
static struct stall_error *attempt(struct chunk *chunk, struct stall_sessions *sessions,
				   uint32_t *threads, size_t *count)
{
	struct stall_error *err = NULL;
	size_t left = 0, n;

	for (size_t at = 0; !err && at < *count; at += n) {
		n = *count - at < CHUNK ? *count - at : CHUNK;
		begin(chunk, threads + at, n);
		find_objects(chunk);
		read_ranges(chunk, &chunk->plan->first, false);
		read_spares(chunk);
		keep_connections(chunk, sessions);
		read_second_objects(chunk);
		read_texts(chunk);
		read_long_texts(chunk);
		read_ranges(chunk, &chunk->plan->again, true);
		read_texts_again(chunk);
		err = take(chunk, sessions, threads, &left);
	}
	*count = left;
	return err;
}

static int compare_sessions(const void *a, const void *b)
{
	const struct stall_session *x = a, *y = b;

	return (x->thread > y->thread) - (x->thread < y->thread);
}

static size_t list_threads(const struct stall_snapshot *snapshot, uint32_t *ret)
{
	size_t count = 0;

	for (uint32_t i = 0; i < snapshot->thread_count && count < MAX_SESSIONS; i++)
		if (!snapshot->threads[i].unchanged && snapshot->threads[i].fs_base)
			ret[count++] = i;
	return count;
}

struct stall_error *stall_sessions_read(const struct stall_snapshot *snapshot,
					const struct stall_layout *layout,
					struct stall_sessions *ret)
{
	uint64_t start = stall_clock_ns(CLOCK_MONOTONIC);
	_cleanup_(stall_sessions_deinit) struct stall_sessions sessions = {};
	_cleanup_(chunk_deinit) struct chunk chunk = {};
	_cleanup_free_ uint32_t *threads = NULL;
	struct stall_session_plan plan;

	if (!stall_session_plan_make(layout, &plan)) {
		*ret = (struct stall_sessions){};
		return NULL;
	}
	threads = calloc(snapshot->thread_count + 1, sizeof(*threads));
	if (!threads)
		return &stall_enomem;
	size_t count = list_threads(snapshot, threads);
	sessions.sessions = calloc(count + 1, sizeof(*sessions.sessions));
	if (!sessions.sessions)
		return &stall_enomem;
	struct stall_error *err = chunk_init(&chunk, snapshot, &plan);
	for (int i = 0; !err && i < ATTEMPTS && count; i++)
		err = attempt(&chunk, &sessions, threads, &count);
	if (err)
		return err;
	sessions.rejected += count;
	qsort(sessions.sessions, sessions.count, sizeof(*sessions.sessions), compare_sessions);
	sessions.read_ns = stall_clock_ns(CLOCK_MONOTONIC) - start;
	*ret = sessions;
	sessions = (struct stall_sessions){};
	return NULL;
}

void stall_sessions_deinit(struct stall_sessions *sessions)
{
	free(sessions->sessions);
	*sessions = (struct stall_sessions){};
}
