// SPDX-License-Identifier: Apache-2.0
#include "sources/sentinel.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "ebpf/passes_loader.h"
#include "ebpf/uprobes_loader.h"
#include "ebpf/wait_kinds.h"
#include "ebpf/waits_attach.h"
#include "ebpf/waits_read.h"
#include "proc/read_child.h"
#include "snapshot/proc_thread.h"
#include "snapshot/thread_record.h"
#include "sources/resting.h"

#define MAX_ASKED 16		   // words to identify, at once
#define ASK_STACK 16384		   // bytes of a stack that show what its thread waits for
#define AGAIN_NS UINT64_C(1000000) // until roles are known that were asked for

// A wait that lasts longer is no reason to be armed any more: everything was reported of it, and a
// program may have threads that wait for a lock forever. On a word that no stack identifies it may
// be one for work, as in programs without symbols.
#define REASON_NS UINT64_C(60000000000)
#define UNKNOWN_REASON_NS UINT64_C(10000000000)

// A word to identify, and the stack of one of its waiters.
struct question {
	struct stall_wait_record record;
	uint8_t stack[ASK_STACK];
};

struct process {
	struct stall_target target;
	bool execed; // to be reported
};

struct stall_sentinel {
	struct stall_bpf_waits *waits;
	bool rests;
	uint32_t kinds;
	uint64_t threshold_ns[STALL_WAIT_KINDS];
	struct stall_resting resting;
	uint64_t pass_ns;   // when the latest began
	uint64_t sample_ns; // when the next one is a sample; UINT64_MAX: none is wanted
	uint64_t decide_ns; // when to decide again without a pass; 0: not
	bool has_unknown;   // waits on words that are not known yet
	struct process *processes;
	size_t process_count;
	struct question questions[MAX_ASKED];
	size_t question_count;
	// By the index of a stat: where the waiter was on its stack, whose stack gave the role. The
	// same word may be used to wait for work and for a lock.
	uint64_t *marks;
	size_t mark_count;
	// By the index of a slot: the wait, by its seq, whose stack was asked for. Threads that wait on
	// one word at different places would else be asked in turns, again and again.
	uint32_t *asked;
	size_t asked_count;
	// By the index of a slot: the latest sample.
	struct stall_thread_sample *samples;
	size_t sample_count;
	struct stall_bpf_records records;
};

struct stall_error *stall_sentinel_create(struct stall_bpf_waits *waits, size_t max_threads,
					  bool rests, uint32_t kinds,
					  const uint64_t threshold_ns[STALL_WAIT_KINDS],
					  struct stall_sentinel **ret)
{
	struct stall_sentinel *sentinel = calloc(1, sizeof(*sentinel));

	if (!sentinel)
		return &stall_enomem;
	sentinel->waits = waits;
	sentinel->rests = rests;
	sentinel->kinds = kinds;
	sentinel->sample_ns = UINT64_MAX;
	memcpy(sentinel->threshold_ns, threshold_ns, sizeof(sentinel->threshold_ns));
	stall_resting_init(&sentinel->resting, STALL_RESTING_PERCENT,
			   stall_resting_shortest(threshold_ns, kinds));
	stall_bpf_waits_stats(waits, &sentinel->mark_count);
	sentinel->marks = calloc(sentinel->mark_count, sizeof(*sentinel->marks));
	sentinel->asked_count = max_threads;
	sentinel->asked = calloc(max_threads, sizeof(*sentinel->asked));
	if (!sentinel->marks || !sentinel->asked) {
		stall_sentinel_destroy(sentinel);
		return &stall_enomem;
	}
	*ret = sentinel;
	return NULL;
}

void stall_sentinel_destroy(struct stall_sentinel *sentinel)
{
	if (!sentinel)
		return;
	for (size_t i = 0; i < sentinel->process_count; i++)
		stall_target_deinit(&sentinel->processes[i].target);
	free(sentinel->processes);
	free(sentinel->marks);
	free(sentinel->asked);
	free(sentinel->samples);
	stall_bpf_records_deinit(&sentinel->records);
	free(sentinel);
}

struct stall_error *stall_sentinel_add(struct stall_sentinel *sentinel, pid_t pid)
{
	if (!stall_array_resize(&sentinel->processes, sentinel->process_count + 1))
		return &stall_enomem;
	stall_sentinel_remove(sentinel, pid); // that had this number before
	struct process process = {};
	struct stall_error *err = stall_target_init(&process.target, pid);
	if (err)
		return err;
	sentinel->processes[sentinel->process_count++] = process;
	sentinel->pass_ns = 0;
	return NULL;
}

