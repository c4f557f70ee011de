// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file_class.h"
#include "waits/server_wait.h"
#include "waits/wait_files.h"
#include "watch/watch_roles.h"
#include "watch/watch_samples.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"
#include "watch/watch_stats.h"

// The lock or file that a thread waits for: by its word or file, or by name.
struct subject {
	struct stall_wait_entry *entry, *word;
};

static struct subject find_subject(struct stall_watch *watch,
				   const struct stall_wait_record *record)
{
	struct stall_wait_entry *word = stall_wait_table_find(watch->table, &record->key);
	struct stall_wait_entry *named = NULL;

	if (word && word->named.tgid)
		named = stall_wait_table_find(watch->table, &word->named);
	return (struct subject){named ? named : word, word};
}

static bool is_over(const struct stall_watch *watch, const struct stall_wait_record *record)
{
	return record->now_ns - record->start_ns >= stall_watch_threshold_of(watch, &record->key);
}

static const char *name_of(const struct stall_wait_entry *entry, char *text, size_t size)
{
	if (entry->name)
		return entry->name;
	if (stall_wait_key_is_file(&entry->key))
		snprintf(text, size, "inode %" PRIu64, (uint64_t)entry->key.id);
	else
		snprintf(text, size, "0x%" PRIx64, entry->object);
	return text;
}

static pid_t owner_now(const struct stall_watch *watch, const struct stall_wait_entry *entry,
		       const struct stall_wait_item *item)
{
	struct stall_wait_process *process = &watch->processes.processes[item->process];

	if (item->identified)
		return item->identity.owner_tid;
	if (!entry->has_lock || !item->futex.readable || process->ended)
		return 0;
	return stall_wait_owner(process, &entry->lock_wait, entry->lock_name, &item->futex);
}

static void keep_event(struct stall_watch *watch, const struct stall_watch_event *event)
{
	if (!watch->options.events)
		return;
	if (watch->event_count == STALL_WATCH_EVENTS) {
		watch->lost[STALL_WATCH_LOST_EVENTS_FULL]++;
		return;
	}
	watch->event_count++;
	stall_json_open(&watch->events, '{');
	stall_watch_event_write(event, &watch->events);
	stall_json_close(&watch->events, '}');
}

static bool is_reported(const struct stall_watch *watch, const struct subject *subject)
{
	const struct stall_wait_entry *entry = subject->entry;

	if (!(watch->options.kinds & 1u << entry->kind) || stall_watch_kind_is_idle(entry->kind))
		return false;
	// A wait that may be for work is not reported as a stall.
	return stall_wait_key_is_file(&entry->key) || subject->word->examined;
}

static void emit(struct stall_watch *watch, const struct stall_watch_event *event)
{
	keep_event(watch, event);
	if (watch->handler)
		watch->handler(watch->arg, event);
}

static void add_waker(const struct stall_watch *watch, const struct stall_waker *waker,
		      struct stall_watch_event *event)
{
	if (!waker)
		return;
	event->waker_tid = waker->tid;
	event->waker_frames =
		stall_wait_stacks_frames(watch->stacks, waker->stack, &event->waker_frame_count);
}

// The stack of an event: its own, or the one that was copied during the wait.
struct stack_of {
	uint32_t id;
	enum stall_label label;
};

static struct stack_of stack_of(const struct stall_watch *watch, const struct stall_wait_item *item)
{
	const struct stall_wait_record *record = &item->record;
	const struct stall_watch_counted *counted =
		stall_watch_counted_at(watch, record->slot, record->seq);

	if (!item->stack_id && counted && counted->seq == record->seq &&
	    counted->start_ns == record->start_ns)
		return (struct stack_of){counted->stack, counted->label};
	return (struct stack_of){item->stack_id, item->label};
}

// What every event has.
static struct stall_watch_event make_event(const struct stall_watch *watch,
					   const struct stall_wait_item *item)
{
	const struct stall_wait_record *record = &item->record;
	const struct stack_of stack = stack_of(watch, item);
	struct stall_watch_event event = {
		.in_flight = record->type == STALL_RECORD_IN_FLIGHT,
		.tid = record->tid,
		.tgid = record->tgid,
		.start_ns = record->start_ns,
		.length_ns = record->now_ns - record->start_ns,
		.received_ns = item->received_ns,
		.label = stack.id ? stall_label_name(stack.label) : NULL,
	};

	event.frames = stall_wait_stacks_frames(watch->stacks, stack.id, &event.frame_count);
	return event;
}

