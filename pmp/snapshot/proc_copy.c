// SPDX-License-Identifier: Apache-2.0
#include "snapshot/proc_copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "snapshot/call_mode.h"
#include "snapshot/proc_thread.h"
#include "snapshot/stack_copy.h"

// Threads whose stacks are copied together, and checked again right after: the shorter that takes,
// the fewer of them run meanwhile.
#define CHUNK 256

// The state of a thread before its stack was copied.
struct reading {
	struct stall_proc_syscall call;
	struct stall_stack_copy copy;
	bool seen;
	bool done; // verified, or gone
	bool gone;
};

struct copier {
	struct stall_snapshot *snapshot;
	struct reading *readings;
	size_t count;
	size_t max_stack;
	uint64_t deadline_ns;
	size_t full;
	struct stall_call_places places;
};

// The first threads are read in any case: an empty capture is useless.
static bool is_late(size_t index, uint64_t deadline_ns)
{
	return index >= CHUNK && stall_clock_ns(CLOCK_MONOTONIC) > deadline_ns;
}

static struct stall_error *read_state(const struct copier *copier, struct reading *reading,
				      struct stall_proc_syscall *ret)
{
	struct stall_thread *thread = reading->copy.thread;
	const struct stall_target *target = &copier->snapshot->processes[thread->process].target;

	struct stall_error *err = stall_proc_syscall_read(target, thread->tid, ret);
	if (!err)
		err = stall_proc_status_read(target, thread->tid, thread);
	if (err && err->code == STALL_ERROR_NO_PROCESS) {
		stall_error_destroy(err);
		reading->gone = reading->done = true;
		return NULL;
	}
	return err;
}

static void set_registers(struct copier *copier, struct stall_thread *thread,
			  const struct stall_proc_syscall *call)
{
	// Linux's system call convention: rdi, rsi, rdx, r10, r8, r9; the instruction leaves its
	// return address in rcx. (System V ABI, AMD64 supplement, appendix A.2.1.)
	static const int argument_registers[6] = {5, 4, 1, 10, 8, 9};
	struct stall_regs *regs = &thread->regs;

	*regs = (struct stall_regs){};
	thread->in_syscall = call->number >= 0;
	thread->is_32bit = false;
	// A zombie has no stack, and shows zeros.
	if (!call->sp)
		return;
	bool is_64bit = stall_code_is_64bit(call->pc, call->sp);
	const struct stall_target *target = &copier->snapshot->processes[thread->process].target;
	thread->is_32bit = !is_64bit || (thread->in_syscall &&
					 !stall_call_is_64bit(&copier->places, target, call->pc));
	if (thread->is_32bit)
		thread->in_syscall = false;
	if (!is_64bit)
		return;
	regs->value[STALL_REG_SP] = call->sp;
	regs->value[STALL_REG_PC] = call->pc;
	regs->valid = 1u << STALL_REG_SP | 1u << STALL_REG_PC;
	if (!thread->in_syscall)
		return;
	thread->syscall = call->number;
	memcpy(thread->args, call->args, sizeof(thread->args));
	for (int i = 0; i < 6; i++) {
		regs->value[argument_registers[i]] = call->args[i];
		regs->valid |= 1u << argument_registers[i];
	}
	regs->value[2] = call->pc;
	regs->valid |= 1u << 2;
}

static void set_running(struct stall_thread *thread)
{
	thread->label = STALL_RUNNING;
	thread->regs = (struct stall_regs){};
	thread->in_syscall = thread->is_32bit = false;
	thread->stack_size = 0;
}

static struct stall_error *read_before(struct copier *copier, size_t first, size_t end,
				       uint64_t deadline_ns)
{
	for (size_t i = first; i < end && !is_late(i, deadline_ns); i++) {
		struct reading *reading = &copier->readings[i];
		struct stall_thread *thread = reading->copy.thread;

		if (reading->done)
			continue;
		struct stall_error *err = read_state(copier, reading, &reading->call);
		if (err)
			return err;
		reading->seen = true;
		thread->passes++;
		if (reading->call.blocked)
			set_registers(copier, thread, &reading->call);
		else
			set_running(thread);
	}
	return NULL;
}

