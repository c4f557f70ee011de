// SPDX-License-Identifier: Apache-2.0
#include "introspect/sessions.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "introspect/session_plan.h"
#include "introspect/session_text.h"
#include "snapshot/read_child.h"

#define MAX_SESSIONS 65536
#define ATTEMPTS 3
#define COMMAND_SLEEP 0
#define MAX_COMMAND 255
#define IN_TRANSACTION 1		    // SERVER_STATUS_IN_TRANS, mysql_com.h
#define MAX_TRANSACTION (UINT64_C(1) << 48) // six bytes in InnoDB's rows
#define MAX_AGE_NS (UINT64_C(400) * 86400 * 1000000000)
// A capture takes some seconds; what begins later than that has the time of a clock that was set.
#define MAX_AHEAD_NS (UINT64_C(60) * 1000000000)

#define NAMES 4
#define PLACES 3 // of a name
static const enum stall_session_word first_word[NAMES] = {WORD_USER, WORD_HOST, WORD_DATABASE,
							  WORD_STATE};

// One thread while it is read.
struct reading {
	uint32_t thread;
	uint64_t object;
	uint8_t *first, *second; // the ranges, read twice
	uint64_t last_pointer;	 // where the last statement is
	uint32_t last_size;	 // UINT32_MAX: it ends with a zero
	uint64_t trx, trx_id;
	char *names[NAMES][PLACES];
	char *text;
	size_t name_done[NAMES][PLACES], text_done;
};

// All reads of one step, of one process after the other.
struct reads {
	struct stall_read *reads;
	uint32_t *process;
	size_t count, capacity;
};

static void reads_deinit(struct reads *reads)
{
	free(reads->reads);
	free(reads->process);
}

static struct stall_error *reads_init(struct reads *reads, size_t capacity)
{
	*reads = (struct reads){
		.reads = calloc(capacity + 1, sizeof(*reads->reads)),
		.process = calloc(capacity + 1, sizeof(*reads->process)),
		.capacity = capacity,
	};
	return reads->reads && reads->process ? NULL : &stall_enomem;
}

static void add_read(struct reads *reads, uint32_t process, uint64_t address, void *buf,
		     size_t size)
{
	if (reads->count == reads->capacity)
		return;
	reads->process[reads->count] = process;
	reads->reads[reads->count++] =
		(struct stall_read){.address = address, .buf = buf, .size = size};
}

// A process whose memory is locked has no sessions: that is no error.
static void run_reads(const struct stall_snapshot *snapshot, struct reads *reads)
{
	for (size_t begin = 0, end; begin < reads->count; begin = end) {
		uint32_t process = reads->process[begin];

		for (end = begin; end < reads->count && reads->process[end] == process; end++)
			;
		stall_error_destroy(stall_read_child_memory(&snapshot->processes[process].target,
							    &reads->reads[begin], end - begin));
	}
}

struct work {
	const struct stall_snapshot *snapshot;
	const struct stall_session_plan *plan;
	struct reading *readings;
	size_t count;
};

static const struct stall_thread *thread_of(const struct work *work, const struct reading *reading)
{
	return &work->snapshot->threads[reading->thread];
}

// The object of each thread. Removes threads that have none.
static struct stall_error *find_objects(struct work *work)
{
	_cleanup_(reads_deinit) struct reads reads = {};
	struct stall_error *err = reads_init(&reads, work->count);
	size_t left = 0;

	if (err)
		return err;
	for (size_t i = 0; i < work->count; i++) {
		const struct stall_thread *thread = thread_of(work, &work->readings[i]);

		add_read(&reads, thread->process, thread->fs_base + work->plan->place,
			 &work->readings[i].object, sizeof(uint64_t));
	}
	run_reads(work->snapshot, &reads);
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];

		if (reads.reads[i].done == sizeof(uint64_t) && reading->object >= 0x1000 &&
		    !(reading->object & 7))
			work->readings[left++] = *reading;
	}
	work->count = left;
	return NULL;
}

static struct stall_error *read_ranges(struct work *work, bool again, bool *ret_whole)
{
	const struct stall_session_plan *plan = work->plan;
	_cleanup_(reads_deinit) struct reads reads = {};
	struct stall_error *err = reads_init(&reads, work->count * (plan->range_count + 1));
	size_t at = 0;

