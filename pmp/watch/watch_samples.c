// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_samples.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file_class.h"
#include "waits/wait_channel.h"
#include "waits/wait_files.h"
#include "waits/wait_history.h"
#include "watch/watch_roles.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"

#define INTERVAL_NS UINT64_C(1000000000)
#define PER_CORE 500   // at most 1 / 500 of a core, 0.2 %
#define MAX_SEARCHED 2 // files in a sample, among all that a process has open

struct stall_watch_samples {
	struct stall_watch *watch;
	struct stall_wait_history *history;
	struct stall_wait_channels *channels;
	uint64_t next_ns; // when the next is wanted
	uint64_t cost_ns;
	size_t searched; // in this sample
	struct stall_error *failed;
};

struct stall_error *stall_watch_samples_create(struct stall_watch *watch,
					       struct stall_watch_samples **ret)
{
	*ret = NULL;
	if (!watch->options.history || !watch->source.calls->sample)
		return NULL;
	struct stall_watch_samples *samples = calloc(1, sizeof(*samples));
	if (!samples)
		return &stall_enomem;
	samples->watch = watch;
	// By then it is known which words are those on which threads wait for work.
	samples->next_ns = stall_clock_ns(CLOCK_MONOTONIC) + INTERVAL_NS;
	samples->channels = stall_wait_channels_create();
	struct stall_error *err =
		samples->channels ? stall_wait_history_create(&samples->history) : &stall_enomem;
	if (err) {
		stall_watch_samples_destroy(samples);
		return err;
	}
	*ret = samples;
	return NULL;
}

void stall_watch_samples_destroy(struct stall_watch_samples *samples)
{
	if (!samples)
		return;
	stall_wait_history_destroy(samples->history);
	stall_wait_channels_destroy(samples->channels);
	stall_error_destroy(samples->failed);
	free(samples);
}

struct stall_wait_history *stall_watch_samples_history(const struct stall_watch_samples *samples)
{
	return samples ? samples->history : NULL;
}

// The entry of a file whose name is known, if it can be found.
static struct stall_error *name_file(struct stall_watch_samples *samples,
				     const struct stall_wait_key *key,
				     struct stall_wait_entry **ret)
{
	struct stall_watch *watch = samples->watch;
	const struct stall_wait_process *process =
		stall_wait_processes_find(&watch->processes, key->tgid);
	struct stall_wait_entry *entry;
	bool deleted = false;
	struct stall_error *err = stall_wait_table_get(watch->table, key, &entry);

	*ret = NULL;
	if (err)
		return stall_watch_lose_entry(watch, err);
	*ret = entry;
	err = stall_watch_find_file(watch, entry);
	if (err || entry->name || entry->searched || !key->id2 || !process ||
	    samples->searched == MAX_SEARCHED)
		return err;
	samples->searched++;
	entry->searched = true;
	err = stall_wait_file_search(stall_watch_target(process), key, &entry->name, &deleted);
	if (!err && entry->name)
		entry->class = stall_file_class(entry->name, deleted);
	return err;
}

static struct stall_error *set_file(struct stall_watch_samples *samples,
				    const struct stall_wait_key *key, struct stall_history_row *row)
{
	struct stall_wait_entry *entry;

	row->kind = stall_watch_kind_of(key->kind, STALL_ROLE_UNKNOWN);
	if (!key->id)
		return NULL;
	struct stall_error *err = name_file(samples, key, &entry);
	if (!err && entry && entry->name)
		row->name = stall_file_class_name(entry->class);
	return err;
}

// A row or a table is named while a wait for it is known to be in flight: the word of its thread is
// one that the next wait uses, too.
static void set_lock(struct stall_watch *watch, const struct stall_wait_key *key,
		     struct stall_history_row *row)
{
	const struct stall_wait_entry *entry = stall_wait_table_find(watch->table, key);
	const struct stall_wait_entry *named = NULL;

	row->kind = entry ? entry->kind : stall_watch_kind_of(key->kind, STALL_ROLE_UNKNOWN);
	if (!entry)
		return;
	row->name = entry->name;
	if (entry->named.tgid && stall_watch_is_waited_for(watch, &entry->named))
		named = stall_wait_table_find(watch->table, &entry->named);
	if (named) {
		row->kind = named->kind;
		row->name = named->name;
	}
}

static void take_thread(void *arg, const struct stall_thread_sample *sample)
{
	struct stall_watch_samples *samples = arg;
	struct stall_history_row row = {
		.state = sample->state,
		.call = sample->call,
		.kind = STALL_WATCH_KINDS,
	};

	if (samples->failed)
		return;
	if (sample->frame_count)
		row.channel = stall_wait_channel_find(samples->channels, sample->frames,
						      sample->frame_count);
	else if (sample->channel[0])
		row.channel = sample->channel;
	if (sample->key.kind == STALL_WAIT_FUTEX)
		set_lock(samples->watch, &sample->key, &row);
	else if (sample->key.kind < STALL_WAIT_KINDS)
		samples->failed = set_file(samples, &sample->key, &row);
	stall_wait_history_add(samples->history, &row);
}

static struct stall_error *take_sample(struct stall_watch_samples *samples)
{
	const struct stall_wait_source *source = &samples->watch->source;
	uint64_t wall_ns = stall_clock_ns(CLOCK_REALTIME);

	samples->searched = 0;
	samples->watch->waiting.valid = false;
	stall_wait_history_begin(samples->history);
	struct stall_error *err = source->calls->sample(source->state, take_thread, samples);
	if (!err) {
		err = samples->failed;
		samples->failed = NULL;
		return err ? err : stall_wait_history_end(samples->history, wall_ns);
	}
	stall_error_destroy(samples->failed);
	samples->failed = NULL;
	if (err->code == STALL_ERROR_NO_MEMORY)
		return err;
	stall_error_destroy(err); // the second is missing in the history
	return NULL;
}

uint64_t stall_watch_samples_interval_ns(uint64_t cost_ns)
{
	return cost_ns * PER_CORE > INTERVAL_NS ? cost_ns * PER_CORE : INTERVAL_NS;
}

static uint64_t due_ns(const struct stall_watch_samples *samples)
{
	const struct stall_wait_source *source = &samples->watch->source;

	return source->calls->sample_due_ns
		       ? source->calls->sample_due_ns(source->state, samples->next_ns)
		       : samples->next_ns;
}

struct stall_error *stall_watch_samples_take(struct stall_watch_samples *samples, uint64_t now_ns)
{
	if (!samples || now_ns < due_ns(samples))
		return NULL;
	uint64_t cpu_ns = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	struct stall_error *err = take_sample(samples);
	uint64_t cost_ns = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
	samples->cost_ns = samples->cost_ns ? (3 * samples->cost_ns + cost_ns) / 4 : cost_ns;
	uint64_t interval_ns = stall_watch_samples_interval_ns(samples->cost_ns);
	// In step with the clock where it can be, so that no second is missing.
	samples->next_ns = now_ns - samples->next_ns < interval_ns ? samples->next_ns + interval_ns
								   : now_ns + interval_ns;
	return err;
}

int stall_watch_samples_timeout_ms(const struct stall_watch_samples *samples, uint64_t now_ns)
{
	if (!samples)
		return -1;
	uint64_t due = due_ns(samples);
	if (due <= now_ns)
		return 0;
	uint64_t ms = (due - now_ns + 999999) / 1000000;
	return ms < INT_MAX ? (int)ms : INT_MAX;
}