static struct stall_error *copy_stacks(struct copier *copier, size_t first, size_t end)
{
	struct stall_stack_copy *copies[CHUNK];
	size_t count = 0, full;

	for (size_t i = first; i < end; i++) {
		struct reading *reading = &copier->readings[i];

		if (reading->seen && !reading->done && reading->call.blocked)
			copies[count++] = &reading->copy;
	}
	struct stall_error *err =
		stall_stacks_copy(copier->snapshot, copies, count, copier->max_stack, &full);
	if (!err)
		copier->full += full;
	return err;
}

struct place {
	uint32_t process;
	struct reading *reading;
};

static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	return (x->reading->call.sp > y->reading->call.sp) -
	       (x->reading->call.sp < y->reading->call.sp);
}

// /proc does not show where a stack ends. Where several stacks share a mapping (without guard
// pages, or in memory that the program allocates), each ends before the next stack pointer at the
// latest: otherwise much more than the stack would be copied.
static struct stall_error *find_ends(const struct copier *copier)
{
	_cleanup_free_ struct place *places = calloc(copier->count + 1, sizeof(*places));
	size_t count = 0;

	if (!places)
		return &stall_enomem;
	for (size_t i = 0; i < copier->count; i++) {
		struct reading *reading = &copier->readings[i];

		if (reading->seen && !reading->gone && reading->call.blocked && reading->call.sp)
			places[count++] = (struct place){reading->copy.thread->process, reading};
	}
	qsort(places, count, sizeof(*places), compare_places);
	for (size_t i = 1; i < count; i++) {
		struct reading *reading = places[i - 1].reading;

		// A thread that shares its stack with another one (vfork) has no such end.
		if (places[i].process == places[i - 1].process &&
		    places[i].reading->call.sp > reading->call.sp)
			reading->copy.end = places[i].reading->call.sp;
	}
	return NULL;
}

static struct stall_error *settle(const struct copier *copier, struct reading *reading)
{
	struct stall_thread *thread = reading->copy.thread;
	struct stall_proc_syscall again = {};
	uint64_t switches = thread->switches;
	char state = thread->state;

	struct stall_error *err = read_state(copier, reading, &again);
	if (err || reading->gone)
		return err;
	reading->done = switches == thread->switches && state == thread->state &&
			stall_proc_syscall_is_same(&again, &reading->call);
	if (!reading->done)
		thread->label = STALL_RACED;
	else
		thread->label = reading->copy.truncated ? STALL_TRUNCATED : STALL_VERIFIED;
	return NULL;
}

// The second reading shows which copies are exact.
static struct stall_error *check_after(const struct copier *copier, size_t first, size_t end)
{
	for (size_t i = first; i < end && !is_late(i, copier->deadline_ns); i++) {
		struct reading *reading = &copier->readings[i];

		if (!reading->seen || reading->done || !reading->call.blocked)
			continue;
		struct stall_error *err = settle(copier, reading);
		if (err)
			return err;
	}
	return NULL;
}

// In the first pass all threads were read before; in later ones each chunk is read right before it
// is copied.
static struct stall_error *run_chunk(struct copier *copier, size_t first, bool again)
{
	size_t end = copier->count - first < CHUNK ? copier->count : first + CHUNK;
	struct stall_error *err = NULL;

	if (again)
		err = read_before(copier, first, end, copier->deadline_ns);
	if (!err)
		err = copy_stacks(copier, first, end);
	return err ? err : check_after(copier, first, end);
}

static size_t count_open(const struct copier *copier)
{
	size_t open = 0;

	for (size_t i = 0; i < copier->count; i++)
		open += !copier->readings[i].done;
	return open;
}

static struct stall_error *run_passes(struct copier *copier, unsigned int passes,
				      uint64_t read_deadline_ns)
{
	struct stall_error *err = read_before(copier, 0, copier->count, read_deadline_ns);

	if (!err)
		err = find_ends(copier);
	for (unsigned int pass = 0; !err && pass < passes && count_open(copier); pass++) {
		if (pass && stall_clock_ns(CLOCK_MONOTONIC) > copier->deadline_ns)
			break;
		for (size_t i = 0; !err && i < copier->count && !is_late(i, copier->deadline_ns);
		     i += CHUNK)
			err = run_chunk(copier, i, pass > 0);
	}
	return err;
}

