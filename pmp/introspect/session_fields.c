// SPDX-License-Identifier: Apache-2.0
#include "introspect/session_fields.h"

#include <string.h>

#include "introspect/session_text.h"

#define COMMAND_SLEEP 0
#define MAX_COMMAND 255
#define IN_TRANSACTION 1		    // SERVER_STATUS_IN_TRANS, mysql_com.h
#define MAX_TRANSACTION (UINT64_C(1) << 48) // six bytes in InnoDB's rows
#define MAX_BEGUN_US 5000		    // between two clock reads at the start of a statement
#define MAX_AGE_NS (UINT64_C(400) * 86400 * 1000000000)
// A capture takes some seconds; what begins later than that has the time of a clock that was set.
#define MAX_AHEAD_NS (UINT64_C(60) * 1000000000)

static const enum stall_session_word first_word[STALL_SESSION_NAMES] = {WORD_USER, WORD_HOST,
									WORD_DATABASE, WORD_STATE};

enum stall_session_word stall_session_name_word(int name, int place)
{
	return first_word[name] + place;
}

uint64_t stall_session_connection(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	return stall_session_word_of(plan, bytes, WORD_ID);
}

bool stall_session_numbers_agree(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	uint64_t id = stall_session_connection(plan, bytes);

	for (enum stall_session_word word = WORD_ID_2; word <= WORD_ID_3; word++)
		if (plan->offset[word] >= 0 && stall_session_word_of(plan, bytes, word) != id)
			return false;
	return true;
}

bool stall_session_knows_start(const struct stall_session_plan *plan)
{
	return plan->offset[WORD_START] >= 0;
}

bool stall_session_is_idle(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	return plan->offset[WORD_COMMAND] >= 0 && plan->offset[WORD_QUERY] >= 0 &&
	       stall_session_word_of(plan, bytes, WORD_COMMAND) == COMMAND_SLEEP &&
	       !stall_session_word_of(plan, bytes, WORD_QUERY);
}

// The last statement was begun when the connection's last command was: else it is not its own.
static bool is_own_last(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	uint64_t begun = stall_session_word_of(plan, bytes, WORD_BEGUN) / 1000;
	uint64_t start = stall_session_word_of(plan, bytes, WORD_START);

	if (plan->offset[WORD_BEGUN] < 0)
		return true;
	return plan->clock != CLOCK_REALTIME_SECONDS && begun <= start + MAX_BEGUN_US &&
	       start <= begun + MAX_BEGUN_US;
}

uint64_t stall_session_last(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	if (!stall_session_knows_start(plan) || !stall_session_is_idle(plan, bytes) ||
	    !is_own_last(plan, bytes))
		return 0;
	return stall_session_word_of(plan, bytes, WORD_LAST);
}

bool stall_session_has_begun(const struct stall_session_plan *plan,
			     const struct stall_session_reading *reading)
{
	if (plan->last_begun < 0 || plan->offset[WORD_BEGUN] < 0)
		return true;
	return reading->begun_done == sizeof(reading->begun) &&
	       reading->begun == stall_session_word_of(plan, reading->first, WORD_BEGUN);
}

bool stall_session_in_transaction(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	return stall_session_word_of(plan, bytes, WORD_STATUS) & IN_TRANSACTION;
}

bool stall_session_has_ended(const struct stall_session_plan *plan, const uint8_t *bytes)
{
	bool known = false;

	for (enum stall_session_word word = WORD_USER; word <= WORD_USER_3; word++) {
		if (stall_session_word_of(plan, bytes, word))
			return false;
		known |= plan->offset[word] >= 0;
	}
	return known && stall_session_is_idle(plan, bytes);
}

static size_t text_size(uint32_t length)
{
	return length < STALL_SESSION_STATEMENT ? length : STALL_SESSION_STATEMENT;
}

uint64_t stall_session_statement(const struct stall_session_plan *plan,
				 const struct stall_session_reading *reading, size_t *ret_size)
{
	uint64_t query = stall_session_word_of(plan, reading->first, WORD_QUERY);

	if (query) {
		*ret_size = text_size(stall_session_length_of(plan, reading->first, WORD_QUERY));
		return query;
	}
	*ret_size = text_size(reading->last_size);
	return reading->last_pointer;
}

void stall_session_compare_texts(struct stall_session_reading *reading)
{
	if (reading->text)
		reading->text_differs |= reading->again_done != reading->text_done ||
					 memcmp(reading->text + reading->text_size, reading->text,
						reading->text_done) != 0;
}

// Whether this text has the length that was read beside its pointer: servers put a zero behind it.
static bool has_length(const struct stall_session_reading *reading, size_t size)
{
	return !memchr(reading->text, '\0', size) &&
	       (size == STALL_SESSION_STATEMENT || !reading->text[size]);
}