	if (err)
		return err;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];
		uint32_t process = thread_of(work, reading)->process;
		uint8_t *bytes = again ? reading->second : reading->first;

		for (size_t j = 0; j < plan->range_count; j++) {
			add_read(&reads, process, reading->object + plan->ranges[j].offset, bytes,
				 plan->ranges[j].size);
			bytes += plan->ranges[j].size;
		}
	}
	run_reads(work->snapshot, &reads);
	for (size_t i = 0; i < work->count; i++) {
		ret_whole[i] = true;
		for (size_t j = 0; j < plan->range_count; j++, at++)
			ret_whole[i] &= reads.reads[at].done == reads.reads[at].size;
	}
	return NULL;
}

// The connection's number; 0: it is a background thread.
static uint64_t connection_of(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	return stall_session_word_of(plan, bytes, WORD_ID);
}

static bool numbers_agree(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	uint64_t id = connection_of(plan, bytes);

	for (enum stall_session_word word = WORD_ID_2; word <= WORD_ID_3; word++)
		if (plan->offset[word] >= 0 && stall_session_word_of(plan, bytes, word) != id)
			return false;
	return true;
}

// Every statement has its own start. Without it the text of another one, at the same address, can
// have been read between two reads of the same pointer.
static bool knows_start(const struct stall_session_plan *plan)
{
	return plan->offset[WORD_START] >= 0;
}

static bool is_idle(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	return plan->offset[WORD_COMMAND] >= 0 && plan->offset[WORD_QUERY] >= 0 &&
	       stall_session_word_of(plan, bytes, WORD_COMMAND) == COMMAND_SLEEP &&
	       !stall_session_word_of(plan, bytes, WORD_QUERY);
}

// MariaDB keeps the object of a connection that has ended for the thread's next one: it has no user
// any more. One that logs in has none yet, and is not idle.
static bool has_ended(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	bool known = false;

	for (enum stall_session_word word = WORD_USER; word <= WORD_USER_3; word++) {
		if (stall_session_word_of(plan, bytes, word))
			return false;
		known |= plan->offset[word] >= 0;
	}
	return known && is_idle(plan, bytes);
}

// Where the last statement of an idle connection is, where that takes another step.
static struct stall_error *find_last(struct work *work)
{
	const struct stall_session_plan *plan = work->plan;
	_cleanup_(reads_deinit) struct reads reads = {};
	_cleanup_free_ uint8_t(*second)[12] = calloc(work->count + 1, sizeof(*second));
	struct stall_error *err = reads_init(&reads, work->count);

	if (err || !second)
		return err ? err : &stall_enomem;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];
		uint64_t pointer = stall_session_word_of(plan, reading->first, WORD_LAST);

		reading->last_pointer = 0;
		reading->last_size = UINT32_MAX;
		if (!pointer || !knows_start(plan) || !is_idle(plan, reading->first))
			continue;
		if (plan->last_delta >= 0)
			reading->last_pointer = pointer + plan->last_delta;
		else if (plan->last_second >= 0 && plan->last_length >= 0)
			add_read(&reads, thread_of(work, reading)->process,
				 pointer + plan->last_second, second[i], sizeof(second[i]));
	}
	run_reads(work->snapshot, &reads);
	for (size_t i = 0; i < reads.count; i++) {
		size_t index = ((uint8_t(*)[12])reads.reads[i].buf) - second;
		if (reads.reads[i].done != sizeof(*second))
			continue;
		memcpy(&work->readings[index].last_pointer, second[index], 8);
		memcpy(&work->readings[index].last_size, second[index] + 8, 4);
	}
	return NULL;
}

// The ids of transactions: in an object that the connection's points to, or in one further.
static struct stall_error *find_transactions(struct work *work)
{
	const struct stall_session_plan *plan = work->plan;
	_cleanup_(reads_deinit) struct reads reads = {};
	struct stall_error *err = reads_init(&reads, work->count);