static void emit_wait(struct stall_watch *watch, const struct subject *subject,
		      const struct stall_wait_item *item, const struct stall_waker *waker)
{
	const struct stall_wait_record *record = &item->record;
	const struct stall_wait_entry *entry = subject->entry;
	char comm[STALL_BPF_COMM + 1], text[64];

	if (!is_reported(watch, subject))
		return;
	struct stall_watch_event event = make_event(watch, item);
	snprintf(comm, sizeof(comm), "%.*s", STALL_BPF_COMM, record->comm);
	event.comm = comm;
	event.kind = stall_watch_kind_name(entry->kind);
	event.name = name_of(entry, text, sizeof(text));
	event.threshold_ns = stall_watch_threshold_of(watch, &record->key);
	event.waiters = stall_watch_waiters(watch, &entry->key);
	event.address = stall_watch_kind_is_named(entry->kind) ? 0 : entry->object;
	if (event.in_flight) {
		event.wait = stall_watch_wait_id(record->slot, record->seq);
		event.owner_tid = owner_now(watch, subject->word, item);
	}
	add_waker(watch, waker, &event);
	emit(watch, &event);
}

// An event in the server that is no wait: the victim of a deadlock was chosen.
static void emit_server_event(struct stall_watch *watch, const struct stall_wait_item *item)
{
	uint32_t function = item->record.server.function;
	char comm[STALL_BPF_COMM + 1];

	if (!function || function > stall_server_function_count)
		return;
	struct stall_watch_event event = make_event(watch, item);
	snprintf(comm, sizeof(comm), "%.*s", STALL_BPF_COMM, item->record.comm);
	event.comm = comm;
	event.kind = "server";
	event.name = stall_server_functions[function - 1].name;
	event.waiters = 1;
	emit(watch, &event);
}

static void add_use(struct stall_watch *watch, struct stall_wait_uses *uses, const char *comm,
		    struct stall_wait_use use)
{
	memcpy(use.comm, comm, sizeof(use.comm));
	if (!stall_wait_uses_add(uses, &use))
		watch->lost[STALL_WATCH_LOST_STACKS_OF_KEY_FULL]++;
}

// A wait is counted when its first record is received, its time when it is over.
static void count_waiter(struct stall_watch *watch, struct stall_wait_entry *entry,
			 const struct stall_wait_item *item)
{
	const struct stall_wait_record *record = &item->record;
	struct stall_watch_counted *counted =
		stall_watch_counted_at(watch, record->slot, record->seq);
	bool in_flight = record->type == STALL_RECORD_IN_FLIGHT;
	bool again =
		counted && counted->seq == record->seq && counted->start_ns == record->start_ns;
	struct stall_wait_use what = {
		.stack = again ? counted->stack : item->stack_id,
		.label = again ? counted->label : item->label,
		.tid = record->tid,
		.count = !again,
		.total_ns = in_flight ? 0 : record->now_ns - record->start_ns,
	};

	add_use(watch, &entry->waiters, record->comm, what);
	if (in_flight && counted)
		*counted = (struct stall_watch_counted){record->seq, record->start_ns, what.stack,
							what.label, watch->line};
}

static void end_wait(struct stall_watch *watch, const struct subject *subject,
		     const struct stall_wait_item *item)
{
	const struct stall_wait_record *record = &item->record;
	const struct stall_waker *waker = NULL;

	if (!is_over(watch, record))
		return;
	count_waiter(watch, subject->entry, item);
	if (subject->entry->by_name)
		stall_wait_entry_count(subject->entry, record->now_ns - record->start_ns);
	if (record->key.kind == STALL_WAIT_FUTEX)
		waker = stall_wakers_find(&watch->wakers, record);
	if (waker)
		add_use(watch, &subject->entry->holders, waker->comm,
			(struct stall_wait_use){
				.stack = waker->stack,
				.label = waker->label,
				.tid = waker->tid,
				.count = 1,
			});
	emit_wait(watch, subject, item, waker);
}

static void apply_event(struct stall_watch *watch, const struct stall_wait_item *item)
{
	const struct subject subject = find_subject(watch, &item->record);

	// No room for it, or its role is known already.
	if (!subject.entry || item->record.flags & STALL_SLOT_IN_FLIGHT)
		return;
	if (item->record.type == STALL_RECORD_END) {
		end_wait(watch, &subject, item);
		return;
	}
	// Without a stack it counts when it is over.
	if (item->stack_id && !stall_watch_kind_is_idle(subject.entry->kind))
		count_waiter(watch, subject.entry, item);
	emit_wait(watch, &subject, item, NULL);
}