// False: the text of this place is not known. "" where it has none.
static bool name_at(const struct stall_session_plan *plan,
		    const struct stall_session_reading *reading, int name, int place, char *ret)
{
	enum stall_session_word word = stall_session_name_word(name, place);
	const struct stall_session_slot *slot = reading->names[name][place];
	size_t length = SIZE_MAX;

	ret[0] = '\0';
	if (!stall_session_word_of(plan, reading->first, word))
		return true;
	if (!slot)
		return false;
	if (plan->counted[word])
		length = stall_session_length_of(plan, reading->first, word);
	return stall_session_name(slot->text, slot->done, length, ret, STALL_SESSION_NAME);
}

// Where places disagree, or one has none, it is unknown. A server keeps the name of a host apart from
// its address, and has not always both.
static void take_name(const struct stall_session_plan *plan,
		      const struct stall_session_reading *reading, int name, char *ret)
{
	char first[STALL_SESSION_NAME], text[STALL_SESSION_NAME];
	bool found = false;

	ret[0] = '\0';
	for (int place = 0; place < STALL_SESSION_PLACES; place++) {
		char *into = found ? text : first;

		if (plan->offset[stall_session_name_word(name, place)] < 0)
			continue;
		if (!name_at(plan, reading, name, place, into))
			return;
		if (name == NAME_HOST && !into[0])
			continue;
		if (found && strcmp(first, text) != 0)
			return;
		found = true;
	}
	if (found)
		strcpy(ret, first);
}

static void take_statement(const struct stall_session_plan *plan,
			   const struct stall_session_reading *reading, struct stall_session *ret)
{
	bool idle = !stall_session_word_of(plan, reading->first, WORD_QUERY);
	bool knows_start = stall_session_knows_start(plan);
	size_t size, whole = reading->text_done;
	uint64_t pointer = stall_session_statement(plan, reading, &size);
	bool ended = idle && reading->last_size == UINT32_MAX; // with a zero

	if (!pointer || !size || !reading->text)
		return;
	if (ended) {
		whole = strnlen(reading->text,
				size < reading->text_done ? size : reading->text_done);
		if ((whole == reading->text_done && whole < STALL_SESSION_STATEMENT) ||
		    !stall_session_is_text(reading->text, whole))
			return;
	} else if (reading->text_done != size + !knows_start) {
		return;
	} else if (!knows_start) {
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

// Nanoseconds since a word that is a time; UINT64_MAX where it is none.
static uint64_t age_of(const struct stall_session_plan *plan, const struct stall_snapshot *snapshot,
		       const uint8_t *bytes, enum stall_session_word word, int64_t clock)
{
	uint64_t start = stall_session_word_of(plan, bytes, word), us = 0;
	// The capture's clocks are of its beginning; a statement can have begun since.
	uint64_t now = clock == CLOCK_MONOTONIC_US ? snapshot->begun_ns : snapshot->wall_ns;

	if (clock == CLOCK_REALTIME_SECONDS &&
	    (__builtin_mul_overflow(start, UINT64_C(1000000), &start) ||
	     (us = stall_session_length_of(plan, bytes, word)) >= 1000000))
		return UINT64_MAX;
	if (!start || __builtin_mul_overflow(start + us, UINT64_C(1000), &start) ||
	    now > start + MAX_AGE_NS || start > now + MAX_AHEAD_NS)
		return UINT64_MAX;
	return now > start ? now - start : 0;
}

// Since when the statement runs, or the connection is idle: since its last statement ended, or since
// a later command that is no statement.
static uint64_t take_age(const struct stall_session_plan *plan,
			 const struct stall_snapshot *snapshot, const uint8_t *bytes)
{
	uint64_t age = age_of(plan, snapshot, bytes, WORD_START, plan->clock), idle;

	if (plan->offset[WORD_IDLE] < 0 || !stall_session_is_idle(plan, bytes))
		return age;
	idle = age_of(plan, snapshot, bytes, WORD_IDLE, plan->idle_clock);
	return idle < age ? idle : age;
}

void stall_session_take(const struct stall_session_plan *plan,
			const struct stall_snapshot *snapshot,
			const struct stall_session_reading *reading, struct stall_session *ret)
{
	char *names[STALL_SESSION_NAMES] = {ret->user, ret->host, ret->database, ret->state};
	uint64_t command = stall_session_word_of(plan, reading->first, WORD_COMMAND);

	ret->thread = reading->thread;
	ret->connection = stall_session_connection(plan, reading->first);
	ret->command =
		plan->offset[WORD_COMMAND] >= 0 && command <= MAX_COMMAND ? (int)command : -1;
	ret->transaction = -1;
	if (plan->offset[WORD_STATUS] >= 0)
		ret->transaction = stall_session_in_transaction(plan, reading->first);
	// The object of a transaction is kept when it ends.
	if (ret->transaction == 1 && reading->trx_id < MAX_TRANSACTION)
		ret->transaction_id = reading->trx_id;
	ret->age_ns = take_age(plan, snapshot, reading->first);
	for (int name = 0; name < STALL_SESSION_NAMES; name++)
		take_name(plan, reading, name, names[name]);
	// The state of its last statement may still be there.
	if (ret->command == COMMAND_SLEEP)
		ret->state[0] = '\0';
	take_statement(plan, reading, ret);
}
