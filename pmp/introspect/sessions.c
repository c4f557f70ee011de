// SPDX-License-Identifier: Apache-2.0
#include "introspect/sessions.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "introspect/session_text.h"
#include "snapshot/read_child.h"

#define MAX_SESSIONS 65536
#define MAX_OFFSET (1 << 20)   // in an object
#define MAX_DISTANCE (1 << 20) // of the place from the thread control block
// Fields nearer than this are read at once: a page costs as much as a byte of it.
#define MERGE_GAP 1024
#define MAX_RANGES 64
#define ATTEMPTS 3
#define COMMAND_SLEEP 0
#define MAX_COMMAND 255
#define IN_TRANSACTION 1		    // SERVER_STATUS_IN_TRANS, mysql_com.h
#define MAX_TRANSACTION (UINT64_C(1) << 48) // six bytes in InnoDB's rows
#define MAX_AGE_NS (UINT64_C(400) * 86400 * 1000000000)
// A capture takes some seconds; what begins later than that has the time of a clock that was set.
#define MAX_AHEAD_NS (UINT64_C(60) * 1000000000)

// The clocks of `thd.start`: microseconds, or seconds with microseconds in the next word.
enum { CLOCK_REALTIME_US, CLOCK_MONOTONIC_US, CLOCK_REALTIME_SECONDS };

enum word {
	WORD_SELF,
	WORD_SELF_2,
	WORD_SELF_3,
	WORD_ID,
	WORD_ID_2,
	WORD_ID_3,
	WORD_QUERY,
	WORD_QUERY_LENGTH,
	WORD_COMMAND,
	WORD_STATUS,
	WORD_START,
	WORD_LAST,
	WORD_TRX,
	WORD_USER,
	WORD_USER_2,
	WORD_USER_3,
	WORD_HOST,
	WORD_HOST_2,
	WORD_HOST_3,
	WORD_DATABASE,
	WORD_DATABASE_2,
	WORD_DATABASE_3,
	WORD_STATE,
	WORD_STATE_2,
	WORD_STATE_3,
	WORDS,
};

// The words of an object that are read; `wide`: 8 bytes, else 4.
static const struct {
	const char *key;
	bool wide;
} word_keys[WORDS] = {
	[WORD_SELF] = {"thd.self", true},
	[WORD_SELF_2] = {"thd.self.2", true},
	[WORD_SELF_3] = {"thd.self.3", true},
	[WORD_ID] = {"thd.id", false},
	[WORD_ID_2] = {"thd.id.2", false},
	[WORD_ID_3] = {"thd.id.3", false},
	[WORD_QUERY] = {"thd.query", true},
	[WORD_QUERY_LENGTH] = {NULL, false}, // behind the pointer
	[WORD_COMMAND] = {"thd.command", false},
	[WORD_STATUS] = {"thd.status", false},
	[WORD_START] = {"thd.start", true},
	[WORD_LAST] = {"thd.last", true},
	[WORD_TRX] = {"thd.trx", true},
	[WORD_USER] = {"thd.user", true},
	[WORD_USER_2] = {"thd.user.2", true},
	[WORD_USER_3] = {"thd.user.3", true},
	[WORD_HOST] = {"thd.host", true},
	[WORD_HOST_2] = {"thd.host.2", true},
	[WORD_HOST_3] = {"thd.host.3", true},
	[WORD_DATABASE] = {"thd.database", true},
	[WORD_DATABASE_2] = {"thd.database.2", true},
	[WORD_DATABASE_3] = {"thd.database.3", true},
	[WORD_STATE] = {"thd.state", true},
	[WORD_STATE_2] = {"thd.state.2", true},
	[WORD_STATE_3] = {"thd.state.3", true},
};

#define NAMES 4
#define PLACES 3 // of a name
static const enum word first_word[NAMES] = {WORD_USER, WORD_HOST, WORD_DATABASE, WORD_STATE};

struct range {
	uint32_t offset, size;
};