struct stall_error *stall_proc_copy(struct stall_snapshot *snapshot, const size_t *threads,
				    size_t count, const struct stall_snapshot_options *options,
				    uint64_t started_ns, bool *gone, struct stall_proc_left *ret)
{
	uint64_t time_ns = options->deadline_ms * UINT64_C(1000000);
	_cleanup_free_ struct reading *readings = calloc(count + 1, sizeof(*readings));
	struct copier copier = {
		.snapshot = snapshot,
		.readings = readings,
		.count = count,
		.max_stack = options->max_stack,
		.deadline_ns = started_ns + time_ns,
	};

	*ret = (struct stall_proc_left){};
	if (!readings)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		readings[i].copy.thread = &snapshot->threads[threads[i]];
	// A first reading is of little use without a copy and a second reading.
	struct stall_error *err = run_passes(&copier, options->passes, started_ns + time_ns / 2);
	if (err)
		return err;
	ret->full = copier.full;
	for (size_t i = 0; i < count; i++) {
		ret->unseen += !readings[i].seen;
		ret->open += readings[i].seen && !readings[i].done;
		ret->is_32bit += readings[i].copy.thread->is_32bit;
		gone[i] = readings[i].gone || !readings[i].seen;
	}
	if (stall_clock_ns(CLOCK_MONOTONIC) <= copier.deadline_ns)
		ret->open = 0; // those ran in each pass
	return NULL;
}

static struct stall_error *find_run(const struct stall_snapshot *snapshot,
				    const struct stall_thread *thread, bool *ret)
{
	const struct stall_target *target = &snapshot->processes[thread->process].target;
	struct stall_thread now = *thread;
	struct stall_proc_syscall call, before = {
						.blocked = true,
						.number = thread->in_syscall ? thread->syscall : -1,
						.sp = thread->regs.value[STALL_REG_SP],
						.pc = thread->regs.value[STALL_REG_PC],
					};

	if (thread->in_syscall)
		memcpy(before.args, thread->args, sizeof(before.args));
	struct stall_error *err = stall_proc_syscall_read(target, thread->tid, &call);
	if (!err)
		err = stall_proc_status_read(target, thread->tid, &now);
	*ret = err || now.switches != thread->switches || now.state != thread->state ||
	       !stall_proc_syscall_is_same(&before, &call);
	if (!err || err->code != STALL_ERROR_NO_PROCESS)
		return err;
	stall_error_destroy(err);
	return NULL;
}

struct stall_error *stall_proc_find_runs(const struct stall_snapshot *snapshot,
					 const uint32_t *threads, size_t count, bool *ret)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < count; i++)
		err = find_run(snapshot, &snapshot->threads[threads[i]], &ret[i]);
	return err;
}

struct stall_error *stall_proc_note(struct stall_snapshot *snapshot,
				    const struct stall_snapshot_options *options,
				    const struct stall_proc_left *left)
{
	struct stall_error *err = NULL;

	if (left->unseen || left->open)
		err = stall_snapshot_note(
			snapshot, "deadline",
			"the deadline of %u ms was over: %zu threads were not read, of %zu it "
			"is not known whether they ran while they were read; raise --deadline",
			options->deadline_ms, left->unseen, left->open);
	if (!err && left->is_32bit)
		err = stall_snapshot_note(
			snapshot, "32-bit",
			"%zu threads run 32-bit code or are in a 32-bit system call, or may be: "
			"their calls are not shown",
			left->is_32bit);
	if (!err && left->full)
		err = stall_snapshot_note(
			snapshot, "arena-full",
			"no room for the stacks of %zu threads: lower --max-stack", left->full);
	return err;
}

void stall_proc_drop_gone(struct stall_snapshot *snapshot, const bool *gone)
{
	size_t kept = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_process *process = &snapshot->processes[snapshot->threads[i].process];
		if (gone[i]) {
			process->threads_lost++;
			process->thread_count--;
			continue;
		}
		snapshot->threads[kept++] = snapshot->threads[i];
	}
	snapshot->thread_count = kept;
}