struct stall_error *stall_watch_apply(struct stall_watch *watch, struct stall_wait_item *item)
{
	struct stall_error *err = NULL;

	switch (item->record.type) {
	case STALL_RECORD_WAKER:
		stall_wakers_add(&watch->wakers, &item->record, item->stack_id, item->label);
		break;
	case STALL_RECORD_SERVER:
		emit_server_event(watch, item);
		break;
	case STALL_RECORD_END:
	case STALL_RECORD_IN_FLIGHT:
		err = stall_watch_identify(watch, item);
		if (!err)
			apply_event(watch, item);
		break;
	}
	return err;
}

void stall_watch_event_write(const struct stall_watch_event *event, struct stall_json *json)
{
	stall_json_member_string(json, "kind", event->kind);
	stall_json_member_string(json, "name", event->name);
	stall_json_member_bool(json, "in_flight", event->in_flight);
	stall_json_member_int(json, "pid", event->tgid);
	stall_json_member_int(json, "tid", event->tid);
	stall_json_member_string(json, "comm", event->comm);
	stall_json_member_uint(json, "start_ns", event->start_ns);
	stall_json_member_ms(json, "length_ms", event->length_ns);
	stall_json_member_uint(json, "received_ns", event->received_ns);
	stall_json_member_ms(json, "threshold_ms", event->threshold_ns);
	stall_json_member_uint(json, "waiters", event->waiters);
	stall_json_key(json, "address");
	if (event->address)
		stall_json_hex(json, event->address);
	else
		stall_json_null(json);
	stall_json_key(json, "owner_tid");
	if (event->owner_tid)
		stall_json_int(json, event->owner_tid);
	else
		stall_json_null(json);
	stall_json_key(json, "frames");
	stall_wait_frames_write(event->frames, event->frame_count, json);
	stall_json_member_string(json, "label", event->label);
	stall_json_key(json, "waker");
	if (!event->waker_tid) {
		stall_json_null(json);
		return;
	}
	stall_json_open(json, '{');
	stall_json_member_int(json, "tid", event->waker_tid);
	stall_json_key(json, "frames");
	stall_wait_frames_write(event->waker_frames, event->waker_frame_count, json);
	stall_json_close(json, '}');
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

// Returns whether the source rests at times.
static bool read_rest(const struct stall_watch *watch, struct stall_wait_rest *ret)
{
	const struct stall_wait_source *source = &watch->source;

	return source->calls->rest && source->calls->rest(source->state, ret);
}

static struct stall_error *write_line(struct stall_watch *watch, bool final, uint64_t now_ns,
				      const struct stall_wait_top *top, struct stall_json *json)
{
	struct stall_wait_number lost[STALL_LOST_CAUSES + STALL_WATCH_LOST_CAUSES];
	const struct stall_wait_source *source = &watch->source;
	_cleanup_free_ struct stall_wait_program *programs = NULL;
	_cleanup_free_ struct stall_wait_hits *functions = NULL;
	uint64_t thresholds[STALL_WAIT_KINDS];
	struct stall_wait_sampling sampling;
	bool is_sampled =
		source->calls->sampling && source->calls->sampling(source->state, &sampling);
	struct stall_wait_rest rest;
	bool can_rest = read_rest(watch, &rest);
	struct stall_wait_line line = {
		.final = final,
		.wall_ns = stall_clock_ns(CLOCK_REALTIME),
		.length_ns = now_ns - (final ? watch->started_ns : watch->line_ns),
		.processes = watch->processes.processes,
		.process_count = watch->processes.count,
		.source = source->calls->name,
		.in_flight_by = source->calls->in_flight_by(source->state),
		.sampling = is_sampled ? &sampling : NULL,
		.call_added_ns = source->calls->call_added_ns
					 ? source->calls->call_added_ns(source->state)
					 : -1,
		.rest = can_rest ? &rest : NULL,
		.history = stall_watch_samples_history(watch->samples),
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

// A program that runs for months has more stacks than there is room for. Those of the totals are
// dropped then, to make room for those of the next stall.
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

uint64_t stall_watch_alerts(const struct stall_watch *watch)
{
	struct stall_wait_rest rest;

	return read_rest(watch, &rest) ? rest.alerts : 0;
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
	err = stall_watch_identify_in_flight(watch);
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
