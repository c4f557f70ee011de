// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_unwind.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "capture/library_frames.h"
#include "ebpf/fair_share.h"
#include "lock/lock.h"
#include "snapshot/thread_record.h"

#define MEMORY_SLOTS 32768 // of stacks that were unwound before
#define SECOND_NS UINT64_C(1000000000)
// The age of a record at which more arrive than can be unwound. A wait in flight may soon be over.
#define BEHIND_NS UINT64_C(500000000)
#define BEHIND_IN_FLIGHT_NS UINT64_C(20000000)
// rcx, where the instruction leaves its return address, and the six arguments: by DWARF number.
#define CALL_REGS                                                                                  \
	(1U << STALL_REG_SP | 1U << STALL_REG_PC | 1U << 2 | 1U << 5 | 1U << 4 | 1U << 1 |         \
	 1U << 10 | 1U << 8 | 1U << 9)

struct memory {
	uint64_t hash;
	uint32_t stack_id;
	enum stall_label label;
};

struct stall_wait_unwinder {
	struct stall_wait_unwinder_options options;
	struct memory memory[MEMORY_SLOTS];
	struct stall_wait_unwound_counts counts;
	struct stall_fair_share share;
};

struct stall_error *stall_wait_unwinder_create(const struct stall_wait_unwinder_options *options,
					       struct stall_wait_unwinder **ret)
{
	struct stall_wait_unwinder *unwinder = calloc(1, sizeof(*unwinder));

	if (!unwinder)
		return &stall_enomem;
	unwinder->options = *options;
	*ret = unwinder;
	return NULL;
}

void stall_wait_unwinder_destroy(struct stall_wait_unwinder *unwinder)
{
	free(unwinder);
}

void stall_wait_unwinder_set_stacks(struct stall_wait_unwinder *unwinder,
				    struct stall_wait_stacks *stacks)
{
	unwinder->options.stacks = stacks;
	memset(unwinder->memory, 0, sizeof(unwinder->memory));
}

struct stall_wait_unwound_counts stall_wait_unwinder_counts(
	const struct stall_wait_unwinder *unwinder)
{
	return unwinder->counts;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 29;
}

// Two stack copies with equal hashes unwind alike: the hash is over their PC, and the places and
// values of words that point into code or into the stack itself.
static uint64_t stack_hash(const struct stall_wait_process *process,
			   const struct stall_wait_record *record, uint64_t stack_address,
			   const uint8_t *stack, size_t stack_size)
{
	static const uint8_t saved[] = {STALL_BPF_SP,  STALL_BPF_BP,  STALL_BPF_BX, STALL_BPF_R12,
					STALL_BPF_R13, STALL_BPF_R14, STALL_BPF_R15};
	uint64_t sp = record->regs[STALL_BPF_SP], end = stack_address + stack_size;
	uint64_t hash = mix(process->generation, record->regs[STALL_BPF_IP]);
	uint64_t word;

	hash = mix(hash, (uint64_t)record->key.tgid << 32 | stack_size);
	for (size_t i = 0; i < sizeof(saved); i++) {
		word = record->regs[saved[i]];
		if (word >= stack_address && word < end)
			hash = mix(hash, (word - sp) << 4 | i);
	}
	for (size_t at = 0; stack_size - at >= sizeof(word); at += sizeof(word)) {
		memcpy(&word, stack + at, sizeof(word));
		if (word >= process->low && word < process->high)
			hash = mix(mix(hash, at), word);
		else if (word >= stack_address && word < end)
			hash = mix(mix(hash, at), word - sp);
	}
	return hash ? hash : 1;
}

static bool within_limit(struct stall_wait_unwinder *unwinder, const struct stall_wait_item *item)
{
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t late_ns =
		item->record.type == STALL_RECORD_IN_FLIGHT ? BEHIND_IN_FLIGHT_NS : BEHIND_NS;
	bool is_behind = item->received_ns > item->record.now_ns + late_ns;

	return stall_fair_take(&unwinder->share, item->flow,
			       SECOND_NS / unwinder->options.stacks_per_second, now, is_behind);
}

