// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ebpf/fair_share.h"
#include "watch/watch_events.h"
#include "watch/watch_processes.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"
#include "watch/watch_stats.h"

static void raise_alarm(struct stall_watch *watch, const struct stall_wait_item *item)
{
	const struct stall_wait_record *record = &item->record;
	const struct stall_wait_entry *entry = stall_wait_table_find(watch->table, &record->key);
	// The BPF programs do not report threads that are known to wait for work.
	const struct stall_watch_alarm alarm = {
		.wait = stall_watch_wait_id(record->slot, record->seq),
		.kind = record->key.kind,
		.role = entry && entry->examined ? entry->role : STALL_ROLE_UNKNOWN,
		.tid = record->tid,
		.tgid = record->tgid,
		.start_ns = record->start_ns,
		.received_ns = item->received_ns,
		.threshold_ns = stall_watch_threshold_of(watch, &record->key),
		.waiters = stall_watch_waiters(watch, &record->key),
	};
	watch->alarm(watch->arg, &alarm);
}

static bool keep_stack(struct stall_watch *watch, struct stall_wait_item *item,
		       const uint8_t *stack)
{
	if (!item->record.stack_size)
		return true;
	uint8_t *copy = stall_arena_alloc(&watch->arena, item->record.stack_size);
	if (!copy)
		return false;
	memcpy(copy, stack, item->record.stack_size);
	item->stack = copy;
	item->stack_size = item->record.stack_size;
	item->stack_address = item->record.stack_address;
	item->exact = true; // by the thread itself, in the kernel
	return true;
}

static struct stall_error *add_item(struct stall_watch *watch,
				    const struct stall_wait_record *record, const uint8_t *stack,
				    uint32_t process)
{
	const struct stall_wait_item new_item = {
		.record = *record,
		.received_ns = watch->received_ns,
		.process = process,
	};
	struct stall_error *err = NULL;
	struct stall_wait_item *item;

	if (watch->item_count >=
	    (record->type == STALL_RECORD_IN_FLIGHT ? STALL_WATCH_BATCH : STALL_WATCH_ENDS))
		err = stall_watch_flush(watch);
	if (err)
		return err;
	item = &watch->items[watch->item_count];
	*item = new_item;
	if (!keep_stack(watch, item, stack)) {
		err = stall_watch_flush(watch);
		if (err)
			return err;
		item = &watch->items[0];
		*item = new_item;
		keep_stack(watch, item, stack);
	}
	watch->item_count++;
	return NULL;
}

// Earlier records are of the former program.
static struct stall_error *change_process(struct stall_watch *watch,
					  struct stall_wait_process *process,
					  const struct stall_wait_record *record)
{
	bool changed;
	struct stall_error *err = stall_watch_flush(watch);

	if (err || record->result == STALL_PROCESS_FORKED)
		return err;
	if (record->result == STALL_PROCESS_EXITED)
		return stall_watch_end(watch, process);
	err = stall_watch_take_stats(watch);
	if (err)
		return err;
	err = stall_wait_process_refresh(&watch->processes, process, true, &changed);
	if (err && err->code != STALL_ERROR_NO_MEMORY) { // ended meanwhile: that is reported too
		stall_error_destroy(err);
		return NULL;
	}
	if (!err)
		err = stall_watch_forget_locks(watch, process->pid);
	return err ? err : stall_watch_probe_server(watch, process);
}

// A ring only has thread ids of the process's own namespace.
static pid_t tid_of(struct stall_wait_process *process, const struct stall_wait_record *record)
{
	if (record->tid)
		return record->tid;
	return process->own_namespace ? stall_wait_process_tid(process, record->ns_tid)
				      : record->ns_tid;
}

void stall_watch_take_record(struct stall_watch *watch, const struct stall_wait_record *record,
			     const uint8_t *stack)
{
	struct stall_wait_process *process =
		stall_wait_processes_find(&watch->processes, record->tgid);

	if (!process || watch->failed || record->key.kind >= STALL_WAIT_KINDS)
		return;
	if (record->type == STALL_RECORD_PROCESS) {
		watch->failed = change_process(watch, process, record);
		return;
	}
	struct stall_wait_record numbered = *record;
	numbered.tid = tid_of(process, record);
	// Earlier work may have taken long: a capture, a batch of stacks.
	watch->received_ns = stall_clock_ns(CLOCK_MONOTONIC);
	watch->failed = add_item(watch, &numbered, stack, process - watch->processes.processes);
}