void stall_sentinel_remove(struct stall_sentinel *sentinel, pid_t pid)
{
	for (size_t i = 0; i < sentinel->process_count; i++) {
		if (sentinel->processes[i].target.pid != pid)
			continue;
		stall_target_deinit(&sentinel->processes[i].target);
		sentinel->processes[i] = sentinel->processes[--sentinel->process_count];
		return;
	}
}

void stall_sentinel_set_threshold(struct stall_sentinel *sentinel, enum stall_wait_kind kind,
				  uint64_t ns)
{
	sentinel->threshold_ns[kind] = ns;
	stall_resting_set_threshold(&sentinel->resting,
				    stall_resting_shortest(sentinel->threshold_ns,
							   sentinel->kinds));
}

static const struct process *find_process(const struct stall_sentinel *sentinel, pid_t pid)
{
	for (size_t i = 0; i < sentinel->process_count; i++)
		if (sentinel->processes[i].target.pid == pid)
			return &sentinel->processes[i];
	return NULL;
}

/* Slots. */

// Of a wait in flight, and its stat.
struct flight {
	struct stall_wait_slot slot;
	struct stall_wait_stat stat;
};

// Another program may write both meanwhile.
static bool read_flight(const struct stall_sentinel *sentinel, size_t index, struct flight *ret)
{
	size_t slots, stats;
	const volatile struct stall_wait_slot *slot =
		&stall_bpf_waits_slots(sentinel->waits, &slots)[index];
	const volatile struct stall_wait_stat *all = stall_bpf_waits_stats(sentinel->waits, &stats);
	uint32_t seq = index < slots ? __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) : 0;

	if (!(seq & 1))
		return false;
	ret->slot = *slot;
	if (ret->slot.stat >= stats || ret->slot.key.kind >= STALL_WAIT_KINDS)
		return false;
	ret->stat.key = all[ret->slot.stat].key;
	ret->stat.role = all[ret->slot.stat].role;
	ret->stat.announced = all[ret->slot.stat].announced;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == seq;
}

bool stall_sentinel_slept_on(const struct stall_sentinel *sentinel, size_t slot)
{
	const struct stall_pass *pass = stall_bpf_waits_passed(sentinel->waits, slot);
	struct stall_thread thread = {};
	struct flight flight;

	if (!pass || !read_flight(sentinel, slot, &flight))
		return false;
	const struct process *process = find_process(sentinel, flight.slot.tgid);
	if (!process)
		return false;
	_cleanup_error_ struct stall_error *err =
		stall_proc_status_read(&process->target, flight.slot.tid, &thread);
	return !err && thread.state != 'R' && thread.switches == pass->switches;
}

/* Words that are not known yet. */

static uint64_t mark_of(const struct stall_pass *pass)
{
	return pass->fs_base - pass->regs[STALL_BPF_SP];
}

static bool needs_question(const struct stall_sentinel *sentinel, const struct flight *flight,
			   const struct stall_pass *pass, size_t index)
{
	const uint32_t stat = flight->slot.stat;

	if (index >= sentinel->asked_count || sentinel->asked[index] == flight->slot.seq)
		return false;
	if (flight->slot.key.kind != STALL_WAIT_FUTEX || !flight->stat.key.tgid ||
	    !(flight->slot.flags & STALL_SLOT_ADOPTED))
		return false;
	// No stack shows more than one that was taken at the same place.
	if (flight->stat.announced && flight->stat.role != STALL_ROLE_COND &&
	    flight->stat.role != STALL_ROLE_UNKNOWN)
		return false;
	return sentinel->marks[stat] != mark_of(pass);
}

enum answer {
	ASKED,
	MOVED,	    // the wait was over before its stack could be copied
	UNREADABLE, // no stack shows what it waits for
};

