// SPDX-License-Identifier: Apache-2.0
// Waits as the wait programs report them, with stacks from the memory of the live processes.
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ebpf/ignored_loader.h"
#include "ebpf/waits_attach.h"
#include "ebpf/waits_loader.h"
#include "ebpf/waits_read.h"
#include "sources/sentinel.h"
#include "sources/server_uprobes.h"
#include "sources/sources.h"
#include "sources/wait_copies.h"
#include "waits/wait_process.h"
#include "waits/wait_source.h"
#include "waits/wait_unwind.h"

#define UPROBES_CHECK_NS UINT64_C(100000000)
#define SCAN_MS 1
#define LEAST_SLOTS 16384
#define MOST_SLOTS 131072

struct source {
	uint64_t threshold_ns[STALL_WAIT_KINDS];
	size_t max_threads;
	struct stall_bpf_waits *waits;
	struct stall_sentinel *sentinel;
	struct stall_server_uprobes *uprobes; // NULL: not used
	uint64_t uprobes_checked_ns;
};

static void destroy(void *state)
{
	struct source *source = state;

	stall_sentinel_destroy(source->sentinel);
	stall_server_uprobes_destroy(source->uprobes);
	stall_bpf_waits_destroy(source->waits);
	free(source);
}

static struct stall_error *snapshot(void *state, struct stall_arena *arena, pid_t pid,
				    struct stall_snapshot *previous, struct stall_snapshot **ret)
{
	return stall_snapshot_create(arena, &pid, 1, previous, ret);
}

static struct stall_error *add(void *state, pid_t pid)
{
	struct source *source = state;

	struct stall_error *err = stall_bpf_waits_add(source->waits, pid);

	return err ? err : stall_sentinel_add(source->sentinel, pid);
}

static void remove_process(void *state, pid_t pid)
{
	struct source *source = state;

	if (source->uprobes)
		stall_server_uprobes_remove(source->uprobes, pid);
	stall_sentinel_remove(source->sentinel, pid);
	stall_bpf_waits_remove(source->waits, pid);
}

static struct stall_error *probe_server(void *state, struct stall_worker *worker,
					const struct stall_snapshot *snapshot)
{
	struct source *source = state;

	if (!source->uprobes)
		return NULL;
	stall_server_uprobes_remove(source->uprobes, snapshot->processes[0].target.pid);
	return stall_server_uprobes_attach(source->uprobes, worker, snapshot, 0);
}

static struct stall_error *ignore(void *state, pid_t pid, pid_t tid, bool on)
{
	struct source *source = state;

	if (on)
		return stall_bpf_waits_ignore(source->waits, pid, tid);
	stall_bpf_waits_heed(source->waits, pid, tid);
	return NULL;
}

static struct stall_error *set_threshold(void *state, enum stall_wait_kind kind, uint64_t ns)
{
	struct source *source = state;

	source->threshold_ns[kind] = ns;
	stall_bpf_waits_set_threshold(source->waits, kind, ns);
	stall_sentinel_set_threshold(source->sentinel, kind, ns);
	return NULL;
}

static uint64_t threshold(void *state, pid_t pid, enum stall_wait_kind kind)
{
	const struct source *source = state;

	return source->threshold_ns[kind];
}

static int fd(void *state)
{
	struct source *source = state;

	return stall_bpf_waits_fd(source->waits);
}

static int ms_until(uint64_t due_ns)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (due_ns == UINT64_MAX)
		return -1;
	return due_ns <= now_ns ? 0 : (int)((due_ns - now_ns + 999999) / 1000000);
}

static int timeout_ms(void *state)
{
	const struct source *source = state;
	int ms = ms_until(stall_sentinel_due_ns(source->sentinel)), other = -1;

	if (stall_bpf_waits_is_attached(source->waits)) {
		if (!stall_bpf_waits_has_timer(source->waits))
			other = SCAN_MS;
		else if (source->uprobes)
			other = (int)(UPROBES_CHECK_NS / 1000000);
	}
	return ms < 0 || (other >= 0 && other < ms) ? other : ms;
}

static const char *in_flight_by(void *state)
{
	const struct source *source = state;

	return stall_bpf_waits_has_timer(source->waits) ? "timer" : "scan";
}

static struct stall_error *poll_source(void *state, uint64_t now_ns, bool *ret_changed)
{
	struct source *source = state;
	bool changed = false;

	if (source->uprobes && stall_bpf_waits_is_attached(source->waits) &&
	    now_ns - source->uprobes_checked_ns >= UPROBES_CHECK_NS) {
		source->uprobes_checked_ns = now_ns;
		changed = stall_server_uprobes_check(source->uprobes, now_ns);
	}
	struct stall_error *err = stall_sentinel_poll(source->sentinel, now_ns);
	if (!err)
		err = stall_bpf_waits_scan(source->waits);
	if (!err)
		*ret_changed = changed;
	return err;
}

