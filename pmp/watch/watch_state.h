// SPDX-License-Identifier: Apache-2.0
// The state of a watch, which its parts share.
#ifndef STALL_WATCH_STATE_H
#define STALL_WATCH_STATE_H

#include "base/arena.h"
#include "waits/wait_files.h"
#include "waits/wait_json.h"
#include "waits/wait_process.h"
#include "waits/wait_stacks.h"
#include "waits/wait_table.h"
#include "waits/wait_unwind.h"
#include "watch/watch_types.h"

#define STALL_WATCH_BATCH 256	// records that are unwound together
#define STALL_WATCH_ENDS 64	// above this number no ended wait is added: an alarm may be waiting
#define STALL_WATCH_EVENTS 1000 // in a line
#define STALL_WATCH_AWAITED 64	// processes that have no ring yet

// Threads in a wait, by key.
struct stall_watch_waiting {
	bool valid;
	size_t mask;
	struct stall_watch_waiting_key {
		uint64_t tag;
		uint32_t threads;
	} * keys;
};

// A slot's wait that was counted in flight.
struct stall_watch_counted {
	uint32_t seq;
	uint64_t start_ns; // a slot may be another process's by now
	uint32_t stack;
	enum stall_label label;
	uint32_t line; // the number of the interval
};

struct stall_watch_samples;

struct stall_watch {
	struct stall_watch_options options;
	stall_watch_event_fn handler;
	stall_watch_alarm_fn alarm;
	void *arg;

	struct stall_arena arena;
	struct stall_worker *worker;
	struct stall_wait_source source;
	struct stall_wait_processes processes;
	struct stall_wait_stacks *stacks;
	struct stall_wait_unwinder *unwinder;
	struct stall_wait_table *table;
	struct stall_wakers wakers;
	struct stall_watch_samples *samples; // NULL: none are taken
	int epoll;
	// Processes that were started a moment ago, and have no ring yet.
	pid_t awaited[STALL_WATCH_AWAITED];
	size_t awaited_count;
	pid_t gone;	     // one of them that has ended; 0: none
	uint64_t awaited_ns; // when they were searched for

	struct stall_wait_item *items;
	size_t item_count, alarms_taken; // the stacks of the items before it are copied
	uint32_t batch;
	uint64_t received_ns; // the last record
	struct stall_watch_waiting waiting;
	struct stall_watch_counted *counted; // two for each slot
	size_t slot_count;
	struct stall_error *failed; // in a handler of records, which cannot return an error

	struct stall_json events; // of the line
	size_t event_count;
	uint64_t lost[STALL_WATCH_LOST_CAUSES];
	uint64_t started_ns, line_ns;
	uint32_t line;
	bool probes_written; // in a line since the last change
};

// The entry for a wait that was, or will be, counted in flight: its own, or the older of its slot's
// two, whose end was received. A later wait of the thread can be received before the end of this
// one, and with a late reader it need not be the next one. NULL: no entry.
static inline struct stall_watch_counted *stall_watch_counted_at(const struct stall_watch *watch,
								 size_t slot, uint32_t seq)
{
	if (slot >= watch->slot_count)
		return NULL;
	struct stall_watch_counted *two = &watch->counted[2 * slot];
	for (size_t i = 0; i < 2; i++)
		if (two[i].seq == seq)
			return &two[i];
	return &two[two[1].start_ns < two[0].start_ns];
}

// The very wait of a record is still in flight.
static inline bool stall_watch_slot_is(const struct stall_watch *watch, uint32_t slot, uint32_t seq)
{
	return watch->source.calls->slot_is(watch->source.state, slot, seq);
}

// The threshold above which a wait of this kind is reported.
static inline uint64_t stall_watch_threshold_of(const struct stall_watch *watch,
						const struct stall_wait_key *key)
{
	return watch->source.calls->threshold(watch->source.state, key->tgid, key->kind);
}

static inline uint64_t stall_watch_wait_id(uint32_t slot, uint32_t seq)
{
	return (uint64_t)slot << 32 | seq;
}

static inline const struct stall_target *stall_watch_target(
	const struct stall_wait_process *process)
{
	return &process->snapshot->processes[0].target;
}

// Counts an error of a full table, and returns any other.
static inline struct stall_error *stall_watch_lose_entry(struct stall_watch *watch,
							 struct stall_error *err)
{
	if (!err || err->code != STALL_ERROR_LIMIT)
		return err;
	watch->lost[STALL_WATCH_LOST_TABLE_FULL]++;
	stall_error_destroy(err);
	return NULL;
}

#endif
