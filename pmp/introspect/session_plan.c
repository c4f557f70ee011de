// SPDX-License-Identifier: Apache-2.0
#include "introspect/session_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OFFSET (1 << 20)   // in an object
#define MAX_DISTANCE (1 << 20) // of the place from the thread control block
// Fields nearer than this are read at once: a page costs as much as a byte of it.
#define MERGE_GAP 1024

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

static bool in_object(int64_t offset)
{
	return offset >= 0 && offset < MAX_OFFSET;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct stall_session_range *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

static void plan_ranges(struct stall_session_plan *plan)
{
	struct stall_session_range fields[WORDS];
	size_t count = 0;

	for (int i = 0; i < WORDS; i++)
		if (plan->offset[i] >= 0)
			fields[count++] = (struct stall_session_range){plan->offset[i], 16};
	qsort(fields, count, sizeof(*fields), compare_ranges);
	for (size_t i = 0; i < count; i++) {
		struct stall_session_range *last =
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
bool stall_session_plan_make(const struct stall_layout *layout, struct stall_session_plan *ret)
{
	int64_t value;

	*ret = (struct stall_session_plan){.last_second = -1,
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

uint64_t stall_session_word_of(const struct stall_session_plan *plan, const uint8_t *bytes,
			       enum stall_session_word word)
{
	uint64_t value = 0;

	if (plan->offset[word] < 0)
		return 0;
	for (size_t i = 0; i < plan->range_count; i++) {
		const struct stall_session_range *range = &plan->ranges[i];
		int64_t within = plan->offset[word] - range->offset;

		if (within >= 0 && within + 8 <= range->size) {
			memcpy(&value, bytes + within, word_keys[word].wide ? 8 : 4);
			return value;
		}
		bytes += range->size;
	}
	return 0;
}

uint32_t stall_session_length_of(const struct stall_session_plan *plan, const uint8_t *bytes,
				 enum stall_session_word word)
{
	for (size_t i = 0; i < plan->range_count; i++) {
		const struct stall_session_range *range = &plan->ranges[i];
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
