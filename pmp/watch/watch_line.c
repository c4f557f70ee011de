// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_line.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "watch/watch_learn.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"
#include "watch/watch_stats.h"

static void find_owner(const struct stall_watch *watch, struct stall_wait_entry *entry)
{
	struct stall_wait_process *process =
		stall_wait_processes_find(&watch->processes, entry->key.tgid);
	struct stall_futex futex;

	if (!process || !entry->has_lock || !entry->in_flight ||
	    !watch->source.calls->read_word(watch->source.state, process, &entry->key, &futex))
		return;
	entry->owner_tid = stall_wait_owner(process, &entry->lock_wait, entry->lock_name, &futex);
}

static void find_owners(const struct stall_watch *watch, const struct stall_wait_top *top)
{
	for (size_t i = 0; i < top->count; i++)
		for (size_t j = 0; j < top->groups[i].count; j++)
			find_owner(watch, top->groups[i].entries[j]);
}

// Files whose first record was lost.
static struct stall_error *find_names(const struct stall_watch *watch,
				      const struct stall_wait_top *top)
{
	for (size_t i = 0; i < top->count; i++) {
		struct stall_wait_entry *entry = top->groups[i].entries[0];
		const struct stall_wait_process *process =
			stall_wait_processes_find(&watch->processes, entry->key.tgid);
		bool deleted = false;

		if (entry->name || !entry->key.id2 || !process ||
		    !stall_wait_key_is_file(&entry->key))
			continue;
		struct stall_error *err =
			stall_wait_file_search(stall_watch_target(process), &entry->key,
					       &entry->name, &deleted);
		if (err)
			return err;
		if (entry->name)
			entry->class = stall_file_class(entry->name, deleted);
	}
	return NULL;
}

static size_t fill_lost(struct stall_watch *watch, struct stall_wait_number *ret)
{
	const struct stall_wait_unwound_counts unwound =
		stall_wait_unwinder_counts(watch->unwinder);
	uint64_t lost[STALL_LOST_CAUSES];
	size_t count = 0;

	watch->lost[STALL_WATCH_LOST_NOT_UNWOUND] = unwound.over_limit;
	watch->lost[STALL_WATCH_LOST_UNWINDING_FAILED] = unwound.failed;
	watch->lost[STALL_WATCH_LOST_STACKS_FULL] = unwound.no_room;
	watch->source.calls->lost(watch->source.state, lost);
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		ret[count++] = (struct stall_wait_number){stall_wait_lost_name(i), lost[i]};
	for (int i = 0; i < STALL_WATCH_LOST_CAUSES; i++)
		ret[count++] = (struct stall_wait_number){stall_watch_lost_name(i), watch->lost[i]};
	return count;
}

static struct stall_error *write_line(struct stall_watch *watch, bool final, uint64_t now_ns,
				      const struct stall_wait_top *top, struct stall_json *json)
{
	struct stall_wait_number lost[STALL_LOST_CAUSES + STALL_WATCH_LOST_CAUSES];
	const struct stall_wait_source *source = &watch->source;
	_cleanup_free_ struct stall_wait_program *programs = NULL;
	_cleanup_free_ struct stall_wait_number *functions = NULL;
	uint64_t thresholds[STALL_WAIT_KINDS];
	struct stall_wait_sampling sampling;
	bool is_sampled =
		source->calls->sampling && source->calls->sampling(source->state, &sampling);
	struct stall_wait_line line = {
		.final = final,
		.wall_ns = stall_clock_ns(CLOCK_REALTIME),
		.length_ns = now_ns - (final ? watch->started_ns : watch->line_ns),
		.processes = watch->processes.processes,
		.process_count = watch->processes.count,
		.source = source->calls->name,
		.in_flight_by = source->calls->in_flight_by(source->state),
		.sampling = is_sampled ? &sampling : NULL,
		.kinds = watch->options.kinds,
		.threshold_ns = thresholds,
		.table = watch->table,
		.stacks = watch->stacks,
		.top = top,
		.lost = lost,
		.lost_count = fill_lost(watch, lost),
	};

	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		thresholds[i] = source->calls->threshold(source->state, 0, i);
	struct stall_error *err = NULL;
	if (source->calls->functions)
		err = source->calls->functions(source->state, &functions, &line.server_count);
	if (!err && !watch->probes_written)
		err = source->calls->programs(source->state, &programs, &line.program_count);
	if (err)
		return err;
	line.server = functions;
	line.programs = programs;
	if (watch->options.events) {
		stall_json_close(&watch->events, ']');
		if (watch->events.failed)
			return &stall_enomem;
		line.events = &watch->events;
	}
	return stall_wait_line_write(&line, json);
}

static void next_line(struct stall_watch *watch, uint64_t now_ns)
{
	stall_wait_table_next(watch->table);
	watch->line_ns = now_ns;
	watch->line++;
	watch->probes_written = true;
	watch->event_count = 0;
	if (!watch->options.events)
		return;
	watch->events.size = 0;
	watch->events.comma = false;
	stall_json_open(&watch->events, '[');
}

// A program that runs for months meets more stacks than there is room for. Those of the totals are
// forgotten then, so that there is room for those of the next stall.
static struct stall_error *renew_stacks(struct stall_watch *watch)
{
	struct stall_wait_stacks *stacks;
	struct stall_wait_entry *entry;

	if (!stall_wait_stacks_is_full(watch->stacks))
		return NULL;
	struct stall_error *err = stall_wait_stacks_create(&stacks);
	if (err)
		return err;
	stall_wait_unwinder_set_stacks(watch->unwinder, stacks);
	stall_wait_stacks_destroy(watch->stacks);
	watch->stacks = stacks;
	for (size_t i = 0; (entry = stall_wait_table_at(watch->table, i)); i++)
		entry->waiters.count = entry->holders.count = 0;
	memset(&watch->wakers, 0, sizeof(watch->wakers));
	memset(watch->counted, 0, 2 * watch->slot_count * sizeof(*watch->counted));
	return NULL;
}

struct stall_error *stall_watch_write(struct stall_watch *watch, bool final,
				      struct stall_json *json)
{
	_cleanup_(stall_wait_top_deinit) struct stall_wait_top top = {};
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	size_t used;
	struct stall_error *err = stall_watch_collect_stats(watch, now_ns, &used);

	if (err)
		return err;
	stall_watch_count_in_flight(watch, now_ns);
	err = stall_watch_learn_in_flight(watch);
	if (err)
		return err;
	err = stall_wait_top_init(&top, watch->table, watch->options.kinds, final,
				  watch->options.top);
	if (!err)
		err = find_names(watch, &top);
	if (err)
		return err;
	find_owners(watch, &top);
	err = write_line(watch, final, now_ns, &top, json);
	if (err)
		return err;
	next_line(watch, now_ns);
	err = renew_stacks(watch);
	return err ? err : stall_watch_retire_stats(watch, now_ns, used);
}
