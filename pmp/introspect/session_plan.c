// SPDX-License-Identifier: Apache-2.0
#include "introspect/session_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OFFSET (1 << 20)   // in an object
#define MAX_DISTANCE (1 << 20) // of the place from the thread control block
// Fields nearer than this are read at once: one read more takes as long as copying this.
#define MERGE_GAP 2048
// What is not always needed is read where this is all that it adds.
#define SMALL_GAP 64
#define FIELD_SIZE 16 // a pointer and its length

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
	[WORD_IDLE] = {"thd.idle", true},
	[WORD_LAST] = {"thd.last", true},
	[WORD_BEGUN] = {"thd.last#begun", true},
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

static bool in_object(int64_t offset)
{
	return offset >= 0 && offset < MAX_OFFSET;
}

struct field {
	enum stall_session_word word;
	uint32_t offset;
};

static int compare_fields(const void *a, const void *b)
{
	const struct field *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

// Without these a connection can still be distinguished from another object, most of the time.
static bool is_spare(enum stall_session_word word)
{
	return word == WORD_SELF_2 || word == WORD_SELF_3;
}

// What has to be the same behind the texts. If it is known when a statement began, then that, the
// command and the pointers say enough; if not, everything that does not change during a statement
// has to.
static bool is_read_again(const struct stall_session_plan *plan, enum stall_session_word word)
{
	if (is_spare(word) || word == WORD_STATUS || word >= WORD_STATE)
		return false;
	return plan->offset[WORD_START] < 0 || word == WORD_START || word == WORD_COMMAND ||
	       word == WORD_QUERY || word >= WORD_USER;
}

static void add_field(struct stall_session_ranges *ranges, const struct field *field)
{
	struct stall_session_range *last =
		ranges->count ? &ranges->ranges[ranges->count - 1] : NULL;
	uint32_t end = field->offset + FIELD_SIZE;

	if (last && field->offset <= last->offset + last->size + MERGE_GAP) {
		if (end > last->offset + last->size)
			last->size = end - last->offset;
	} else {
		ranges->ranges[ranges->count++] =
			(struct stall_session_range){field->offset, FIELD_SIZE};
	}
}

static void add_spare(struct stall_session_ranges *ranges, uint32_t offset)
{
	for (size_t i = 0; i < ranges->count; i++) {
		struct stall_session_range *range = &ranges->ranges[i];

		if (offset < range->offset && offset + FIELD_SIZE + SMALL_GAP >= range->offset) {
			range->size += range->offset - offset;
			range->offset = offset;
			return;
		}
	}
}

// Reads the start first: if it is the same behind the texts, nothing else began in between.
static void begin_with_start(const struct stall_session_plan *plan,
			     struct stall_session_ranges *ranges)
{
	for (size_t i = 0; i < ranges->count; i++) {
		struct stall_session_range range = ranges->ranges[i];

		if (plan->offset[WORD_START] < range.offset ||
		    plan->offset[WORD_START] >= range.offset + range.size)
			continue;
		memmove(&ranges->ranges[1], &ranges->ranges[0], i * sizeof(range));
		ranges->ranges[0] = range;
	}
}

static void place_words(const struct stall_session_plan *plan, struct stall_session_ranges *ranges)
{
	size_t before = 0;

	for (int word = 0; word < WORDS; word++)
		ranges->place[word] = -1;
	for (size_t i = 0; i < ranges->count; i++) {
		const struct stall_session_range *range = &ranges->ranges[i];

		for (int word = 0; word < WORDS; word++) {
			int64_t within = plan->offset[word] - range->offset;

			if (plan->offset[word] >= 0 && within >= 0 &&
			    within + FIELD_SIZE <= range->size)
				ranges->place[word] = (int32_t)(before + within);
		}
		before += range->size;
	}
	ranges->size = before;
}

static void plan_ranges(struct stall_session_plan *plan)
{
	struct field fields[WORDS];
	size_t count = 0;

	for (int word = 0; word < WORDS; word++)
		if (plan->offset[word] >= 0)
			fields[count++] = (struct field){word, plan->offset[word]};
	qsort(fields, count, sizeof(*fields), compare_fields);
	for (size_t i = 0; i < count; i++) {
		if (!is_spare(fields[i].word))
			add_field(&plan->first, &fields[i]);
		if (is_read_again(plan, fields[i].word))
			add_field(&plan->again, &fields[i]);
	}
	for (size_t i = 0; i < count; i++)
		if (is_spare(fields[i].word))
			add_spare(&plan->first, fields[i].offset);
	begin_with_start(plan, &plan->first);
	place_words(plan, &plan->first);
	place_words(plan, &plan->again);
}

// False: the layout has not what is needed.
bool stall_session_plan_make(const struct stall_layout *layout, struct stall_session_plan *ret)
{
	int64_t value;

	*ret = (struct stall_session_plan){.last_second = -1,
					   .last_delta = -1,
					   .last_length = -1,
					   .last_begun = -1,
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
	if (stall_layout_get(layout, "thd.last.1#begun", &value) && in_object(value))
		ret->last_begun = value;
	if (stall_layout_get(layout, "thd.trx.1", &value) && in_object(value))
		ret->trx_second = value;
	if (stall_layout_get(layout, "thd.trx#id", &value) && in_object(value))
		ret->trx_id = value;
	if (stall_layout_get(layout, "thd.start#clock", &value))
		ret->clock = value;
	if (stall_layout_get(layout, "thd.idle#clock", &value))
		ret->idle_clock = value;
	plan_ranges(ret);
	return ret->offset[WORD_SELF] >= 0 && ret->offset[WORD_ID] >= 0;
}

static uint64_t word_at(const uint8_t *bytes, int32_t place, enum stall_session_word word)
{
	uint64_t value = 0;

	if (place >= 0)
		memcpy(&value, bytes + place, word_keys[word].wide ? 8 : 4);
	return value;
}

static uint32_t length_at(const uint8_t *bytes, int32_t place)
{
	uint32_t value = 0;

	if (place >= 0)
		memcpy(&value, bytes + place + 8, sizeof(value));
	return value;
}

uint64_t stall_session_word_of(const struct stall_session_plan *plan, const uint8_t *bytes,
			       enum stall_session_word word)
{
	return word_at(bytes, plan->first.place[word], word);
}

uint32_t stall_session_length_of(const struct stall_session_plan *plan, const uint8_t *bytes,
				 enum stall_session_word word)
{
	return length_at(bytes, plan->first.place[word]);
}

bool stall_session_is_same(const struct stall_session_plan *plan, const uint8_t *first,
			   const uint8_t *again)
{
	for (enum stall_session_word word = 0; word < WORD_STATE; word++) {
		int32_t was = plan->first.place[word], is = plan->again.place[word];

		// A state is a constant of the program: its text is right for the first read.
		if (was < 0 || is < 0 || word == WORD_STATUS || word == WORD_QUERY_LENGTH)
			continue;
		if (word_at(first, was, word) != word_at(again, is, word))
			return false;
		if ((plan->counted[word] || word == WORD_QUERY || word == WORD_START) &&
		    length_at(first, was) != length_at(again, is))
			return false;
	}
	return true;
}