static bool recall(struct stall_wait_unwinder *unwinder, struct stall_wait_item *item,
		   uint64_t hash)
{
	const struct memory *memory = &unwinder->memory[hash % MEMORY_SLOTS];

	if (memory->hash != hash || item->identify)
		return false;
	item->stack_id = memory->stack_id;
	item->label = item->exact ? memory->label : STALL_RACED;
	unwinder->counts.recalled++;
	return true;
}

static void remember(struct stall_wait_unwinder *unwinder, const struct stall_wait_item *item,
		     uint64_t hash)
{
	// Memory outside the copy is not in the hash.
	if (item->stack_id && item->label != STALL_RACED)
		unwinder->memory[hash % MEMORY_SLOTS] =
			(struct memory){hash, item->stack_id, item->label};
}

// The threads of a batch that are to be unwound, as a snapshot.
struct job {
	struct stall_snapshot snapshot;
	struct stall_wait_item **items; // by thread
	uint64_t *hashes;
	bool *stale;	   // by thread
	uint32_t *numbers; // by index into stall_wait_processes: 1 + number in the snapshot
};

static void job_deinit(struct job *job)
{
	free(job->snapshot.processes);
	free(job->snapshot.threads);
	free(job->items);
	free(job->hashes);
	free(job->stale);
	free(job->numbers);
}

static struct stall_error *job_init(struct job *job, const struct stall_wait_unwinder *unwinder,
				    size_t count)
{
	size_t processes = unwinder->options.processes->count;

	job->snapshot.arena = unwinder->options.arena;
	job->snapshot.backend = "bpf";
	job->snapshot.processes = calloc(processes + 1, sizeof(*job->snapshot.processes));
	job->snapshot.threads = calloc(count + 1, sizeof(*job->snapshot.threads));
	job->items = calloc(count + 1, sizeof(*job->items));
	job->hashes = calloc(count + 1, sizeof(*job->hashes));
	job->stale = calloc(count + 1, sizeof(*job->stale));
	job->numbers = calloc(processes + 1, sizeof(*job->numbers));
	if (!job->snapshot.processes || !job->snapshot.threads || !job->items || !job->hashes ||
	    !job->stale || !job->numbers)
		return &stall_enomem;
	return NULL;
}

static uint32_t number_of_process(struct job *job, const struct stall_wait_processes *processes,
				  uint32_t process)
{
	if (!job->numbers[process]) {
		const struct stall_snapshot *snapshot = processes->processes[process].snapshot;

		job->snapshot.processes[job->snapshot.process_count++] = snapshot->processes[0];
		// They are all from one source.
		job->snapshot.memory.read = snapshot->memory.read;
		job->numbers[process] = job->snapshot.process_count;
	}
	return job->numbers[process] - 1;
}

// What the kernel saved at the entry of the call; at its exit ax holds the result.
static void fill_thread(const struct stall_wait_item *item, uint32_t process,
			struct stall_thread *ret)
{
	struct stall_bpf_thread record = {
		.flags = STALL_BPF_REGS,
		.tid = item->record.tid,
		.ns_tid = item->record.ns_tid,
	};

	memcpy(record.regs, item->record.regs, sizeof(record.regs));
	memcpy(record.comm, item->record.comm, sizeof(record.comm));
	record.regs[STALL_BPF_AX] = (uint64_t)-ENOSYS;
	stall_record_fill(&record, ret->kernel_frames, ret); // there are none
	if (item->record.flags & STALL_SLOT_CALL_REGS)
		ret->regs.valid &= CALL_REGS;
	ret->process = process;
	ret->stack = (uint8_t *)item->stack;
	ret->stack_address = item->stack_address;
	ret->stack_size = item->stack_size;
}

static void add_thread(struct job *job, const struct stall_wait_unwinder *unwinder,
		       struct stall_wait_item *item, uint64_t hash)
{
	size_t thread = job->snapshot.thread_count++;
	uint32_t process = number_of_process(job, unwinder->options.processes, item->process);