// The layout, ready for use.
struct plan {
	int64_t place;
	int64_t offset[WORDS];			      // -1: not known
	bool counted[WORDS];			      // a length of 4 bytes follows the pointer
	int64_t last_second, last_delta, last_length; // -1: none
	int64_t trx_second, trx_id;		      // -1: none
	int64_t clock; // of `start`: CLOCK_*				      // the clock of `start`
	struct range ranges[MAX_RANGES];
	size_t range_count;
	size_t size; // of all ranges
};

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

static bool in_object(int64_t offset)
{
	return offset >= 0 && offset < MAX_OFFSET;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

static void plan_ranges(struct plan *plan)
{
	struct range fields[WORDS];
	size_t count = 0;

	for (int i = 0; i < WORDS; i++)
		if (plan->offset[i] >= 0)
			fields[count++] = (struct range){plan->offset[i], 16};
	qsort(fields, count, sizeof(*fields), compare_ranges);
	for (size_t i = 0; i < count; i++) {
		struct range *last =
			plan->range_count ? &plan->ranges[plan->range_count - 1] : NULL;

		if (last && fields[i].offset <= last->offset + last->size + MERGE_GAP) {
			uint32_t end = fields[i].offset + fields[i].size;
			if (end > last->offset + last->size)
				last->size = end - last->offset;
		} else {
			plan->ranges[plan->range_count++] = fields[i];
		}
	}
	for (size_t i = 0; i < plan->range_count; i++)
		plan->size += plan->ranges[i].size;
}

// False: the layout has not what is needed.
static bool make_plan(const struct stall_layout *layout, struct plan *ret)
{
	int64_t value;

	*ret = (struct plan){.last_second = -1,
			     .last_delta = -1,
			     .last_length = -1,
			     .trx_second = -1,
			     .trx_id = -1};
	if (!stall_layout_get(layout, "thd.tls", &ret->place) || ret->place > MAX_DISTANCE ||
	    ret->place < -MAX_DISTANCE)
		return false;
	for (int i = 0; i < WORDS; i++) {
		ret->offset[i] = -1;
		if (!word_keys[i].key || !stall_layout_get(layout, word_keys[i].key, &value) ||
		    !in_object(value))
			continue;
		char key[64];
		ret->offset[i] = value;
		snprintf(key, sizeof(key), "%s#length", word_keys[i].key);
		// It is the word behind the pointer, and nowhere else.
		ret->counted[i] =
			stall_layout_get(layout, key, &value) && value == ret->offset[i] + 8;
	}
	if (ret->offset[WORD_QUERY] >= 0)
		ret->offset[WORD_QUERY_LENGTH] = ret->offset[WORD_QUERY] + 8;
	if (stall_layout_get(layout, "thd.last.1", &value) && in_object(value))
		ret->last_second = value;
	if (stall_layout_get(layout, "thd.last#delta", &value) && in_object(value))
		ret->last_delta = value;
	if (stall_layout_get(layout, "thd.last#length", &value) && in_object(value) &&
	    value == ret->last_second + 8)
		ret->last_length = value;
	if (stall_layout_get(layout, "thd.trx.1", &value) && in_object(value))
		ret->trx_second = value;
	if (stall_layout_get(layout, "thd.trx#id", &value) && in_object(value))
		ret->trx_id = value;
	if (stall_layout_get(layout, "thd.start#clock", &value))
		ret->clock = value;
	plan_ranges(ret);
	return ret->offset[WORD_SELF] >= 0 && ret->offset[WORD_ID] >= 0;
}

static uint64_t word_of(const struct plan *plan, const uint8_t *bytes, enum word word)
{
	uint64_t value = 0;

	if (plan->offset[word] < 0)
		return 0;
	for (size_t i = 0; i < plan->range_count; i++) {
		const struct range *range = &plan->ranges[i];
		int64_t within = plan->offset[word] - range->offset;

		if (within >= 0 && within + 8 <= range->size) {
			memcpy(&value, bytes + within, word_keys[word].wide ? 8 : 4);
			return value;
		}
		bytes += range->size;
	}
	return 0;
}

static uint32_t length_of(const struct plan *plan, const uint8_t *bytes, enum word word)
{
	for (size_t i = 0; i < plan->range_count; i++) {
		const struct range *range = &plan->ranges[i];
		int64_t within = plan->offset[word] + 8 - range->offset;
		uint32_t value;

		if (within >= 0 && within + 4 <= range->size) {
			memcpy(&value, bytes + within, sizeof(value));
			return value;
		}
		bytes += range->size;
	}
	return 0;
}

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
	const struct plan *plan;
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
	const struct plan *plan = work->plan;
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
static uint64_t connection_of(const struct plan *plan, const uint8_t *bytes)
{
	return word_of(plan, bytes, WORD_ID);
}

static bool numbers_agree(const struct plan *plan, const uint8_t *bytes)
{
	uint64_t id = connection_of(plan, bytes);

	for (enum word word = WORD_ID_2; word <= WORD_ID_3; word++)
		if (plan->offset[word] >= 0 && word_of(plan, bytes, word) != id)
			return false;
	return true;
}

// Every statement has its own start. Without it the text of another one, at the same address, can
// have been read between two reads of its pointer.
static bool knows_start(const struct plan *plan)
{
	return plan->offset[WORD_START] >= 0;
}

static bool is_idle(const struct plan *plan, const uint8_t *bytes)
{
	return plan->offset[WORD_COMMAND] >= 0 && plan->offset[WORD_QUERY] >= 0 &&
	       word_of(plan, bytes, WORD_COMMAND) == COMMAND_SLEEP &&
	       !word_of(plan, bytes, WORD_QUERY);
}

// MariaDB keeps the object of a connection that has ended for the thread's next one: it has no user
// any more. One that logs in has none yet, and is not idle.
static bool has_ended(const struct plan *plan, const uint8_t *bytes)
{
	bool known = false;

	for (enum word word = WORD_USER; word <= WORD_USER_3; word++) {
		if (word_of(plan, bytes, word))
			return false;
		known |= plan->offset[word] >= 0;
	}
	return known && is_idle(plan, bytes);
}

// Where the last statement of an idle connection is, where that takes another step.
static struct stall_error *find_last(struct work *work)
{
	const struct plan *plan = work->plan;
	_cleanup_(reads_deinit) struct reads reads = {};
	_cleanup_free_ uint8_t(*second)[12] = calloc(work->count + 1, sizeof(*second));
	struct stall_error *err = reads_init(&reads, work->count);

	if (err || !second)
		return err ? err : &stall_enomem;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];
		uint64_t pointer = word_of(plan, reading->first, WORD_LAST);

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
	const struct plan *plan = work->plan;
	_cleanup_(reads_deinit) struct reads reads = {};
	struct stall_error *err = reads_init(&reads, work->count);

	if (err)
		return err;
	for (size_t i = 0; i < work->count; i++) {
		struct reading *reading = &work->readings[i];

		reading->trx = word_of(plan, reading->first, WORD_TRX);
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
static uint64_t statement_of(const struct plan *plan, const struct reading *reading,
			     size_t *ret_size)
{
	uint64_t query = word_of(plan, reading->first, WORD_QUERY);

	if (query) {
		*ret_size = text_size(length_of(plan, reading->first, WORD_QUERY));
		return query;
	}
	*ret_size = text_size(reading->last_size);
	return reading->last_pointer;
}

static struct stall_error *read_texts(struct work *work)
{
	const struct plan *plan = work->plan;
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
				uint64_t pointer =
					word_of(plan, reading->first, first_word[name] + place);
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
static bool name_at(const struct plan *plan, const struct reading *reading, int name, int place,
		    char *ret)
{
	enum word word = first_word[name] + place;
	size_t length = SIZE_MAX;

	ret[0] = '\0';
	if (!word_of(plan, reading->first, word))
		return true;
	if (plan->counted[word])
		length = length_of(plan, reading->first, word);
	return stall_session_name(reading->names[name][place], reading->name_done[name][place],
				  length, ret, STALL_SESSION_NAME);
}

// Where places disagree, or one has none, it is unknown. A server keeps the name of a host apart from
// its address, and has not always both.
static void take_name(const struct plan *plan, const struct reading *reading, int name, char *ret)
{
	char first[STALL_SESSION_NAME], text[STALL_SESSION_NAME];
	bool found = false;

	ret[0] = '\0';
	for (int place = 0; place < PLACES; place++) {
		enum word word = first_word[name] + place;
		char *into = found ? text : first;

		if (plan->offset[word] < 0 ||
		    (first_word[name] == WORD_HOST && !word_of(plan, reading->first, word)))
			continue;
		if (!name_at(plan, reading, name, place, into) ||
		    (found && strcmp(first, text) != 0))
			return;
		found = true;
	}
	if (found)
		strcpy(ret, first);
}

static void take_statement(const struct plan *plan, const struct reading *reading,
			   struct stall_session *ret)
{
	bool idle = !word_of(plan, reading->first, WORD_QUERY);
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
	ret->cut = ended ? whole == STALL_SESSION_STATEMENT
			 : (idle ? reading->last_size
				 : length_of(plan, reading->first, WORD_QUERY)) > size;
	ret->last = idle;
}

static void take_age(const struct plan *plan, const struct stall_snapshot *snapshot,
		     const uint8_t *bytes, struct stall_session *ret)
{
	uint64_t start = word_of(plan, bytes, WORD_START), us = 0;
	// The capture's clocks are of its beginning; a statement can have begun since.
	uint64_t now = plan->clock == CLOCK_MONOTONIC_US ? snapshot->begun_ns : snapshot->wall_ns;

	if (plan->clock == CLOCK_REALTIME_SECONDS &&
	    (__builtin_mul_overflow(start, UINT64_C(1000000), &start) ||
	     (us = length_of(plan, bytes, WORD_START)) >= 1000000))
		return;
	if (!start || __builtin_mul_overflow(start + us, UINT64_C(1000), &start) ||
	    now > start + MAX_AGE_NS || start > now + MAX_AHEAD_NS)
		return;
	ret->age_ns = now > start ? now - start : 0;
}

static void take_session(const struct work *work, const struct reading *reading,
			 struct stall_session *ret)
{
	const struct plan *plan = work->plan;
	char *names[NAMES] = {ret->user, ret->host, ret->database, ret->state};
	uint64_t command = word_of(plan, reading->first, WORD_COMMAND);

	ret->thread = reading->thread;
	ret->connection = connection_of(plan, reading->first);
	ret->command =
		plan->offset[WORD_COMMAND] >= 0 && command <= MAX_COMMAND ? (int)command : -1;
	ret->transaction = -1;
	if (plan->offset[WORD_STATUS] >= 0)
		ret->transaction = word_of(plan, reading->first, WORD_STATUS) & IN_TRANSACTION;
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
static bool is_settled(const struct plan *plan, const struct reading *reading)
{
	for (enum word word = 0; word < WORDS; word++) {
		// A state is a constant of the program: its text is right for the first read.
		if (plan->offset[word] < 0 || word == WORD_STATUS || word == WORD_QUERY_LENGTH ||
		    word >= WORD_STATE)
			continue;
		if (word_of(plan, reading->first, word) != word_of(plan, reading->second, word))
			return false;
		if ((plan->counted[word] || word == WORD_QUERY || word == WORD_START) &&
		    length_of(plan, reading->first, word) != length_of(plan, reading->second, word))
			return false;
	}
	return true;
}

static bool is_connection(const struct work *work, const struct reading *reading)
{
	uint64_t fs_base = thread_of(work, reading)->fs_base;

	// In a pool only one of them follows the connection to another thread.
	for (enum word word = WORD_SELF; word <= WORD_SELF_3; word++)
		if (work->plan->offset[word] >= 0 &&
		    word_of(work->plan, reading->first, word) == fs_base)
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
	struct plan plan;
	_cleanup_free_ struct reading *readings = NULL;
	struct work work = {.snapshot = snapshot, .plan = &plan};

	if (!make_plan(layout, &plan)) {
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