	if (err)
		return err;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];

		reading->trx = stall_session_word_of(plan, reading->first, WORD_TRX);
		reading->trx_id = 0;
		if (reading->trx && plan->trx_second >= 0)
			add_read(&reads, thread_of(work, reading)->process,
				 reading->trx + plan->trx_second, &reading->trx,
				 sizeof(reading->trx));
	}
	run_reads(work->snapshot, &reads);
	for (size_t i = 0; i < reads.count; i++)
		if (reads.reads[i].done != sizeof(uint64_t))
			*(uint64_t *)reads.reads[i].buf = 0;
	reads.count = 0;
	for (size_t i = 0; i < work->count && plan->trx_id >= 0; i++) {
		struct reading *reading = &work->readings[i];

		if (reading->trx)
			add_read(&reads, thread_of(work, reading)->process,
				 reading->trx + plan->trx_id, &reading->trx_id,
				 sizeof(reading->trx_id));
	}
	run_reads(work->snapshot, &reads);
	for (size_t i = 0; i < reads.count; i++)
		if (reads.reads[i].done != sizeof(uint64_t))
			*(uint64_t *)reads.reads[i].buf = 0;
	return NULL;
}

static size_t text_size(uint32_t length)
{
	return length < STALL_SESSION_STATEMENT ? length : STALL_SESSION_STATEMENT;
}

// Whether this text has the length that was read beside its pointer: servers put a zero behind it.
static bool has_length(const struct reading *reading, size_t size)
{
	return !memchr(reading->text, '\0', size) &&
	       (size == STALL_SESSION_STATEMENT || !reading->text[size]);
}

// Where the statement of a thread is, and how long it is.
static uint64_t statement_of(const struct stall_session_plan *plan, const struct reading *reading,
			     size_t *ret_size)
{
	uint64_t query = stall_session_word_of(plan, reading->first, WORD_QUERY);

	if (query) {
		*ret_size = text_size(stall_session_length_of(plan, reading->first, WORD_QUERY));
		return query;
	}
	*ret_size = text_size(reading->last_size);
	return reading->last_pointer;
}

static struct stall_error *read_texts(struct work *work)
{
	const struct stall_session_plan *plan = work->plan;
	_cleanup_(reads_deinit) struct reads reads = {};
	_cleanup_free_ size_t **done =
		calloc(work->count * (NAMES * PLACES + 1) + 1, sizeof(*done));
	struct stall_error *err = reads_init(&reads, work->count * (NAMES * PLACES + 1));

	if (err || !done)
		return err ? err : &stall_enomem;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];
		uint32_t process = thread_of(work, reading)->process;
		size_t size;

		for (int name = 0; name < NAMES; name++) {
			for (int place = 0; place < PLACES; place++) {
				uint64_t pointer = stall_session_word_of(plan, reading->first,
									 first_word[name] + place);
				reading->name_done[name][place] = 0;
				if (!pointer)
					continue;
				done[reads.count] = &reading->name_done[name][place];
				add_read(&reads, process, pointer, reading->names[name][place],
					 STALL_SESSION_NAME);
			}
		}
		uint64_t pointer = statement_of(plan, reading, &size);
		reading->text_done = 0;
		if (!pointer || !size)
			continue;
		done[reads.count] = &reading->text_done;
		add_read(&reads, process, pointer, reading->text, size + !knows_start(plan));
	}
	run_reads(work->snapshot, &reads);
	for (size_t i = 0; i < reads.count; i++)
		*done[i] = reads.reads[i].done;
	return NULL;
}

// False: the text of this place is not known. "" where it has none.
static bool name_at(const struct stall_session_plan *plan, const struct reading *reading, int name,
		    int place, char *ret)
{
	enum stall_session_word word = first_word[name] + place;
	size_t length = SIZE_MAX;

	ret[0] = '\0';
	if (!stall_session_word_of(plan, reading->first, word))
		return true;
	if (plan->counted[word])
		length = stall_session_length_of(plan, reading->first, word);
	return stall_session_name(reading->names[name][place], reading->name_done[name][place],
				  length, ret, STALL_SESSION_NAME);
}

// Where places disagree, or one has none, it is unknown. A server keeps the name of a host apart from
// its address, and has not always both.
static void take_name(const struct stall_session_plan *plan, const struct reading *reading,
		      int name, char *ret)
{
	char first[STALL_SESSION_NAME], text[STALL_SESSION_NAME];
	bool found = false;

	ret[0] = '\0';
	for (int place = 0; place < PLACES; place++) {
		enum stall_session_word word = first_word[name] + place;
		char *into = found ? text : first;

		if (plan->offset[word] < 0 || (first_word[name] == WORD_HOST &&
					       !stall_session_word_of(plan, reading->first, word)))
			continue;
		if (!name_at(plan, reading, name, place, into) ||
		    (found && strcmp(first, text) != 0))
			return;
		found = true;
	}
	if (found)
		strcpy(ret, first);
}

