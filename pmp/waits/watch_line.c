// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "waits/watch_state.h"

// A stat that nothing has used for so long is given back: sooner where most are taken.
#define QUIET_NS UINT64_C(60000000000)
#define QUIET_FULL_NS UINT64_C(2000000000)

static const char *const loss_names[STALL_WATCH_LOSSES] = {
	[STALL_WATCH_LOST_UNWIND] = "not-unwound", [STALL_WATCH_LOST_FAILED] = "unwinding-failed",
	[STALL_WATCH_LOST_STACKS] = "stacks-full", [STALL_WATCH_LOST_USES] = "stacks-of-key-full",
	[STALL_WATCH_LOST_ENTRIES] = "table-full", [STALL_WATCH_LOST_EVENTS] = "events-full",
};

// What a stat says of its lock or file, beside its counts.
static struct stall_error *take_stat(struct stall_watch *watch, const struct stall_wait_stat *stat)
{
	struct stall_wait_entry *entry = stall_wait_table_find(watch->table, &stat->key);

	if (!entry)
		return NULL;
	if (watch->source.calls->has_objects)
		entry->told = stat->role;
	return stall_watch_find_file(watch, entry);
}

// Takes in all stats. *ret_used: how many there are.
static struct stall_error *collect(struct stall_watch *watch, uint64_t now_ns, size_t *ret_used)
{
	struct stall_error *err = NULL;
	struct stall_wait_stat stat;
	const struct stall_wait_source *source = &watch->source;
	size_t used = 0;

	stall_wait_table_begin(watch->table);
	// There may be more of them when some were read.
	for (size_t i = 0; !err && i < source->calls->stat_count(source->state); i++) {
		if (!source->calls->read_stat(source->state, i, &stat))
			continue;
		used++;
		err = stall_watch_lose_entry(
			watch, stall_wait_table_add(watch->table, &stat,
						    source->calls->take_max(source->state, i)));
		if (!err)
			err = take_stat(watch, &stat);
	}
	stall_wait_table_finish(watch->table, now_ns);
	if (!err)
		*ret_used = used;
	return err;
}

struct stall_error *stall_watch_take_stats(struct stall_watch *watch)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	size_t used;

	// What the probes have counted stays with them.
	if (!watch->source.calls->has_objects)
		return NULL;
	struct stall_error *err = collect(watch, now_ns, &used);
	if (err)
		return err;
	stall_watch_count_in_flight(watch, now_ns);
	return stall_watch_learn_in_flight(watch);
}

static bool is_done_with(const struct stall_watch *watch, const struct stall_wait_entry *entry,
			 uint64_t now_ns, uint64_t quiet_ns)
{
	if (!entry || !entry->key.tgid || entry->in_flight)
		return false;
	if (!stall_wait_processes_find(&watch->processes, entry->key.tgid))
		return true;
	return now_ns - entry->quiet_since_ns >= quiet_ns;
}

// A stat is given back in two steps: nobody finds it any more, and then it is free.
static struct stall_error *retire_stat(struct stall_watch *watch, size_t index,
				       struct stall_wait_entry *entry)
{
	struct stall_wait_stat stat;

	// The memory may serve for another lock by then.
	if (entry)
		entry->looked_at = false;
	if (!watch->source.calls->retire(watch->source.state, index, &stat))
		return NULL;
	return stall_watch_lose_entry(watch, stall_wait_table_retire(watch->table, &stat));
}

// Makes room for other locks and files.
static struct stall_error *retire(struct stall_watch *watch, uint64_t now_ns, size_t used)
{
	struct stall_error *err = NULL;
	struct stall_wait_stat stat;
	const struct stall_wait_source *source = &watch->source;
	size_t count = source->calls->stat_count(source->state);
	uint64_t quiet_ns = used > count / 2 ? QUIET_FULL_NS : QUIET_NS;

	for (size_t i = 0; !err && i < count; i++) {
		if (!source->calls->read_stat(source->state, i, &stat))
			continue;
		struct stall_wait_entry *entry = stall_wait_table_find(watch->table, &stat.key);
		if (is_done_with(watch, entry, now_ns, quiet_ns))
			err = retire_stat(watch, i, entry);
	}
	return err;
}

struct stall_error *stall_watch_forget_locks(struct stall_watch *watch, pid_t pid)
{
	struct stall_error *err = NULL;
	struct stall_wait_stat stat;
	const struct stall_wait_source *source = &watch->source;
	size_t count = source->calls->stat_count(source->state);

	for (size_t i = 0; !err && i < count; i++) {
		if (source->calls->read_stat(source->state, i, &stat) &&
		    stat.key.tgid == (uint32_t)pid && stat.key.kind == STALL_WAIT_FUTEX)
			err = retire_stat(watch, i, stall_wait_table_find(watch->table, &stat.key));
	}
	return err;
}

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

	watch->lost[STALL_WATCH_LOST_UNWIND] = unwound.over_limit;
	watch->lost[STALL_WATCH_LOST_FAILED] = unwound.failed;
	watch->lost[STALL_WATCH_LOST_STACKS] = unwound.no_room;
	watch->source.calls->lost(watch->source.state, lost);
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		ret[count++] = (struct stall_wait_number){stall_wait_lost_name(i), lost[i]};
	for (int i = 0; i < STALL_WATCH_LOSSES; i++)
		ret[count++] = (struct stall_wait_number){loss_names[i], watch->lost[i]};
	return count;
}

static struct stall_error *write_line(struct stall_watch *watch, bool final, uint64_t now_ns,
				      const struct stall_wait_top *top, struct stall_json *json)
{
	struct stall_wait_number lost[STALL_LOST_CAUSES + STALL_WATCH_LOSSES];
	const struct stall_wait_source *source = &watch->source;
	_cleanup_free_ struct stall_wait_probe *probes = NULL;
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
		thresholds[i] = stall_watch_threshold(watch, i);
	struct stall_error *err = NULL;
	if (source->calls->functions)
		err = source->calls->functions(source->state, &functions, &line.server_count);
	if (!err && !watch->told_probes)
		err = source->calls->probes(source->state, &probes, &line.probe_count);
	if (err)
		return err;
	line.server = functions;
	line.probes = probes;
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
	watch->told_probes = true;
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
	stall_wait_unwinder_begin_anew(watch->unwinder, stacks);
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
	struct stall_error *err = collect(watch, now_ns, &used);

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
	return err ? err : retire(watch, now_ns, used);
}