static enum answer ask(struct stall_sentinel *sentinel, const struct flight *flight,
		       const struct stall_pass *pass, size_t index)
{
	const struct process *process = find_process(sentinel, flight->slot.tgid);
	struct question *question = &sentinel->questions[sentinel->question_count];
	struct stall_wait_record *record = &question->record;

	*record = (struct stall_wait_record){
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_END,
		.tid = flight->slot.tid,
		.tgid = flight->slot.tgid,
		.ns_tid = flight->slot.ns_tid,
		.operation = flight->slot.operation,
		.key = flight->slot.key,
		.start_ns = flight->slot.start_ns,
		.now_ns = flight->slot.start_ns,
		.value = flight->slot.value,
		.slot = index,
		.seq = flight->slot.seq,
		.flags = STALL_SLOT_FIRST | STALL_SLOT_IN_FLIGHT,
		.stack_address = pass->regs[STALL_BPF_SP],
	};
	memcpy(record->regs, pass->regs, sizeof(record->regs));
	memcpy(record->comm, flight->slot.comm, sizeof(record->comm));
	if (process)
		record->stack_size =
			stall_read_child_range(&process->target, record->stack_address,
					       question->stack, sizeof(question->stack));
	if (!stall_sentinel_slept_on(sentinel, index))
		return MOVED;
	return record->stack_size ? ASKED : UNREADABLE;
}

static bool is_idle(enum stall_wait_kind kind, enum stall_wait_role role)
{
	return stall_watch_kind_is_idle(stall_watch_kind_of(kind, role));
}

static bool is_long(const struct stall_sentinel *sentinel, const struct flight *flight,
		    uint64_t now_ns)
{
	uint32_t kind = flight->slot.key.kind;
	uint64_t ns = now_ns - flight->slot.start_ns;

	if (is_idle(kind, flight->stat.role) ||
	    !stall_resting_is_long(ns, sentinel->threshold_ns[kind]))
		return false;
	if (kind != STALL_WAIT_FUTEX || flight->stat.role != STALL_ROLE_UNKNOWN)
		return ns < sentinel->threshold_ns[kind] + REASON_NS;
	return flight->stat.announced && ns < sentinel->threshold_ns[kind] + UNKNOWN_REASON_NS;
}

static bool is_asked(const struct stall_sentinel *sentinel, const struct stall_wait_key *key)
{
	for (size_t i = 0; i < sentinel->question_count; i++)
		if (!memcmp(&sentinel->questions[i].record.key, key, sizeof(*key)))
			return true;
	return false;
}

// Before the first question: its answer may take long, where the process's memory map is locked.
static void find_long_waits(struct stall_sentinel *sentinel, uint64_t now_ns)
{
	size_t count;

	stall_bpf_waits_slots(sentinel->waits, &count);
	sentinel->has_unknown = false;
	for (size_t i = 0; i < count; i++) {
		const struct stall_pass *pass = stall_bpf_waits_passed(sentinel->waits, i);
		struct flight flight;

		if (!pass || !read_flight(sentinel, i, &flight))
			continue;
		if (is_asked(sentinel, &flight.slot.key) ||
		    needs_question(sentinel, &flight, pass, i))
			sentinel->has_unknown = true;
		else if (is_long(sentinel, &flight, now_ns))
			stall_resting_saw_long_wait(&sentinel->resting, now_ns);
	}
}

static void ask_once(struct stall_sentinel *sentinel, size_t index)
{
	const struct stall_pass *pass = stall_bpf_waits_passed(sentinel->waits, index);
	struct flight flight;

	if (!pass || !read_flight(sentinel, index, &flight) ||
	    is_asked(sentinel, &flight.slot.key) || !needs_question(sentinel, &flight, pass, index))
		return;
	enum answer answer = ask(sentinel, &flight, pass, index);
	if (answer == MOVED)
		return;
	sentinel->marks[flight.slot.stat] = mark_of(pass);
	sentinel->asked[index] = flight.slot.seq;
	stall_bpf_waits_announce(sentinel->waits, flight.slot.stat);
	sentinel->question_count += answer == ASKED;
}

static void ask_unknown(struct stall_sentinel *sentinel)
{
	size_t count;

	stall_bpf_waits_slots(sentinel->waits, &count);
	for (size_t i = 0; i < count && sentinel->question_count < MAX_ASKED; i++)
		ask_once(sentinel, i);
}

/* Passes. */

// `samples`: of the threads, for the history; NULL: none.
static struct stall_error *pass_over(struct stall_sentinel *sentinel, struct process *process,
				     struct stall_bpf_records *samples, uint64_t *threads)
{
	struct stall_bpf_pass pass;
	struct stall_error *err =
		stall_bpf_waits_pass(sentinel->waits, process->target.pid, samples, &pass);

