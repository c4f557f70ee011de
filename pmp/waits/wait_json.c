// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file_class.h"
#include "waits/wait_programs.h"

#define MAX_STACKS 16 // of waiters, and of holders, in a line

static void write_seconds(struct stall_json *json, const char *key, uint64_t ns)
{
	stall_json_member_ms(json, key, ns / 1000);
}

void stall_wait_frames_write(const char *const *frames, size_t count, struct stall_json *json)
{
	stall_json_open(json, '[');
	for (size_t i = 0; i < count; i++)
		stall_json_string(json, frames[i]);
	stall_json_close(json, ']');
}

static void write_histogram(const struct stall_wait_counts *counts, struct stall_json *json)
{
	stall_json_key(json, "histogram");
	stall_json_open(json, '[');
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++) {
		uint64_t from = UINT64_C(1) << i;

		if (!counts->bucket[i])
			continue;
		stall_json_open(json, '[');
		stall_json_uint(json, from);
		stall_json_uint(json, 2 * from - 1);
		stall_json_uint(json, counts->bucket[i]);
		stall_json_close(json, ']');
	}
	stall_json_close(json, ']');
}

static void write_counts(enum stall_watch_kind kind, const struct stall_wait_counts *counts,
			 struct stall_json *json)
{
	stall_json_member_uint(json, "count", counts->count);
	stall_json_member_ms(json, "total_ms", counts->total_ns);
	stall_json_member_ms(json, "max_ms", counts->max_ns);
	stall_json_member_uint(json, "over", counts->over);
	if (stall_wait_has_bytes(stall_watch_wait_kind(kind)))
		stall_json_member_uint(json, "bytes", counts->bytes);
	write_histogram(counts, json);
}

typedef struct stall_wait_counts sums_by_class[STALL_FILE_CLASSES];

struct writer {
	const struct stall_wait_line *line;
	struct stall_json *json;
	sums_by_class *sums; // by kind
	uint32_t in_flight[STALL_WATCH_KINDS];
};