	fill_thread(item, process, &job->snapshot.threads[thread]);
	job->items[thread] = item;
	job->hashes[thread] = hash;
}

static enum stall_label label_of(const struct stall_wait_item *item,
				 const struct stall_stack *stack)
{
	if (!item->exact || stack->live_reads)
		return STALL_RACED;
	return stack->end == STALL_UNWIND_NO_MEMORY ? STALL_TRUNCATED : STALL_VERIFIED;
}

static void take_stack(struct stall_wait_unwinder *unwinder, const struct job *job,
		       const struct stall_unwound *unwound, size_t thread)
{
	const struct stall_stack *stack = &unwound->stacks[thread];
	struct stall_wait_item *item = job->items[thread];
	bool full = false;

	if (stack->end == STALL_UNWIND_NOT_TRIED)
		unwinder->counts.failed++;
	else
		unwinder->counts.unwound++;
	item->stack_id = stall_wait_stacks_add(unwinder->options.stacks, &job->snapshot, unwound,
					       stack, &full);
	unwinder->counts.no_room += full;
	item->label = label_of(item, stack);
	remember(unwinder, item, job->hashes[thread]);
}

static void identify(struct stall_wait_unwinder *unwinder, const struct job *job,
		     const struct stall_unwound *unwound, size_t thread)
{
	struct stall_wait_item *item = job->items[thread];
	struct stall_wait_process *process = &unwinder->options.processes->processes[item->process];
	const struct stall_lock_wait wait =
		stall_wait_of_record(&item->record, job->snapshot.threads[thread].process);

	stall_wait_identify(unwound, &unwound->stacks[thread], &wait,
			    item->futex.readable ? &item->futex : NULL, process, &item->identity);
	item->identified = true;
}

// Locks that are known by name have their name from the symbol tables. (No name: no error.)
static struct stall_error *name_locks(struct stall_wait_unwinder *unwinder, const struct job *job)
{
	size_t count = 0;
	_cleanup_free_ struct stall_lock *locks =
		calloc(job->snapshot.thread_count + 1, sizeof(*locks));
	_cleanup_free_ struct stall_wait_item **owners =
		calloc(job->snapshot.thread_count + 1, sizeof(*owners));

	if (!locks || !owners)
		return &stall_enomem;
	for (size_t i = 0; i < job->snapshot.thread_count; i++) {
		struct stall_wait_item *item = job->items[i];
		if (!item->identified || !item->identity.object)
			continue;
		owners[count] = item;
		locks[count++] = (struct stall_lock){
			.process = job->snapshot.threads[i].process,
			.address = item->identity.object,
			.kind = item->identity.role == STALL_ROLE_COND ? STALL_LOCK_COND
								       : STALL_LOCK_UNKNOWN,
		};
	}
	struct stall_locks named = {.locks = locks, .count = count};
	struct stall_error *err =
		count ? stall_locks_name(&named, unwinder->options.worker, &job->snapshot) : NULL;
	for (size_t i = 0; i < count; i++) {
		owners[i]->identity.object = locks[i].address;
		if (locks[i].symbol && locks[i].symbol_offset &&
		    asprintf(&owners[i]->symbol, "%s+0x%lx", locks[i].symbol,
			     (unsigned long)locks[i].symbol_offset) >= 0)
			free(locks[i].symbol);
		else
			owners[i]->symbol = locks[i].symbol;
	}
	return err;
}

// Whether a stack begins or ends in code that our copy of the mappings does not have: a library
// that was loaded since.
static bool meets_unknown_code(const struct job *job, const struct stall_unwound *unwound,
			       size_t thread)
{
	const struct stall_stack *stack = &unwound->stacks[thread];

	for (uint32_t i = 0; i < stack->count; i++) {
		const struct stall_frame *frame = &unwound->frames[stack->frames[i]];
		if (frame->module == STALL_NO_MODULE &&
		    !stall_maps_find(job->snapshot.processes[frame->process].maps, frame->pc))
			return true;
	}
	return false;
}