// Chooses one stack for each futex word that is not known yet.
static struct stall_error *choose_unknown(struct stall_watch *watch)
{
	watch->batch++;
	for (size_t i = 0; i < watch->item_count; i++) {
		struct stall_wait_item *item = &watch->items[i];
		struct stall_wait_entry *entry;

		// An alarm has no stack where its wait was over before the copy.
		if (!item->stack || item->record.key.kind != STALL_WAIT_FUTEX ||
		    (item->record.type != STALL_RECORD_END &&
		     item->record.type != STALL_RECORD_IN_FLIGHT))
			continue;
		struct stall_error *err =
			stall_wait_table_get(watch->table, &item->record.key, &entry);
		if (err) {
			err = stall_watch_lose_entry(watch, err);
			if (err)
				return err;
			continue;
		}
		bool known = entry->examined && !(item->record.flags & STALL_SLOT_FIRST);
		if (known || entry->asked == watch->batch)
			continue;
		entry->asked = watch->batch;
		item->identify = true;
	}
	return NULL;
}

// The flow of the purpose that its stack is unwound for.
static void set_flows(struct stall_watch *watch)
{
	for (size_t i = 0; i < watch->item_count; i++) {
		struct stall_wait_item *item = &watch->items[i];
		const struct stall_wait_record *record = &item->record;
		const struct stall_wait_entry *entry =
			stall_wait_table_find(watch->table, &record->key);
		uint32_t role = entry ? entry->role : STALL_ROLE_UNKNOWN;

		item->flow = record->type == STALL_RECORD_SERVER
				     ? stall_flow(STALL_FLOW_EVENTS, record->type)
				     : stall_flow_of(&record->key, role, record->type);
	}
}

static bool needs_copy(const struct stall_watch *watch, const struct stall_wait_item *item,
		       uint32_t process)
{
	return item->process == process && item->record.type == STALL_RECORD_IN_FLIGHT &&
	       stall_watch_slot_is(watch, item->record.slot, item->record.seq);
}

static struct stall_error *copy_stacks(struct stall_watch *watch)
{
	const struct stall_wait_source *source = &watch->source;
	struct stall_wait_item *items[STALL_WATCH_BATCH];
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < watch->processes.count; i++) {
		size_t count = 0;

		if (watch->processes.processes[i].ended)
			continue;
		for (size_t j = watch->alarms_taken; j < watch->item_count; j++)
			if (needs_copy(watch, &watch->items[j], i))
				items[count++] = &watch->items[j];
		if (count)
			err = source->calls->copy_stacks(source->state, &watch->arena,
							 &watch->processes.processes[i], items,
							 count);
	}
	return err;
}

// A wait may be short, and a capture or a batch of stacks takes long: all stacks are copied first.
struct stall_error *stall_watch_take_alarms(struct stall_watch *watch)
{
	struct stall_error *err = copy_stacks(watch);
	size_t i = watch->alarms_taken;

	watch->alarms_taken = watch->item_count;
	for (; !err && watch->alarm && i < watch->alarms_taken; i++) {
		const struct stall_wait_item *item = &watch->items[i];
		uint64_t wait = stall_watch_wait_id(item->record.slot, item->record.seq);

		if (item->record.type == STALL_RECORD_IN_FLIGHT &&
		    !stall_watch_is_stale(watch, wait, item->received_ns))
			raise_alarm(watch, item);
	}
	return err;
}

// Words of waits that are over still show the kind of lock.
static void read_words(struct stall_watch *watch)
{
	for (size_t i = 0; i < watch->item_count; i++) {
		struct stall_wait_item *item = &watch->items[i];
		const struct stall_wait_process *process =
			&watch->processes.processes[item->process];

		if (item->identify && item->record.type == STALL_RECORD_END && !process->ended)
			watch->source.calls->read_word(watch->source.state, process,
						       &item->record.key, &item->futex);
	}
}

// Memory that was read during unwinding is of the same moment if the wait is still in flight.
static void settle_labels(struct stall_watch *watch)
{
	for (size_t i = 0; i < watch->item_count; i++) {
		struct stall_wait_item *item = &watch->items[i];

		if (item->record.type == STALL_RECORD_IN_FLIGHT && item->stack_id &&
		    item->label == STALL_RACED &&
		    stall_watch_slot_is(watch, item->record.slot, item->record.seq))
			item->label = STALL_VERIFIED;
	}
}

static void forget_items(struct stall_watch *watch)
{
	for (size_t i = 0; i < watch->item_count; i++)
		free(watch->items[i].symbol);
	watch->item_count = watch->alarms_taken = 0;
	stall_arena_reset(&watch->arena, STALL_WATCH_ENDS * STALL_WAIT_MAX_STACK);
}

struct stall_error *stall_watch_flush(struct stall_watch *watch)
{
	if (!watch->item_count)
		return NULL;
	watch->waiting.valid = false; // threads have begun and ended waits meanwhile
	struct stall_error *err = stall_watch_take_alarms(watch);
	if (!err)
		err = choose_unknown(watch);
	if (!err) {
		set_flows(watch);
		read_words(watch);
		err = stall_wait_unwind(watch->unwinder, watch->items, watch->item_count);
	}
	if (!err)
		settle_labels(watch);
	for (size_t i = 0; !err && i < watch->item_count; i++)
		err = stall_watch_apply(watch, &watch->items[i]);
	forget_items(watch);
	return err;
}
