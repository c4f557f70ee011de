// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_history.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/syscall_names.h"

#define MAX_DISTINCT 1024 // rows of a moment, before the largest are chosen
#define BUCKETS 2048	  // a power of two
#define MAX_TEXT 65536	  // of all names of a moment

struct counted {
	struct stall_history_row row;
	uint64_t hash;
	uint32_t count;
};

struct sample {
	char *text; // JSON
	size_t size;
};

struct stall_wait_history {
	// The moment that is being sampled.
	struct counted rows[MAX_DISTINCT];
	uint16_t buckets[BUCKETS]; // index of a row, and 1
	size_t row_count;
	uint64_t threads, others; // without a row
	char text[MAX_TEXT];
	size_t text_size;
	struct stall_json json; // of a sample
	struct sample samples[STALL_HISTORY_SAMPLES];
	size_t first, count;
};

struct stall_error *stall_wait_history_create(struct stall_wait_history **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? NULL : &stall_enomem;
}

void stall_wait_history_destroy(struct stall_wait_history *history)
{
	if (!history)
		return;
	for (size_t i = 0; i < STALL_HISTORY_SAMPLES; i++)
		free(history->samples[i].text);
	stall_json_deinit(&history->json);
	free(history);
}

void stall_wait_history_begin(struct stall_wait_history *history)
{
	memset(history->buckets, 0, sizeof(history->buckets));
	history->row_count = history->text_size = 0;
	history->threads = history->others = 0;
}

/* Counting. */

static uint64_t hash_text(uint64_t hash, const char *text)
{
	for (; text && *text; text++)
		hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3); // FNV-1a
	return (hash ^ 0x100) * UINT64_C(0x100000001b3);
}

static uint64_t hash_row(const struct stall_history_row *row)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)row->kind << 40 ^
			(uint64_t)(uint32_t)row->call << 8 ^ (unsigned char)row->state;

	hash = hash_text(hash_text(hash, row->name), row->channel);
	return hash ^ hash >> 32;
}

static bool is_same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

static bool is_same(const struct stall_history_row *a, const struct stall_history_row *b)
{
	return a->state == b->state && a->call == b->call && a->kind == b->kind &&
	       is_same_text(a->name, b->name) && is_same_text(a->channel, b->channel);
}

// False: there is no room.
static bool keep_text(struct stall_wait_history *history, const char **text)
{
	if (!*text)
		return true;
	size_t size = strlen(*text) + 1;
	if (size > sizeof(history->text) - history->text_size)
		return false;
	char *kept = history->text + history->text_size;
	memcpy(kept, *text, size);
	history->text_size += size;
	*text = kept;
	return true;
}

// NULL: there is no room.
static struct counted *add_row(struct stall_wait_history *history,
			       const struct stall_history_row *row, uint64_t hash)
{
	if (history->row_count == MAX_DISTINCT)
		return NULL;
	struct counted *counted = &history->rows[history->row_count];
	*counted = (struct counted){.row = *row, .hash = hash};
	if (!keep_text(history, &counted->row.name) || !keep_text(history, &counted->row.channel))
		return NULL;
	history->row_count++;
	return counted;
}

void stall_wait_history_add(struct stall_wait_history *history, const struct stall_history_row *row)
{
	uint64_t hash = hash_row(row);
	size_t at = hash % BUCKETS;
	struct counted *counted;

	history->threads++;
	for (; history->buckets[at]; at = (at + 1) % BUCKETS) {
		counted = &history->rows[history->buckets[at] - 1];
		if (counted->hash == hash && is_same(&counted->row, row)) {
			counted->count++;
			return;
		}
	}
	counted = add_row(history, row, hash);
	if (!counted) {
		history->others++;
		return;
	}
	counted->count = 1;
	history->buckets[at] = history->row_count;
}

/* JSON. */

static int compare_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) : (a != NULL) - (b != NULL);
}

