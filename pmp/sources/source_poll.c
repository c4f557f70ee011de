// SPDX-License-Identifier: Apache-2.0
// Waits from /proc: the system call of each thread, polled. For kernels that do not support the
// wait programs. A call that two passes see is a wait; shorter ones are not seen.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/cleanup.h"
#include "proc/read_child.h"
#include "sources/poll_ignore.h"
#include "sources/poll_sample.h"
#include "sources/poller.h"
#include "sources/sources.h"
#include "sources/wait_copies.h"
#include "waits/wait_process.h"
#include "waits/wait_roles.h"
#include "waits/wait_source.h"
#include "waits/wait_unwind.h"

#define MAX_REPORTED 256 // waits in flight that are delivered at once
#define MAX_ASKED 16	 // words to identify, at once
#define ASK_STACK 16384	 // bytes of a stack that show what its thread waits for

// A word to identify, and the stack of one of its waiters.
struct question {
	struct stall_wait_record record;
	uint8_t stack[ASK_STACK];
};

struct source {
	struct stall_poller *poller;
	char *why_not_bpf; // NULL: polling was requested by name
	uint64_t worst_ns; // of the longest intervals that were reported
	bool more;	   // something is due that was not delivered yet
	// Filled under the lock, delivered without it.
	struct stall_wait_record *records; // MAX_REPORTED, and then the ends
	struct stall_wait_file *files;
	struct question *questions;
	char why_bpf[512], why_refused[160];
};

/* Processes. */

static void destroy(void *state)
{
	struct source *source = state;

	stall_poller_destroy(source->poller);
	free(source->records);
	free(source->files);
	free(source->questions);
	free(source->why_not_bpf);
	free(source);
}

static struct stall_error *snapshot(void *state, struct stall_arena *arena, pid_t pid,
				    struct stall_snapshot *previous, struct stall_snapshot **ret)
{
	return stall_snapshot_create(arena, &pid, 1, previous, ret);
}

static struct stall_error *probe_server(void *state, struct stall_worker *worker,
					const struct stall_snapshot *snapshot)
{
	return NULL;
}

// Where no source works, both reasons are reported.
static struct stall_error *with_reason(const struct source *source, struct stall_error *err)
{
	if (!source->why_not_bpf || err->code != STALL_ERROR_PERMISSION)
		return err;
	_cleanup_error_ struct stall_error *refused = err;
	return stall_error_create(STALL_ERROR_PERMISSION, "%s; polling: %s", source->why_not_bpf,
				  refused->message);
}

static struct stall_error *add(void *state, pid_t pid)
{
	struct source *source = state;
	struct stall_error *err = stall_poller_add(source->poller, pid);

	return err ? with_reason(source, err) : NULL;
}

static void remove_process(void *state, pid_t pid)
{
	struct source *source = state;

	stall_poller_remove(source->poller, pid);
}

static struct stall_error *ignore(void *state, pid_t pid, pid_t tid, bool on)
{
	struct source *source = state;

	return stall_poller_ignore(source->poller, pid, tid, on);
}

static struct stall_error *set_threshold(void *state, enum stall_wait_kind kind, uint64_t ns)
{
	struct source *source = state;

	stall_poller_set_threshold(source->poller, kind, ns);
	return NULL;
}

// Only the main thread of this program writes them.
static uint64_t threshold(void *state, pid_t pid, enum stall_wait_kind kind)
{
	const struct source *source = state;

	return source->poller->threshold_ns[kind];
}

/* Delivery. */

static int fd(void *state)
{
	const struct source *source = state;

	return source->poller->event;
}

static int timeout_ms(void *state)
{
	const struct source *source = state;

	return source->more ? 0 : -1;
}

static const char *in_flight_by(void *state)
{
	return "poll";
}

static struct stall_error *poll_source(void *state, uint64_t now_ns, bool *ret_changed)
{
	return NULL; // the poller does so permanently
}

static void hurry(void *state)
{
	struct source *source = state;

	stall_poller_poll_now(source->poller);
}

// The deliveries of one consume().
struct batch {
	size_t in_flight, ended, files, asked;
	pid_t replaced; // 0: none
	bool no_memory;
};