static void take_statement(const struct stall_session_plan *plan, const struct reading *reading,
			   struct stall_session *ret)
{
	bool idle = !stall_session_word_of(plan, reading->first, WORD_QUERY);
	size_t size, whole = reading->text_done;
	uint64_t pointer = statement_of(plan, reading, &size);
	bool ended = idle && reading->last_size == UINT32_MAX; // with a zero

	if (!pointer || !size)
		return;
	if (ended) {
		whole = strnlen(reading->text,
				size < reading->text_done ? size : reading->text_done);
		if ((whole == reading->text_done && whole < STALL_SESSION_STATEMENT) ||
		    !stall_session_is_text(reading->text, whole))
			return;
	} else if (reading->text_done != size + !knows_start(plan)) {
		return;
	} else if (!knows_start(plan)) {
		if (!has_length(reading, size))
			return;
		whole = size;
	}
	ret->statement = reading->text;
	ret->statement_size = whole;
	ret->cut =
		ended ? whole == STALL_SESSION_STATEMENT
		      : (idle ? reading->last_size
			      : stall_session_length_of(plan, reading->first, WORD_QUERY)) > size;
	ret->last = idle;
}

static void take_age(const struct stall_session_plan *plan, const struct stall_snapshot *snapshot,
		     const uint8_t *bytes, struct stall_session *ret)
{
	uint64_t start = stall_session_word_of(plan, bytes, WORD_START), us = 0;
	// The capture's clocks are of its beginning; a statement can have begun since.
	uint64_t now = plan->clock == CLOCK_MONOTONIC_US ? snapshot->begun_ns : snapshot->wall_ns;

	if (plan->clock == CLOCK_REALTIME_SECONDS &&
	    (__builtin_mul_overflow(start, UINT64_C(1000000), &start) ||
	     (us = stall_session_length_of(plan, bytes, WORD_START)) >= 1000000))
		return;
	if (!start || __builtin_mul_overflow(start + us, UINT64_C(1000), &start) ||
	    now > start + MAX_AGE_NS || start > now + MAX_AHEAD_NS)
		return;
	ret->age_ns = now > start ? now - start : 0;
}

static void take_session(const struct work *work, const struct reading *reading,
			 struct stall_session *ret)
{
	const struct stall_session_plan *plan = work->plan;
	char *names[NAMES] = {ret->user, ret->host, ret->database, ret->state};
	uint64_t command = stall_session_word_of(plan, reading->first, WORD_COMMAND);

	ret->thread = reading->thread;
	ret->connection = connection_of(plan, reading->first);
	ret->command =
		plan->offset[WORD_COMMAND] >= 0 && command <= MAX_COMMAND ? (int)command : -1;
	ret->transaction = -1;
	if (plan->offset[WORD_STATUS] >= 0)
		ret->transaction =
			stall_session_word_of(plan, reading->first, WORD_STATUS) & IN_TRANSACTION;
	// The object of a transaction is kept when it ends.
	if (ret->transaction == IN_TRANSACTION && reading->trx_id < MAX_TRANSACTION)
		ret->transaction_id = reading->trx_id;
	ret->age_ns = UINT64_MAX;
	take_age(plan, work->snapshot, reading->first, ret);
	for (int name = 0; name < NAMES; name++)
		take_name(plan, reading, name, names[name]);
	// The state of its last statement may still be there.
	if (ret->command == COMMAND_SLEEP)
		ret->state[0] = '\0';
	take_statement(plan, reading, ret);
}

// The words that say what is where are as they were before the texts were read.
static bool is_settled(const struct stall_session_plan *plan, const struct reading *reading)
{
	for (enum stall_session_word word = 0; word < WORDS; word++) {
		// A state is a constant of the program: its text is right for the first read.
		if (plan->offset[word] < 0 || word == WORD_STATUS || word == WORD_QUERY_LENGTH ||
		    word >= WORD_STATE)
			continue;
		if (stall_session_word_of(plan, reading->first, word) !=
		    stall_session_word_of(plan, reading->second, word))
			return false;
		if ((plan->counted[word] || word == WORD_QUERY || word == WORD_START) &&
		    stall_session_length_of(plan, reading->first, word) !=
			    stall_session_length_of(plan, reading->second, word))
			return false;
	}
	return true;
}

