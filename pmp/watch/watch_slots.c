// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_slots.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "watch/watch_state.h"

#define STALE_NS UINT64_C(5000000) // since it was received

// The lock that a reported wait was found to be for, a row for example. NULL: its word is the lock.
static struct stall_wait_entry *find_named(struct stall_watch *watch,
					   const struct stall_wait_now *now,
					   const struct stall_wait_entry *word)
{
	if (!now->reported || !word || !word->named.tgid)
		return NULL;
	return stall_wait_table_find(watch->table, &word->named);
}

static struct stall_watch_waiting_key *find_waiting(struct stall_watch_waiting *waiting,
						    const struct stall_wait_key *key)
{
	uint64_t tag = stall_wait_tag(key);
	size_t at = tag & waiting->mask;

	while (waiting->keys[at].tag && waiting->keys[at].tag != tag)
		at = (at + 1) & waiting->mask;
	waiting->keys[at].tag = tag;
	return &waiting->keys[at];
}

static void count_one(struct stall_watch *watch, const struct stall_wait_now *now)
{
	const struct stall_wait_entry *named =
		find_named(watch, now, stall_wait_table_find(watch->table, &now->key));

	find_waiting(&watch->waiting, &now->key)->threads++;
	if (named)
		find_waiting(&watch->waiting, &named->key)->threads++;
}

static void count_waiting(struct stall_watch *watch)
{
	struct stall_watch_waiting *waiting = &watch->waiting;
	struct stall_wait_now now;
	const struct stall_wait_source *source = &watch->source;
	size_t count = source->calls->slot_count(source->state);

	memset(waiting->keys, 0, (waiting->mask + 1) * sizeof(*waiting->keys));
	for (size_t i = 0; i < count && i < watch->slot_count; i++)
		if (source->calls->read_slot(source->state, i, &now))
			count_one(watch, &now);
	waiting->valid = true;
}

uint32_t stall_watch_waiters(struct stall_watch *watch, const struct stall_wait_key *key)
{
	if (!watch->waiting.valid)
		count_waiting(watch);
	// The table has room for every slot and half as much again: the search ends.
	uint32_t threads = find_waiting(&watch->waiting, key)->threads;
	return threads ? threads : 1;
}

bool stall_watch_is_waited_for(struct stall_watch *watch, const struct stall_wait_key *key)
{
	const struct stall_watch_waiting *waiting = &watch->waiting;
	uint64_t tag = stall_wait_tag(key);

	if (!waiting->valid)
		count_waiting(watch);
	// Takes no room: any number of keys may be asked for.
	size_t at = tag & waiting->mask;
	while (waiting->keys[at].tag && waiting->keys[at].tag != tag)
		at = (at + 1) & waiting->mask;
	return waiting->keys[at].tag && waiting->keys[at].threads;
}

uint32_t stall_watch_still_waiting(struct stall_watch *watch, uint64_t wait)
{
	const struct stall_wait_source *source = &watch->source;
	struct stall_wait_now now;

	if (!stall_watch_slot_is(watch, wait >> 32, (uint32_t)wait))
		return 0;
	// A thread that is about to write into its slot still waits.
	if (!source->calls->read_slot(source->state, wait >> 32, &now) || now.seq != (uint32_t)wait)
		return 1;
	const struct stall_wait_entry *named =
		find_named(watch, &now, stall_wait_table_find(watch->table, &now.key));
	watch->waiting.valid = false; // others have begun to wait since
	return stall_watch_waiters(watch, named ? &named->key : &now.key);
}

void stall_watch_one_more_waits(struct stall_watch *watch, const struct stall_wait_key *key)
{
	if (watch->waiting.valid)
		find_waiting(&watch->waiting, key)->threads++;
}

static void count_in_flight(struct stall_wait_entry *entry, uint64_t length_ns, bool over)
{
	entry->in_flight++;
	entry->in_flight_over += over && !entry->by_name;
	if (length_ns > entry->longest_ns)
		entry->longest_ns = length_ns;
}

static void begin_counting(struct stall_wait_entry *entry)
{
	entry->in_flight = entry->in_flight_over = 0;
	entry->longest_ns = 0;
	entry->owner_tid = 0;
	for (size_t i = 0; i < entry->waiters.count; i++)
		entry->waiters.uses[i].going_on = 0;
}

// A long wait counts in each of its intervals.
static void count_going_on(const struct stall_watch *watch, struct stall_wait_entry *entry,
			   size_t slot, const struct stall_wait_now *now)
{
	const struct stall_watch_counted *counted = stall_watch_counted_at(watch, slot, now->seq);

	if (!counted || counted->seq != now->seq || counted->start_ns != now->start_ns ||
	    counted->line == watch->line)
		return;
	for (size_t i = 0; i < entry->waiters.count; i++) {
		struct stall_wait_use *use = &entry->waiters.uses[i];
		if (use->stack == counted->stack && use->label == counted->label)
			use->going_on++;
	}
}

void stall_watch_count_in_flight(struct stall_watch *watch, uint64_t now_ns)
{
	struct stall_wait_entry *entry, *named;
	struct stall_wait_now now;
	const struct stall_wait_source *source = &watch->source;
	size_t count = source->calls->slot_count(source->state);

	for (size_t i = 0; (entry = stall_wait_table_at(watch->table, i)); i++)
		begin_counting(entry);
	for (size_t i = 0; i < count; i++) {
		if (!source->calls->read_slot(source->state, i, &now) ||
		    now.key.kind >= STALL_WAIT_KINDS)
			continue;
		entry = stall_wait_table_find(watch->table, &now.key);
		if (!entry)
			continue;
		uint64_t length_ns = now_ns > now.start_ns ? now_ns - now.start_ns : 0;
		bool over = length_ns >= stall_watch_threshold_of(watch, &now.key);
		count_in_flight(entry, length_ns, over);
		entry->operation = now.operation;
		entry->value = now.value;
		named = find_named(watch, &now, entry);
		if (named)
			count_in_flight(named, length_ns, over);
		count_going_on(watch, named ? named : entry, i, &now);
	}
}

bool stall_watch_is_stale(const struct stall_watch *watch, uint64_t wait, uint64_t received_ns)
{
	return stall_clock_ns(CLOCK_MONOTONIC) - received_ns > STALE_NS &&
	       !stall_watch_slot_is(watch, wait >> 32, (uint32_t)wait);
}

struct stall_error *stall_watch_slots_grow(struct stall_watch *watch)
{
	size_t limit = watch->source.calls->slot_limit(watch->source.state), size = 64;

	if (watch->slot_count >= limit && watch->counted)
		return NULL;
	// Requested keys are kept in it, too: as many as records in a batch.
	while (size < (limit + STALL_WATCH_BATCH) * 2)
		size *= 2;
	struct stall_watch_waiting_key *keys = calloc(size, sizeof(*keys));
	struct stall_watch_counted *counted = calloc(limit + 1, 2 * sizeof(*counted));
	if (!keys || !counted) {
		free(keys);
		free(counted);
		return &stall_enomem;
	}
	if (watch->slot_count)
		memcpy(counted, watch->counted, 2 * watch->slot_count * sizeof(*counted));
	free(watch->waiting.keys);
	free(watch->counted);
	watch->waiting = (struct stall_watch_waiting){.mask = size - 1, .keys = keys};
	watch->counted = counted;
	watch->slot_count = limit;
	return NULL;
}