static void take_in_flight(struct source *source, struct batch *batch)
{
	struct stall_poller *poller = source->poller;

	source->more = false;
	for (size_t i = 0; i < poller->slot_high && !source->more; i++) {
		struct stall_poll_slot *slot = &poller->slots[i];

		if (!stall_poll_slot_is_due(poller, slot))
			continue;
		source->more = batch->in_flight == MAX_REPORTED;
		if (source->more)
			continue;
		slot->reported = true;
		source->records[batch->in_flight++] =
			stall_poll_slot_record(poller, slot, STALL_RECORD_IN_FLIGHT,
					       slot->thread->seen_ns);
	}
}

// The stack identifies a word, also for waits shorter than the threshold. False: the wait was over
// before its stack could be copied.
static bool take_question(struct source *source, struct stall_poll_slot *slot,
			  struct question *question)
{
	struct stall_wait_record *record = &question->record;

	*record = stall_poll_slot_record(source->poller, slot, STALL_RECORD_END, slot->start_ns);
	record->flags |= STALL_SLOT_FIRST | STALL_SLOT_IN_FLIGHT;
	record->stack_address = slot->thread->call.sp;
	record->stack_size = stall_read_child_range(&slot->process->target, record->stack_address,
						    question->stack, sizeof(question->stack));
	return record->stack_size && stall_poll_slot_is(source->poller, record->slot, record->seq);
}

static bool needs_question(const struct stall_poll_slot *slot, const struct stall_wait_stat *stat)
{
	// A wait that was reported in flight has shown that too.
	return !stat->announced && stat->key.tgid && !slot->reported &&
	       stat->key.kind == STALL_WAIT_FUTEX && stat->role == STALL_ROLE_UNKNOWN;
}

static void take_questions(struct source *source, struct batch *batch)
{
	struct stall_poller *poller = source->poller;

	poller->has_words = false;
	for (size_t i = 0; i < poller->slot_high && !poller->has_words; i++) {
		struct stall_poll_slot *slot = &poller->slots[i];
		struct stall_wait_stat *stat =
			slot->thread ? stall_poll_stats_at(poller->stats, slot->stat) : NULL;

		if (!stat || !needs_question(slot, stat))
			continue;
		if (batch->asked == MAX_ASKED) {
			poller->has_words = true;
			source->more = true;
		} else if (take_question(source, slot, &source->questions[batch->asked])) {
			stat->announced = 1;
			batch->asked++;
		}
	}
}

static void take_replaced(struct source *source, struct batch *batch)
{
	struct stall_poller *poller = source->poller;

	for (size_t i = 0; i < poller->process_count; i++) {
		struct stall_poll_process *process = poller->processes[i];

		if (!process->replaced)
			continue;
		if (batch->replaced) {
			source->more = true;
			return;
		}
		process->replaced = false;
		stall_poller_forget_waits(poller, process);
		batch->replaced = process->target.pid;
	}
}

static struct batch take_batch(struct source *source)
{
	struct stall_poller *poller = source->poller;
	struct batch batch = {};
	eventfd_t value;

	eventfd_read(poller->event, &value);
	stall_poller_lock(poller);
	batch.no_memory = poller->no_memory;
	batch.files = poller->file_count;
	memcpy(source->files, poller->files, batch.files * sizeof(*source->files));
	take_in_flight(source, &batch);
	batch.ended = poller->end_count;
	memcpy(source->records + batch.in_flight, poller->ends,
	       batch.ended * sizeof(*source->records));
	take_questions(source, &batch);
	take_replaced(source, &batch);
	poller->file_count = poller->end_count = 0;
	stall_poller_unlock(poller);
	return batch;
}

// The process executes another program: a new snapshot of it is taken.
static void report_replaced(pid_t pid, const struct stall_wait_handler *handler)
{
	const struct stall_wait_record record = {
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_PROCESS,
		.tgid = pid,
		.result = STALL_PROCESS_EXECED,
	};

	handler->wait(handler->arg, &record, NULL);
}