static void write_targets(struct writer *writer)
{
	struct stall_json *json = writer->json;

	stall_json_key(json, "targets");
	stall_json_open(json, '[');
	for (size_t i = 0; i < writer->line->process_count; i++) {
		const struct stall_wait_process *process = &writer->line->processes[i];

		stall_json_open(json, '{');
		stall_json_member_int(json, "pid", process->pid);
		stall_json_member_string(json, "comm", process->comm);
		stall_json_member_string(json, "exe", process->exe);
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}

static bool is_shown(const struct writer *writer, enum stall_watch_kind kind,
		     const struct stall_wait_counts *sum)
{
	return (writer->line->kinds | STALL_WATCH_SHOWN) & 1u << kind || sum->count;
}

static void write_kinds(struct writer *writer)
{
	struct stall_json *json = writer->json;

	stall_json_key(json, "kinds");
	stall_json_open(json, '{');
	for (int kind = 0; kind < STALL_WATCH_KINDS; kind++) {
		struct stall_wait_counts sum = {};

		for (int class = 0; class < STALL_FILE_CLASSES; class ++)
			stall_wait_counts_add(&sum, &writer->sums[kind][class]);
		if (!is_shown(writer, kind, &sum))
			continue;
		stall_json_key(json, stall_watch_kind_name(kind));
		stall_json_open(json, '{');
		write_counts(kind, &sum, json);
		stall_json_member_ms(json, "threshold_ms",
				     writer->line->threshold_ns[stall_watch_wait_kind(kind)]);
		stall_json_member_uint(json, "in_flight", writer->in_flight[kind]);
		stall_json_close(json, '}');
	}
	stall_json_close(json, '}');
}

static void write_classes(struct writer *writer)
{
	struct stall_json *json = writer->json;

	stall_json_key(json, "classes");
	stall_json_open(json, '[');
	for (int kind = 0; kind < STALL_WATCH_KINDS; kind++) {
		if (stall_watch_wait_kind(kind) == STALL_WAIT_FUTEX)
			continue;
		for (int class = 0; class < STALL_FILE_CLASSES; class ++) {
			const struct stall_wait_counts *sum = &writer->sums[kind][class];

			if (!sum->count)
				continue;
			stall_json_open(json, '{');
			stall_json_member_string(json, "kind", stall_watch_kind_name(kind));
			stall_json_member_string(json, "class", stall_file_class_name(class));
			write_counts(kind, sum, json);
			stall_json_close(json, '}');
		}
	}
	stall_json_close(json, ']');
}

// The uses of all words of a lock, those of the interval alone or all; the most frequent first.
static int compare_uses(const void *a, const void *b)
{
	const struct stall_wait_use *x = a, *y = b;

	if (x->count != y->count)
		return x->count > y->count ? -1 : 1;
	if (x->total_ns != y->total_ns)
		return x->total_ns > y->total_ns ? -1 : 1;
	return (x->stack > y->stack) - (x->stack < y->stack);
}

static void merge_uses(const struct stall_wait_group *group, bool holders, bool final,
		       struct stall_wait_uses *ret)
{
	for (size_t i = 0; i < group->count; i++) {
		const struct stall_wait_entry *entry = group->entries[i];
		const struct stall_wait_uses *uses = holders ? &entry->holders : &entry->waiters;

		for (size_t j = 0; j < uses->count; j++) {
			struct stall_wait_use use = uses->uses[j];

			use.count += use.going_on;
			if (final) {
				use.count = use.all_count;
				use.total_ns = use.all_total_ns;
			}
			if (use.count || use.total_ns)
				stall_wait_uses_add(ret, &use);
		}
	}
	if (ret->count)
		qsort(ret->uses, ret->count, sizeof(*ret->uses), compare_uses);
}

static void uses_deinit(struct stall_wait_uses *uses)
{
	free(uses->uses);
}

static void write_uses(struct writer *writer, const struct stall_wait_group *group, bool holders)
{
	_cleanup_(uses_deinit) struct stall_wait_uses uses = {};
	struct stall_json *json = writer->json;

	merge_uses(group, holders, writer->line->final, &uses);
	stall_json_key(json, holders ? "holders" : "waiters");
	stall_json_open(json, '[');
	for (size_t i = 0; i < uses.count && i < MAX_STACKS; i++) {
		const struct stall_wait_use *use = &uses.uses[i];
		size_t count;
		const char *const *frames =
			stall_wait_stacks_frames(writer->line->stacks, use->stack, &count);

		stall_json_open(json, '{');
		stall_json_member_uint(json, "count", use->count);
		if (!holders)
			stall_json_member_ms(json, "total_ms", use->total_ns);
		stall_json_key(json, "frames");
		stall_wait_frames_write(frames, count, json);
		stall_json_member_string(json, "label",
					 count ? stall_label_name(use->label) : NULL);
		stall_json_member_int(json, "tid", use->tid);
		stall_json_key(json, "comm");
		stall_json_string_n(json, use->comm, strnlen(use->comm, sizeof(use->comm)));
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}

static const char *group_name(const struct stall_wait_group *group)
{
	for (size_t i = 0; i < group->count; i++)
		if (group->entries[i]->name)
			return group->entries[i]->name;
	return NULL;
}

static pid_t group_owner(const struct stall_wait_group *group)
{
	for (size_t i = 0; i < group->count; i++)
		if (group->entries[i]->owner_tid)
			return group->entries[i]->owner_tid;
	return 0;
}

static void write_name(const struct stall_wait_group *group, struct stall_json *json)
{
	const struct stall_wait_entry *entry = group->entries[0];
	const char *name = group_name(group);
	char text[64];

	stall_json_key(json, "name");
	if (!entry->by_name && stall_watch_kind_is_named(entry->kind)) {
		snprintf(text, sizeof(text), "%ss", stall_watch_kind_name(entry->kind));
		stall_json_string(json, text);
	} else if (name) {
		stall_json_string(json, name);
	} else if (stall_wait_key_is_file(&entry->key)) {
		snprintf(text, sizeof(text), "inode %" PRIu64, (uint64_t)entry->key.id);
		stall_json_string(json, text);
	} else {
		stall_json_hex(json, entry->object);
	}
	stall_json_key(json, "address");
	if (entry->object && !stall_watch_kind_is_named(entry->kind))
		stall_json_hex(json, entry->object);
	else
		stall_json_null(json);
	stall_json_member_string(json, "class",
				 stall_wait_key_is_file(&entry->key)
					 ? stall_file_class_name(entry->class)
					 : NULL);
}

static void write_group(struct writer *writer, const struct stall_wait_group *group)
{
	const struct stall_wait_entry *entry = group->entries[0];
	struct stall_json *json = writer->json;
	pid_t owner = group_owner(group);

	stall_json_open(json, '{');
	stall_json_member_string(json, "kind", stall_watch_kind_name(entry->kind));
	write_name(group, json);
	stall_json_member_int(json, "pid", entry->key.tgid);
	write_counts(entry->kind, &group->counts, json);
	stall_json_member_uint(json, "in_flight", group->in_flight);
	stall_json_member_ms(json, "longest_in_flight_ms", group->longest_ns);
	stall_json_key(json, "owner_tid");
	if (owner)
		stall_json_int(json, owner);
	else
		stall_json_null(json);
	write_uses(writer, group, false);
	write_uses(writer, group, true);
	stall_json_close(json, '}');
}

static void write_numbers(struct stall_json *json, const char *key,
			  const struct stall_wait_number *numbers, size_t count)
{
	stall_json_key(json, key);
	stall_json_open(json, '{');
	for (size_t i = 0; i < count; i++) {
		stall_json_string(json, numbers[i].name);
		stall_json_colon(json);
		stall_json_uint(json, numbers[i].count);
	}
	stall_json_close(json, '}');
}

static void write_server(const struct stall_wait_line *line, struct stall_json *json)
{
	stall_json_key(json, "server");
	stall_json_open(json, '{');
	for (size_t i = 0; i < line->server_count; i++) {
		stall_json_string(json, line->server[i].name);
		stall_json_colon(json);
		stall_json_open(json, '{');
		stall_json_member_uint(json, "count", line->server[i].count);
		stall_json_member_bool(json, "event", line->server[i].event);
		stall_json_close(json, '}');
	}
	stall_json_close(json, '}');
}

static void write_rest(const struct stall_wait_rest *rest, struct stall_json *json)
{
	stall_json_key(json, "rest");
	stall_json_open(json, '{');
	stall_json_member_bool(json, "resting", rest->resting);
	stall_json_member_ms(json, "interval_ms", rest->interval_ns);
	stall_json_member_uint(json, "threads", rest->threads);
	stall_json_member_uint(json, "arms", rest->arms);
	stall_json_member_uint(json, "refused", rest->refused);
	stall_json_member_string(json, "why", rest->why);
	stall_json_close(json, '}');
}

static void count_in_flight(struct writer *writer)
{
	const struct stall_wait_entry *entry;

	for (size_t i = 0; (entry = stall_wait_table_at(writer->line->table, i)); i++)
		writer->in_flight[entry->kind] += entry->in_flight_over;
}

static void write_line(struct writer *writer)
{
	const struct stall_wait_line *line = writer->line;
	struct stall_json *json = writer->json;

	stall_json_open(json, '{');
	stall_json_member_string(json, "type", "waits");
	stall_json_member_string(json, "schema", "stallscope.waits/1");
	write_seconds(json, "ts", line->wall_ns);
	write_seconds(json, "seconds", line->length_ns);
	if (line->final)
		stall_json_member_bool(json, "final", true);
	write_targets(writer);
	stall_json_member_string(json, "source", line->source);
	stall_json_member_string(json, "in_flight_by", line->in_flight_by);
	if (line->sampling) {
		stall_json_member_bool(json, "sampled", true);
		stall_json_member_uint(json, "interval_ns", line->sampling->interval_ns);
		stall_json_member_uint(json, "longest_interval_ns",
				       line->final ? line->sampling->worst_ns
						   : line->sampling->longest_ns);
	}
	if (line->call_added_ns >= 0)
		stall_json_member_int(json, "call_added_ns", line->call_added_ns);
	if (line->rest)
		write_rest(line->rest, json);
	write_kinds(writer);
	write_classes(writer);
	stall_json_key(json, "keys");
	stall_json_open(json, '[');
	for (size_t i = 0; i < line->top->count; i++)
		write_group(writer, &line->top->groups[i]);
	stall_json_close(json, ']');
	if (line->events) {
		stall_json_key(json, "events");
		stall_json_raw(json, line->events->data, line->events->size);
	}
	if (line->server_count)
		write_server(line, json);
	if (line->history) {
		stall_json_key(json, "history");
		stall_wait_history_write(line->history, json);
	}
	write_numbers(json, "lost", line->lost, line->lost_count);
	if (line->program_count)
		stall_wait_programs_write(line->programs, line->program_count, json);
	stall_json_close(json, '}');
}

struct stall_error *stall_wait_line_write(const struct stall_wait_line *line,
					  struct stall_json *json)
{
	_cleanup_free_ sums_by_class *sums = calloc(STALL_WATCH_KINDS, sizeof(*sums));
	struct writer writer = {.line = line, .json = json, .sums = sums};

	if (!sums)
		return &stall_enomem;
	stall_wait_table_sum(line->table, line->final, sums);
	count_in_flight(&writer);
	write_line(&writer);
	return json->failed ? &stall_enomem : NULL;
}