static bool is_connection(const struct work *work, const struct reading *reading)
{
	uint64_t fs_base = thread_of(work, reading)->fs_base;

	// In a pool only one of them follows the connection to another thread.
	for (enum stall_session_word word = WORD_SELF; word <= WORD_SELF_3; word++)
		if (work->plan->offset[word] >= 0 &&
		    stall_session_word_of(work->plan, reading->first, word) == fs_base)
			return true;
	return false;
}

// One attempt for all that are left. Those that settled become sessions; those that are no
// connections are removed.
static struct stall_error *attempt(struct work *work, struct stall_sessions *sessions)
{
	struct stall_error *err = NULL;
	_cleanup_free_ bool *whole = calloc(work->count + 1, sizeof(*whole));
	_cleanup_free_ bool *whole_again = calloc(work->count + 1, sizeof(*whole_again));
	size_t left = 0;

	if (!whole || !whole_again)
		return &stall_enomem;
	err = read_ranges(work, false, whole);
	for (size_t i = 0; !err && i < work->count; i++) {
		bool is = whole[i] && is_connection(work, &work->readings[i]) &&
			  numbers_agree(work->plan, work->readings[i].first);
		sessions->rejected += !is;
		if (is && connection_of(work->plan, work->readings[i].first) &&
		    !has_ended(work->plan, work->readings[i].first))
			work->readings[left++] = work->readings[i];
	}
	work->count = left;
	if (!err)
		err = find_last(work);
	if (!err && work->plan->offset[WORD_TRX] >= 0)
		err = find_transactions(work);
	if (!err)
		err = read_texts(work);
	if (!err)
		err = read_ranges(work, true, whole_again);
	if (err)
		return err;
	left = 0;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];

		if (whole_again[i] && is_settled(work->plan, reading))
			take_session(work, reading, &sessions->sessions[sessions->count++]);
		else
			work->readings[left++] = *reading;
	}
	work->count = left;
	return NULL;
}

static struct stall_error *allocate(struct work *work)
{
	struct stall_arena *arena = work->snapshot->arena;
	const size_t names = NAMES * PLACES * STALL_SESSION_NAME;

	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];
		uint8_t *bytes = stall_arena_alloc(arena, 2 * work->plan->size + names +
								  STALL_SESSION_STATEMENT + 1);

		if (!bytes)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "no memory for the connections of %zu threads",
						  work->count);
		reading->first = bytes;
		reading->second = bytes + work->plan->size;
		char *text = (char *)bytes + 2 * work->plan->size;
		for (int name = 0; name < NAMES; name++)
			for (int place = 0; place < PLACES; place++, text += STALL_SESSION_NAME)
				reading->names[name][place] = text;
		reading->text = text;
	}
	return NULL;
}

static int compare_sessions(const void *a, const void *b)
{
	const struct stall_session *x = a, *y = b;

	return (x->thread > y->thread) - (x->thread < y->thread);
}

struct stall_error *stall_sessions_read(const struct stall_snapshot *snapshot,
					const struct stall_layout *layout,
					struct stall_sessions *ret)
{
	uint64_t start = stall_clock_ns(CLOCK_MONOTONIC);
	_cleanup_(stall_sessions_deinit) struct stall_sessions sessions = {};
	struct stall_session_plan plan;
	_cleanup_free_ struct reading *readings = NULL;
	struct work work = {.snapshot = snapshot, .plan = &plan};

	if (!stall_session_plan_make(layout, &plan)) {
		*ret = (struct stall_sessions){};
		return NULL;
	}
	readings = calloc(snapshot->thread_count + 1, sizeof(*readings));
	if (!readings)
		return &stall_enomem;
	work.readings = readings;
	for (uint32_t i = 0; i < snapshot->thread_count && work.count < MAX_SESSIONS; i++)
		if (!snapshot->threads[i].unchanged && snapshot->threads[i].fs_base)
			readings[work.count++].thread = i;
	struct stall_error *err = find_objects(&work);
	if (!err)
		err = allocate(&work);
	sessions.sessions = calloc(work.count + 1, sizeof(*sessions.sessions));
	if (!err && !sessions.sessions)
		err = &stall_enomem;
	for (int i = 0; !err && i < ATTEMPTS && work.count; i++) {
		err = i ? find_objects(&work) : NULL;
		if (!err)
			err = attempt(&work, &sessions);
	}
	if (err)
		return err;
	sessions.rejected += work.count;
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