// Waits in flight come before waits that have ended.
static struct stall_error *consume(void *state, const struct stall_wait_handler *handler,
				   size_t max)
{
	struct source *source = state;
	const struct batch batch = take_batch(source);

	if (batch.no_memory)
		return &stall_enomem;
	for (size_t i = 0; i < batch.files; i++)
		handler->file(handler->arg, &source->files[i]);
	for (size_t i = 0; i < batch.in_flight; i++)
		handler->wait(handler->arg, &source->records[i], NULL);
	if (handler->alarms)
		handler->alarms(handler->arg);
	for (size_t i = 0; i < batch.ended; i++)
		handler->wait(handler->arg, &source->records[batch.in_flight + i], NULL);
	for (size_t i = 0; i < batch.asked; i++)
		handler->wait(handler->arg, &source->questions[i].record,
			      source->questions[i].stack);
	if (batch.replaced)
		report_replaced(batch.replaced, handler);
	return NULL;
}

/* Slots. */

static size_t slot_limit(void *state)
{
	return STALL_POLL_SLOTS;
}

static size_t slot_count(void *state)
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	size_t count = source->poller->slot_high;
	stall_poller_unlock(source->poller);
	return count;
}

static bool slot_is(void *state, size_t index, uint32_t seq)
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	bool is = stall_poll_slot_is(source->poller, index, seq);
	stall_poller_unlock(source->poller);
	return is;
}

static bool read_slot(void *state, size_t index, struct stall_wait_now *ret)
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	const struct stall_poll_slot *slot = &source->poller->slots[index];
	bool found = index < source->poller->slot_high && slot->thread;
	if (found)
		*ret = (struct stall_wait_now){
			.key = slot->call.key,
			.start_ns = slot->start_ns,
			.seq = slot->seq,
			.reported = slot->reported,
			.operation = slot->call.operation,
			.value = slot->call.value,
		};
	stall_poller_unlock(source->poller);
	return found;
}

static struct stall_error *copy_stacks(void *state, struct stall_arena *arena,
				       const struct stall_wait_process *process,
				       struct stall_wait_item *const *items, size_t count)
{
	return stall_wait_copy_stacks(arena, process, items, count, slot_is, state);
}

static bool read_word(void *state, const struct stall_wait_process *process,
		      const struct stall_wait_key *key, struct stall_futex *ret)
{
	return stall_wait_read_word(process, key->id, ret);
}

/* Stats. */

static size_t stat_count(void *state)
{
	const struct source *source = state;

	return stall_poll_stats_count(source->poller->stats);
}

static bool read_stat(void *state, size_t index, struct stall_wait_stat *ret)
{
	struct source *source = state;

	// Most are free, and there are many.
	if (!__atomic_load_n(&stall_poll_stats_at(source->poller->stats, index)->used,
			     __ATOMIC_RELAXED))
		return false;
	stall_poller_lock(source->poller);
	*ret = *stall_poll_stats_at(source->poller->stats, index);
	stall_poller_unlock(source->poller);
	return ret->used;
}

static uint64_t take_max(void *state, size_t index)
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	struct stall_wait_stat *stat = stall_poll_stats_at(source->poller->stats, index);
	uint64_t max_ns = stat->max_ns;
	stat->max_ns = 0;
	stall_poller_unlock(source->poller);
	return max_ns;
}

static bool is_in_use(const struct stall_poller *poller, size_t stat)
{
	for (size_t i = 0; i < poller->slot_high; i++)
		if (poller->slots[i].thread && poller->slots[i].stat == stat)
			return true;
	return false;
}

static bool retire(void *state, size_t index, struct stall_wait_stat *ret)
{
	struct source *source = state;
	struct stall_poller *poller = source->poller;

	stall_poller_lock(poller);
	const struct stall_wait_stat *stat = stall_poll_stats_at(poller->stats, index);
	bool is_free = stat->used && stat->key.tgid && !is_in_use(poller, index);
	if (is_free) {
		*ret = *stat;
		stall_poll_stats_free(poller->stats, index);
	}
	stall_poller_unlock(poller);
	return is_free;
}

static void set_role(void *state, const struct stall_wait_key *key, enum stall_wait_role role)
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	struct stall_wait_stat *stat = stall_poll_stats_find(source->poller->stats, key);
	if (stat)
		stat->role = role;
	stall_poller_unlock(source->poller);
}

static bool find_file(void *state, const struct stall_wait_key *key, struct stall_wait_file *ret)
{
	return false; // records have all data
}

/* Data about the polling itself. */

static void lost(void *state, uint64_t ret[STALL_LOST_CAUSES])
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	memcpy(ret, source->poller->lost, sizeof(source->poller->lost));
	stall_poller_unlock(source->poller);
}