	if (err)
		return err;
	*threads += pass.threads;
	// While the programs are attached they report it.
	process->execed |= pass.execed && !stall_bpf_waits_is_attached(sentinel->waits);
	return NULL;
}

static struct stall_error *pass_over_all(struct stall_sentinel *sentinel, uint64_t *ret_threads)
{
	struct stall_error *err = NULL;

	*ret_threads = 0;
	for (size_t i = 0; !err && i < sentinel->process_count; i++)
		err = pass_over(sentinel, &sentinel->processes[i], NULL, ret_threads);
	return err;
}

// The long waits are a part of what a pass costs.
static struct stall_error *pass(struct stall_sentinel *sentinel)
{
	uint64_t cpu_ns = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID), threads;

	sentinel->pass_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_error *err = pass_over_all(sentinel, &threads);
	if (err)
		return err;
	find_long_waits(sentinel, stall_clock_ns(CLOCK_MONOTONIC));
	stall_resting_passed(&sentinel->resting, threads,
			     stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns);
	return NULL;
}

static struct stall_error *arm(struct stall_sentinel *sentinel)
{
	_cleanup_error_ struct stall_error *refused = stall_bpf_waits_attach(sentinel->waits);
	uint64_t threads, now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	// The passes go on, and find the waits as before.
	if (refused) {
		stall_resting_refused(&sentinel->resting, now_ns, refused->message);
		return NULL;
	}
	stall_resting_armed(&sentinel->resting, now_ns);
	struct stall_error *err = pass_over_all(sentinel, &threads);
	stall_bpf_waits_set_uprobes(sentinel->waits);
	return err;
}

static void disarm(struct stall_sentinel *sentinel)
{
	stall_bpf_waits_rest_uprobes(sentinel->waits);
	stall_bpf_waits_detach(sentinel->waits);
	stall_resting_disarmed(&sentinel->resting);
}

static struct stall_error *decide(struct stall_sentinel *sentinel, uint64_t now_ns)
{
	bool wanted = stall_resting_wants_armed(&sentinel->resting, now_ns);

	if (wanted == sentinel->resting.armed)
		return NULL;
	if (wanted)
		return arm(sentinel);
	disarm(sentinel);
	return NULL;
}

static uint64_t next_pass_ns(const struct stall_sentinel *sentinel)
{
	return sentinel->pass_ns + stall_resting_interval_ns(&sentinel->resting);
}

uint64_t stall_sentinel_due_ns(const struct stall_sentinel *sentinel)
{
	if (!sentinel->rests || !sentinel->process_count)
		return UINT64_MAX;
	uint64_t due_ns = next_pass_ns(sentinel);
	uint64_t rest_ns = stall_resting_due_ns(&sentinel->resting);

	if (rest_ns < due_ns)
		due_ns = rest_ns;
	return sentinel->decide_ns && sentinel->decide_ns < due_ns ? sentinel->decide_ns : due_ns;
}

struct stall_error *stall_sentinel_poll(struct stall_sentinel *sentinel, uint64_t now_ns)
{
	struct stall_error *err = NULL;

	// Where a sample is due, it is the pass, and the next call decides with what it has found.
	if (now_ns < stall_sentinel_due_ns(sentinel) || now_ns >= sentinel->sample_ns)
		return NULL;
	if (now_ns >= next_pass_ns(sentinel))
		err = pass(sentinel);
	else
		find_long_waits(sentinel, now_ns);
	if (!err)
		err = decide(sentinel, stall_clock_ns(CLOCK_MONOTONIC));
	if (err)
		return err;
	if (sentinel->has_unknown)
		ask_unknown(sentinel);
	// What was asked is known as soon as it was delivered.
	sentinel->decide_ns =
		sentinel->question_count ? stall_clock_ns(CLOCK_MONOTONIC) + AGAIN_NS : 0;
	return NULL;
}

/* Delivery. */

static void report_execed(const struct process *process, const struct stall_wait_handler *handler)
{
	const struct stall_wait_record record = {
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_PROCESS,
		.tgid = process->target.pid,
		.result = STALL_PROCESS_EXECED,
	};

	handler->wait(handler->arg, &record, NULL);
}

