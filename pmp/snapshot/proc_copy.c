// SPDX-License-Identifier: Apache-2.0
#include "proc_copy.h"

#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "proc_thread.h"
#include "stack_copy.h"

// What was seen of a thread before its stack was copied.
struct sight {
	struct stall_proc_syscall call;
	struct stall_stack_copy copy;
	bool done; // verified, or gone
	bool gone;
};

struct copier {
	struct stall_snapshot *snapshot;
	struct sight *sights;
	size_t count;
	struct stall_stack_copy **copies; // room for the arguments of stall_stacks_copy
	size_t max_stack;
	size_t open; // not settled yet
	size_t full;
};

static struct stall_error *look(const struct copier *copier, struct sight *sight,
				struct stall_proc_syscall *ret)
{
	struct stall_thread *thread = sight->copy.thread;
	const struct stall_target *target = &copier->snapshot->processes[thread->process].target;

	struct stall_error *err = stall_proc_syscall_read(target, thread->tid, ret);
	if (!err)
		err = stall_proc_status_read(target, thread->tid, thread);
	if (err && err->code == STALL_ERROR_NO_PROCESS) {
		stall_error_destroy(err);
		sight->gone = sight->done = true;
		return NULL;
	}
	return err;
}

static void set_registers(struct stall_thread *thread, const struct stall_proc_syscall *call)
{
	// Linux's system call convention: rdi, rsi, rdx, r10, r8, r9; the instruction leaves its
	// return address in rcx. (System V ABI, AMD64 supplement, appendix A.2.1.)
	static const int argument_registers[6] = {5, 4, 1, 10, 8, 9};
	struct stall_regs *regs = &thread->regs;

	*regs = (struct stall_regs){};
	thread->in_syscall = call->number >= 0;
	// A zombie has no stack, and shows zeros.
	if (!call->sp)
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
	thread->in_syscall = false;
	thread->stack_size = 0;
}

static struct stall_error *look_before(struct copier *copier)
{
	for (size_t i = 0; i < copier->count; i++) {
		struct sight *sight = &copier->sights[i];
		struct stall_thread *thread = sight->copy.thread;

		if (sight->done)
			continue;
		struct stall_error *err = look(copier, sight, &sight->call);
		if (err)
			return err;
		thread->passes++;
		if (sight->call.blocked)
			set_registers(thread, &sight->call);
		else
			set_running(thread);
	}
	return NULL;
}

static struct stall_error *copy_stacks(struct copier *copier)
{
	size_t count = 0;

	for (size_t i = 0; i < copier->count; i++)
		if (!copier->sights[i].done && copier->sights[i].call.blocked)
			copier->copies[count++] = &copier->sights[i].copy;
	return stall_stacks_copy(copier->snapshot, copier->copies, count, copier->max_stack,
				 &copier->full);
}

static struct stall_error *settle(struct copier *copier, struct sight *sight)
{
	struct stall_thread *thread = sight->copy.thread;
	struct stall_proc_syscall again = {};
	uint64_t switches = thread->switches;
	char state = thread->state;

	struct stall_error *err = look(copier, sight, &again);
	if (err || sight->gone)
		return err;
	sight->done = switches == thread->switches && state == thread->state &&
		      stall_proc_syscall_is_same(&again, &sight->call);
	if (!sight->done)
		thread->label = STALL_RACED;
	else
		thread->label = sight->copy.truncated ? STALL_TRUNCATED : STALL_VERIFIED;
	return NULL;
}

// The second look tells which copies are exact.
static struct stall_error *look_after(struct copier *copier)
{
	copier->open = 0;
	for (size_t i = 0; i < copier->count; i++) {
		struct sight *sight = &copier->sights[i];
		if (!sight->done && sight->call.blocked) {
			struct stall_error *err = settle(copier, sight);
			if (err)
				return err;
		}
		copier->open += !sight->done;
	}
	return NULL;
}

static struct stall_error *run_pass(struct copier *copier)
{
	struct stall_error *err = look_before(copier);

	if (!err)
		err = copy_stacks(copier);
	return err ? err : look_after(copier);
}

struct stall_error *stall_proc_copy(struct stall_snapshot *snapshot, const size_t *threads,
				    size_t count, const struct stall_snapshot_options *options,
				    uint64_t deadline_ns, bool *gone, size_t *ret_full)
{
	_cleanup_free_ struct sight *sights = calloc(count + 1, sizeof(*sights));
	_cleanup_free_ struct stall_stack_copy **copies = calloc(count + 1, sizeof(*copies));
	struct copier copier = {
		.snapshot = snapshot,
		.sights = sights,
		.count = count,
		.copies = copies,
		.max_stack = options->max_stack,
		.open = count,
	};

	if (!sights || !copies)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		sights[i].copy.thread = &snapshot->threads[threads[i]];
	for (unsigned int pass = 0; copier.open && pass < options->passes; pass++) {
		if (pass && stall_clock_ns(CLOCK_MONOTONIC) > deadline_ns)
			break;
		struct stall_error *err = run_pass(&copier);
		if (err)
			return err;
	}
	for (size_t i = 0; i < count; i++)
		gone[i] = sights[i].gone;
	*ret_full = copier.full;
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
	       !is_same(&before, &call);
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
