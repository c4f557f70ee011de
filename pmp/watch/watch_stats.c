// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_stats.h"

#include "base/clock.h"
#include "watch/watch_roles.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"

// A stat that nothing has used for so long is retired: sooner where most are taken.
#define QUIET_NS UINT64_C(60000000000)
#define QUIET_FULL_NS UINT64_C(2000000000)

// What a stat has of its lock or file, in addition to its counts.
static struct stall_error *take_stat(struct stall_watch *watch, const struct stall_wait_stat *stat)
{
	struct stall_wait_entry *entry = stall_wait_table_find(watch->table, &stat->key);

	if (!entry)
		return NULL;
	if (watch->source.calls->has_objects)
		entry->ring_role = stat->role;
	return stall_watch_find_file(watch, entry);
}

struct stall_error *stall_watch_collect_stats(struct stall_watch *watch, uint64_t now_ns,
					      size_t *ret_used)
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
	struct stall_error *err = stall_watch_collect_stats(watch, now_ns, &used);
	if (err)
		return err;
	stall_watch_count_in_flight(watch, now_ns);
	return stall_watch_identify_in_flight(watch);
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

// A stat is retired in two steps: nobody finds it any more, and then it is free.
static struct stall_error *retire_stat(struct stall_watch *watch, size_t index,
				       struct stall_wait_entry *entry)
{
	struct stall_wait_stat stat;

	// The memory may serve for another lock by then.
	if (entry)
		entry->examined = false;
	if (!watch->source.calls->retire(watch->source.state, index, &stat))
		return NULL;
	return stall_watch_lose_entry(watch, stall_wait_table_retire(watch->table, &stat));
}

struct stall_error *stall_watch_retire_stats(struct stall_watch *watch, uint64_t now_ns,
					     size_t used)
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