static struct stall_error *consume(void *state, const struct stall_wait_handler *handler,
				   size_t max)
{
	struct source *source = state;
	size_t count;
	struct stall_error *err = stall_bpf_waits_consume(source->waits, handler, max, &count);

	if (!err)
		stall_sentinel_deliver(source->sentinel, handler);
	return err;
}

/* Slots. */

static size_t slot_limit(void *state)
{
	const struct source *source = state;

	return source->max_threads;
}

static size_t slot_count(void *state)
{
	const struct source *source = state;
	size_t count;

	stall_bpf_waits_slots(source->waits, &count);
	return count;
}

static const volatile struct stall_wait_slot *find_slot(const struct source *source, size_t index)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_bpf_waits_slots(source->waits, &count);

	return index < count ? &slots[index] : NULL;
}

static bool read_slot(void *state, size_t index, struct stall_wait_now *ret)
{
	const volatile struct stall_wait_slot *slot = find_slot(state, index);
	uint32_t seq = slot ? __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) : 0;

	if (!(seq & 1))
		return false;
	*ret = (struct stall_wait_now){
		.key =
			{
				.tgid = slot->key.tgid,
				.kind = slot->key.kind,
				.id = slot->key.id,
				.id2 = slot->key.id2,
			},
		.start_ns = slot->start_ns,
		.seq = seq,
		.reported = slot->reported == seq,
		.operation = slot->operation,
		.value = slot->value,
	};
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == seq;
}

static bool slot_is(void *state, size_t index, uint32_t seq)
{
	const struct source *source = state;
	const volatile struct stall_wait_slot *slot = find_slot(source, index);

	if (!slot || !(seq & 1) || __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != seq)
		return false;
	// At rest the slot shows the end of a wait only after the next pass.
	return stall_bpf_waits_is_attached(source->waits) ||
	       stall_sentinel_slept_on(source->sentinel, index);
}

static bool read_word(void *state, const struct stall_wait_process *process,
		      const struct stall_wait_key *key, struct stall_futex *ret)
{
	return stall_wait_read_word(process, key->id, ret);
}

static struct stall_error *copy_stacks(void *state, struct stall_arena *arena,
				       const struct stall_wait_process *process,
				       struct stall_wait_item *const *items, size_t count)
{
	return stall_wait_copy_stacks(arena, process, items, count, slot_is, state);
}

/* Stats. */

// Numbers of stats that were ever made: most of the table is never used.

static size_t stat_count(void *state)
{
	const struct source *source = state;

	return stall_bpf_waits_made_count(source->waits);
}

static bool read_stat(void *state, size_t number, struct stall_wait_stat *ret)
{
	const struct source *source = state;
	size_t count, index;

	if (!stall_bpf_waits_made_stat(source->waits, number, &index))
		return false;
	const volatile struct stall_wait_stat *stat =
		&stall_bpf_waits_stats(source->waits, &count)[index];
	const volatile uint64_t *from = (const volatile uint64_t *)stat;
	uint64_t words[sizeof(*ret) / sizeof(uint64_t)];

	if (!stat->used)
		return false;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		words[i] = from[i];
	memcpy(ret, words, sizeof(*ret));
	return ret->key.kind < STALL_WAIT_KINDS;
}

static uint64_t take_max(void *state, size_t number)
{
	struct source *source = state;
	size_t index;

	return stall_bpf_waits_made_stat(source->waits, number, &index)
		       ? stall_bpf_waits_take_max(source->waits, index)
		       : 0;
}

static bool retire(void *state, size_t number, struct stall_wait_stat *ret)
{
	struct source *source = state;
	size_t index;

	return stall_bpf_waits_made_stat(source->waits, number, &index) &&
	       stall_bpf_waits_retire(source->waits, index, ret);
}

static void set_role(void *state, const struct stall_wait_key *key, enum stall_wait_role role)
{
	struct source *source = state;

	stall_bpf_waits_set_role(source->waits, key, role);
}

static bool find_file(void *state, const struct stall_wait_key *key, struct stall_wait_file *ret)
{
	return false; // records have all data
}

/* Rest. */

static bool rest(void *state, struct stall_wait_rest *ret)
{
	const struct source *source = state;

	return stall_sentinel_rest(source->sentinel, ret);
}

static int64_t call_added_ns(void *state)
{
	const struct source *source = state;

	return stall_bpf_waits_call_added_ns(source->waits);
}

static struct stall_error *sample(void *state, stall_sample_fn take, void *arg)
{
	struct source *source = state;

	return stall_sentinel_sample(source->sentinel, take, arg);
}

static uint64_t sample_due_ns(void *state, uint64_t wanted_ns)
{
	struct source *source = state;

	return stall_sentinel_sample_due_ns(source->sentinel, wanted_ns);
}

/* The wait programs themselves. */