static bool sampling(void *state, struct stall_wait_sampling *ret)
{
	struct source *source = state;
	struct stall_poller *poller = source->poller;

	stall_poller_lock(poller);
	*ret = (struct stall_wait_sampling){
		.interval_ns = poller->interval_ns,
		.longest_ns = poller->longest_ns > poller->interval_ns ? poller->longest_ns
								       : poller->interval_ns,
	};
	if (source->worst_ns < ret->longest_ns)
		source->worst_ns = ret->longest_ns;
	ret->worst_ns = source->worst_ns;
	poller->longest_ns = 0;
	stall_poller_unlock(poller);
	return true;
}

static bool rest(void *state, struct stall_wait_rest *ret)
{
	struct source *source = state;
	struct stall_poller *poller = source->poller;

	stall_poller_lock(poller);
	stall_resting_report(&poller->resting, ret);
	ret->interval_ns = poller->interval_ns;
	stall_poller_unlock(poller);
	return poller->rests;
}

static struct stall_error *sample(void *state, stall_sample_fn take, void *arg)
{
	struct source *source = state;

	stall_poller_lock(source->poller);
	stall_poll_sample(source->poller, take, arg);
	stall_poller_unlock(source->poller);
	return NULL;
}

static const char *why_not_bpf(struct source *source)
{
	snprintf(source->why_bpf, sizeof(source->why_bpf),
		 "%s: /proc is polled every %llu ms: sampled: waits that are not much longer are "
		 "not "
		 "counted, lengths are true to within that time, and who ends a wait is not seen",
		 source->why_not_bpf ? source->why_not_bpf : "polling was asked for by name",
		 (unsigned long long)(source->poller->interval_ns + 500000) / 1000000);
	return source->why_bpf;
}

static const char *why_refused(struct source *source)
{
	if (!source->poller->refused)
		return NULL;
	snprintf(source->why_refused, sizeof(source->why_refused),
		 "%zu threads cannot be read (needs their user, or CAP_SYS_PTRACE)",
		 source->poller->refused);
	return source->why_refused;
}

static struct stall_error *programs(void *state, struct stall_wait_program **ret, size_t *ret_count)
{
	static const struct stall_wait_program uprobes = {
		"server functions", "uprobes",
		"polling has none: which row or metadata lock is waited for is not known"};
	struct source *source = state;
	struct stall_wait_program *all = calloc(3, sizeof(*all));

	if (!all)
		return &stall_enomem;
	stall_poller_lock(source->poller);
	all[0] = (struct stall_wait_program){"polling", "/proc/PID/task/*/syscall",
					     why_refused(source)};
	all[1] = (struct stall_wait_program){"wait programs", "BPF", why_not_bpf(source)};
	stall_poller_unlock(source->poller);
	all[2] = uprobes;
	*ret = all;
	*ret_count = 3;
	return NULL;
}

static const struct stall_wait_source_calls source_calls = {
	.name = "poll",
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
	.hurry = hurry,
	.sampling = sampling,
	.rest = rest,
	.sample = sample,
	.programs = programs,
};

static struct stall_error *init(struct source *source, const char *why_not_bpf,
				const struct stall_wait_source_options *options)
{
	source->records = calloc(MAX_REPORTED + STALL_POLL_ENDS, sizeof(*source->records));
	source->files = calloc(STALL_POLL_FILES, sizeof(*source->files));
	source->questions = calloc(MAX_ASKED, sizeof(*source->questions));
	if (!source->records || !source->files || !source->questions)
		return &stall_enomem;
	if (why_not_bpf) {
		source->why_not_bpf = strdup(why_not_bpf);
		if (!source->why_not_bpf)
			return &stall_enomem;
	}
	return stall_poller_create(options, &source->poller);
}

struct stall_error *stall_wait_source_poll(const struct stall_wait_source_options *options,
					   const char *why_not_bpf, struct stall_wait_source *ret)
{
	struct source *source = calloc(1, sizeof(*source));

	if (!source)
		return &stall_enomem;
	struct stall_error *err = init(source, why_not_bpf, options);
	if (err) {
		destroy(source);
		return err;
	}
	*ret = (struct stall_wait_source){.calls = &source_calls, .state = source};
	return NULL;
}