void stall_sentinel_deliver(struct stall_sentinel *sentinel,
			    const struct stall_wait_handler *handler)
{
	for (size_t i = 0; i < sentinel->question_count; i++)
		handler->wait(handler->arg, &sentinel->questions[i].record,
			      sentinel->questions[i].stack);
	sentinel->question_count = 0;
	for (size_t i = 0; i < sentinel->process_count; i++) {
		bool execed = sentinel->processes[i].execed;

		sentinel->processes[i].execed = false;
		if (execed)
			report_execed(&sentinel->processes[i], handler);
	}
}

bool stall_sentinel_rest(const struct stall_sentinel *sentinel, struct stall_wait_rest *ret)
{
	if (!sentinel->rests)
		return false;
	stall_resting_report(&sentinel->resting, ret);
	return true;
}

/* Samples. */

static struct stall_error *make_room(struct stall_sentinel *sentinel, size_t count)
{
	if (count <= sentinel->sample_count)
		return NULL;
	if (!stall_array_resize(&sentinel->samples, 2 * count))
		return &stall_enomem;
	memset(sentinel->samples + sentinel->sample_count, 0,
	       (2 * count - sentinel->sample_count) * sizeof(*sentinel->samples));
	sentinel->sample_count = 2 * count;
	return NULL;
}

static void keep_sample(struct stall_sentinel *sentinel, const struct stall_pass_sample *seen)
{
	const struct stall_bpf_thread record = {.state = seen->state};
	struct stall_thread_sample *sample = &sentinel->samples[seen->slot];

	_Static_assert(STALL_SAMPLE_FRAMES == STALL_PASS_FRAMES, "the same frames");
	*sample = (struct stall_thread_sample){
		.tgid = seen->key.tgid,
		.state = stall_record_state(&record),
		.call = seen->call,
		.key = seen->key,
		.frame_count = seen->frame_count,
	};
	memcpy(sample->frames, seen->frames, sizeof(sample->frames));
}

static struct stall_error *keep_samples(struct stall_sentinel *sentinel)
{
	const struct stall_bpf_records *records = &sentinel->records;
	struct stall_pass_sample seen;
	struct stall_error *err = NULL;

	for (size_t at = 0; !err && at + sizeof(seen) <= records->size; at += sizeof(seen)) {
		memcpy(&seen, records->data + at, sizeof(seen));
		err = make_room(sentinel, (size_t)seen.slot + 1);
		if (!err)
			keep_sample(sentinel, &seen);
	}
	return err;
}

static struct stall_error *sample_pass(struct stall_sentinel *sentinel)
{
	uint64_t cpu_ns = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID), threads = 0;
	struct stall_error *err = NULL;

	sentinel->pass_ns = stall_clock_ns(CLOCK_MONOTONIC);
	for (size_t i = 0; !err && i < sentinel->process_count; i++) {
		err = pass_over(sentinel, &sentinel->processes[i], &sentinel->records, &threads);
		if (!err)
			err = keep_samples(sentinel);
	}
	if (!err)
		stall_resting_passed(&sentinel->resting, threads,
				     stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns);
	return err;
}

uint64_t stall_sentinel_sample_due_ns(struct stall_sentinel *sentinel, uint64_t wanted_ns)
{
	uint64_t due_ns = sentinel->pass_ns + stall_resting_affordable_ns(&sentinel->resting);

	sentinel->sample_ns = wanted_ns > due_ns ? wanted_ns : due_ns;
	return sentinel->sample_ns;
}

struct stall_error *stall_sentinel_sample(struct stall_sentinel *sentinel, stall_sample_fn take,
					  void *arg)
{
	size_t count;
	const volatile struct stall_wait_slot *slots =
		stall_bpf_waits_slots(sentinel->waits, &count);
	struct stall_error *err = sample_pass(sentinel);

	sentinel->sample_ns = UINT64_MAX;
	if (err)
		return err;
	stall_bpf_waits_slots(sentinel->waits, &count);
	for (size_t i = 0; i < count && i < sentinel->sample_count; i++) {
		struct stall_thread_sample *sample = &sentinel->samples[i];

		if (!stall_bpf_waits_passed(sentinel->waits, i) || !sample->tgid)
			continue;
		sample->tid = slots[i].tid;
		take(arg, sample);
	}
	// To attach programs takes long, and is no part of what a sample costs.
	sentinel->decide_ns = sentinel->pass_ns;
	return NULL;
}