static void lost(void *state, uint64_t ret[STALL_LOST_CAUSES])
{
	struct source *source = state;

	stall_bpf_waits_lost(source->waits, ret);
}

// A function that the server has. False: it does not have it.
static bool find_function(const struct source *source, size_t function,
			  struct stall_server_probe_state *ret)
{
	*ret = (struct stall_server_probe_state){};
	if (source->uprobes)
		stall_server_uprobes_state(source->uprobes, function, ret);
	return ret->places || ret->hits;
}

static struct stall_error *programs(void *state, struct stall_wait_program **ret, size_t *ret_count)
{
	const struct source *source = state;
	size_t count;
	const struct stall_wait_program *kernel = stall_bpf_waits_programs(source->waits, &count);
	struct stall_wait_program *all =
		calloc(count + stall_server_function_count + 1, sizeof(*all));

	if (!all)
		return &stall_enomem;
	memcpy(all, kernel, count * sizeof(*all));
	for (size_t i = 0; i < stall_server_function_count; i++) {
		struct stall_server_probe_state function;

		if (find_function(source, i, &function) || function.refused)
			all[count++] = (struct stall_wait_program){stall_server_functions[i].name,
								   "uprobe", function.why_not};
	}
	const char *unread = source->uprobes ? stall_server_uprobes_unread(source->uprobes) : NULL;
	if (unread)
		all[count++] = (struct stall_wait_program){"server functions", "uprobes", unread};
	*ret = all;
	*ret_count = count;
	return NULL;
}

static struct stall_error *functions(void *state, struct stall_wait_hits **ret, size_t *ret_count)
{
	struct stall_wait_hits *all = calloc(stall_server_function_count + 1, sizeof(*all));
	size_t count = 0;

	if (!all)
		return &stall_enomem;
	for (size_t i = 0; i < stall_server_function_count; i++) {
		const struct stall_server_function *known = &stall_server_functions[i];
		struct stall_server_probe_state function;

		if (find_function(state, i, &function))
			all[count++] =
				(struct stall_wait_hits){known->name, function.hits, known->event};
	}
	*ret = all;
	*ret_count = count;
	return NULL;
}

static const struct stall_wait_source_calls calls = {
	.name = "bpf",
	.destroy = destroy,
	.snapshot = snapshot,
	.add = add,
	.remove = remove_process,
	.probe_server = probe_server,
	.ignore = ignore,
	.set_threshold = set_threshold,
	.threshold = threshold,
	.fd = fd,
	.timeout_ms = timeout_ms,
	.in_flight_by = in_flight_by,
	.poll = poll_source,
	.consume = consume,
	.slot_limit = slot_limit,
	.slot_count = slot_count,
	.read_slot = read_slot,
	.slot_is = slot_is,
	.copy_stacks = copy_stacks,
	.read_word = read_word,
	.stat_count = stat_count,
	.read_stat = read_stat,
	.take_max = take_max,
	.retire = retire,
	.set_role = set_role,
	.find_file = find_file,
	.lost = lost,
	.rest = rest,
	.call_added_ns = call_added_ns,
	.sample = sample,
	.sample_due_ns = sample_due_ns,
	.programs = programs,
	.functions = functions,
};

// Room for twice as many threads as there are, so that a server can grow.
static uint32_t slots_for(size_t threads)
{
	uint32_t slots = LEAST_SLOTS;

	while (slots < MOST_SLOTS && slots < 2 * threads)
		slots *= 2;
	return slots;
}

struct stall_error *stall_wait_source_bpf(const struct stall_wait_source_options *options,
					  struct stall_wait_source *ret)
{
	struct stall_bpf_waits_options bpf;
	struct source *source = calloc(1, sizeof(*source));

	if (!source)
		return &stall_enomem;
	stall_bpf_waits_options_init(&bpf);
	bpf.kinds = options->kinds;
	bpf.no_timer = options->no_timer;
	bpf.force = options->force;
	bpf.at_rest = options->at_rest;
	bpf.no_attach = options->no_attach;
	bpf.max_threads = slots_for(options->threads);
	memcpy(bpf.threshold_ns, options->threshold_ns, sizeof(bpf.threshold_ns));
	memcpy(source->threshold_ns, options->threshold_ns, sizeof(source->threshold_ns));
	source->max_threads = bpf.max_threads;
	struct stall_error *err = stall_bpf_waits_create(&bpf, &source->waits);
	if (!err)
		err = stall_sentinel_create(source->waits, source->max_threads, options->at_rest,
					    options->kinds, options->threshold_ns,
					    &source->sentinel);
	if (!err && options->uprobes)
		err = stall_server_uprobes_create(source->waits, &source->uprobes);
	if (err) {
		destroy(source);
		return err;
	}
	*ret = (struct stall_wait_source){.calls = &calls, .state = source};
	return NULL;
}