// Reads the mappings again of those processes that need it. *ret_again: the job is to be done again
// with them. job->stale says which stacks need a reading of the mappings that is not due yet.
static struct stall_error *unwind_again(struct stall_wait_unwinder *unwinder, struct job *job,
					const struct stall_unwound *unwound, bool *ret_again)
{
	struct stall_wait_processes *processes = unwinder->options.processes;
	bool again = false;

	for (size_t i = 0; i < job->snapshot.thread_count; i++) {
		uint32_t number = job->items[i]->process;
		bool changed = false;

		if (!meets_unknown_code(job, unwound, i))
			continue;
		struct stall_error *err =
			stall_wait_process_refresh(processes, &processes->processes[number], false,
						   &changed);
		if (err && err->code == STALL_ERROR_NO_MEMORY)
			return err;
		stall_error_destroy(err); // it has ended: use the mappings that there are
		again |= changed;
		job->stale[i] = !changed;
		if (changed)
			job->snapshot.processes[job->numbers[number] - 1] =
				processes->processes[number].snapshot->processes[0];
	}
	*ret_again = again;
	return NULL;
}

// Code without a file is found again after a reading: the program generates it.
static void settle_refreshes(struct stall_wait_unwinder *unwinder, struct job *job,
			     const struct stall_unwound *unwound, bool again)
{
	for (size_t i = 0; i < job->snapshot.thread_count; i++) {
		bool unknown = meets_unknown_code(job, unwound, i);

		if (!unknown)
			stall_wait_process_is_known(
				&unwinder->options.processes->processes[job->items[i]->process]);
		job->stale[i] = job->stale[i] && unknown && !again;
	}
}

static struct stall_error *unwind(struct stall_wait_unwinder *unwinder, const struct job *job,
				  struct stall_unwound *unwound)
{
	struct stall_error *err =
		stall_worker_unwind(unwinder->options.worker, &job->snapshot, unwound);

	return err ? err : stall_library_frames_drop(&job->snapshot, unwound);
}

static struct stall_error *run_job(struct stall_wait_unwinder *unwinder, struct job *job)
{
	_cleanup_(stall_unwound_deinit) struct stall_unwound unwound = {};
	bool again = false, identified = false;
	struct stall_error *err = unwind(unwinder, job, &unwound);

	if (!err)
		err = unwind_again(unwinder, job, &unwound, &again);
	if (!err && again) {
		stall_unwound_deinit(&unwound);
		err = unwind(unwinder, job, &unwound);
	}
	if (err)
		return err;
	settle_refreshes(unwinder, job, &unwound, again);
	for (size_t i = 0; i < job->snapshot.thread_count; i++) {
		take_stack(unwinder, job, &unwound, i);
		// A role from frames without names would be kept for long.
		if (!job->items[i]->identify || job->stale[i])
			continue;
		identify(unwinder, job, &unwound, i);
		identified = true;
	}
	return identified ? name_locks(unwinder, job) : NULL;
}

struct stall_error *stall_wait_unwind(struct stall_wait_unwinder *unwinder,
				      struct stall_wait_item *items, size_t count)
{
	_cleanup_(job_deinit) struct job job = {};
	struct stall_error *err = job_init(&job, unwinder, count);

	for (size_t i = 0; !err && i < count; i++) {
		const struct stall_wait_process *process =
			&unwinder->options.processes->processes[items[i].process];
		if (!items[i].stack || process->ended)
			continue;
		uint64_t hash = stack_hash(process, &items[i].record, items[i].stack_address,
					   items[i].stack, items[i].stack_size);
		if (recall(unwinder, &items[i], hash))
			continue;
		// A word that is never examined could hide a stall for as long as the server runs.
		if (within_limit(unwinder, &items[i]) || items[i].identify)
			add_thread(&job, unwinder, &items[i], hash);
		else
			unwinder->counts.over_limit++;
	}
	if (!err && job.snapshot.thread_count)
		err = run_job(unwinder, &job);
	return err;
}