// The largest first; of equal ones always the same.
static int compare_counted(const void *a, const void *b)
{
	const struct counted *x = a, *y = b;

	if (x->count != y->count)
		return x->count > y->count ? -1 : 1;
	if (x->row.state != y->row.state)
		return x->row.state < y->row.state ? -1 : 1;
	if (x->row.call != y->row.call)
		return x->row.call < y->row.call ? -1 : 1;
	if (x->row.kind != y->row.kind)
		return x->row.kind < y->row.kind ? -1 : 1;
	int order = compare_text(x->row.name, y->row.name);
	return order ? order : compare_text(x->row.channel, y->row.channel);
}

static void write_call(int32_t number, struct stall_json *json)
{
	const char *name = stall_syscall_name(number);
	char text[24];

	if (number >= 0 && !name) {
		snprintf(text, sizeof(text), "syscall_%d", number);
		name = text;
	}
	stall_json_member_string(json, "call", name);
}

static void write_row(const struct counted *counted, struct stall_json *json)
{
	const struct stall_history_row *row = &counted->row;
	const char state[2] = {row->state};

	stall_json_open(json, '{');
	stall_json_member_uint(json, "count", counted->count);
	stall_json_member_string(json, "state", row->state ? state : NULL);
	write_call(row->call, json);
	stall_json_member_string(json, "kind",
				 row->kind == STALL_WATCH_KINDS ? NULL
								: stall_watch_kind_name(row->kind));
	stall_json_member_string(json, "name", row->name);
	stall_json_member_string(json, "channel", row->channel);
	stall_json_close(json, '}');
}

static void write_sample(struct stall_wait_history *history, uint64_t wall_ns,
			 struct stall_json *json)
{
	struct counted others = {.row = {.call = -1, .kind = STALL_WATCH_KINDS},
				 .count = history->others};

	qsort(history->rows, history->row_count, sizeof(history->rows[0]), compare_counted);
	stall_json_open(json, '{');
	stall_json_member_uint(json, "time_ns", wall_ns);
	stall_json_member_uint(json, "threads", history->threads);
	stall_json_key(json, "rows");
	stall_json_open(json, '[');
	for (size_t i = 0; i < history->row_count; i++) {
		if (i < STALL_HISTORY_ROWS)
			write_row(&history->rows[i], json);
		else
			others.count += history->rows[i].count;
	}
	if (others.count)
		write_row(&others, json);
	stall_json_close(json, ']');
	stall_json_close(json, '}');
}

// A new one, or the oldest.
static struct sample *next_sample(struct stall_wait_history *history)
{
	size_t at = (history->first + history->count) % STALL_HISTORY_SAMPLES;

	if (history->count < STALL_HISTORY_SAMPLES)
		history->count++;
	else
		history->first = (history->first + 1) % STALL_HISTORY_SAMPLES;
	return &history->samples[at];
}

struct stall_error *stall_wait_history_end(struct stall_wait_history *history, uint64_t wall_ns)
{
	struct stall_json *json = &history->json;

	json->size = 0;
	json->comma = json->failed = false;
	write_sample(history, wall_ns, json);
	char *text = json->failed ? NULL : malloc(json->size);
	if (!text)
		return &stall_enomem;
	memcpy(text, json->data, json->size);
	struct sample *sample = next_sample(history);
	free(sample->text);
	*sample = (struct sample){.text = text, .size = json->size};
	return NULL;
}

void stall_wait_history_write(struct stall_wait_history *history, struct stall_json *json)
{
	stall_json_open(json, '[');
	for (size_t i = 0; i < history->count; i++) {
		struct sample *sample =
			&history->samples[(history->first + i) % STALL_HISTORY_SAMPLES];
		stall_json_raw(json, sample->text, sample->size);
		free(sample->text);
		*sample = (struct sample){};
	}
	stall_json_close(json, ']');
	history->first = history->count = 0;
}
