// SPDX-License-Identifier: Apache-2.0
// The backend that needs no privilege beyond ptrace access: stack pointer and program counter from
// /proc/PID/task/TID/syscall, for threads that are blocked. Other registers are not known, so
// unwinding may end early where code keeps a frame pointer.
#include <errno.h>
#include <string.h>

#include "backend.h"
#include "cleanup.h"
#include "clock.h"
#include "proc_thread.h"
#include "stack_copy.h"

static struct stall_error *proc_probe(const struct stall_snapshot_options *options)
{
	const struct stall_target self = {.pid = getpid()};
	char byte = 0, copy;
	struct stall_read read = {.address = (uintptr_t)&byte, .buf = &copy, .size = 1};

	(void)options;
	return stall_target_read_many(&self, &read, 1);
}

static struct stall_error *proc_open(const struct stall_snapshot_options *options, void **ret)
{
	(void)options;
	*ret = NULL;
	return NULL;
}

static void proc_close(void *state)
{
	(void)state;
}

// What was seen of a thread before its stack was copied.
struct sight {
	struct stall_proc_syscall call;
	struct stall_stack_copy copy;
	bool done; // verified, or gone
	bool gone;
};

static struct stall_error *look(const struct stall_target *target, struct stall_thread *thread,
				struct stall_proc_syscall *ret)
{
	struct stall_error *err = stall_proc_syscall_read(target, thread->tid, ret);
	return err ? err : stall_proc_status_read(target, thread->tid, thread);
}

static bool is_gone(struct stall_error *err)
{
	return err && err->code == STALL_ERROR_NO_PROCESS;
}

static void set_registers(struct stall_thread *thread, const struct stall_proc_syscall *call)
{
	// Linux's system call convention: rdi, rsi, rdx, r10, r8, r9; the instruction leaves its
	// return address in rcx. (System V ABI, AMD64 supplement, appendix A.2.1.)
	static const int argument_registers[6] = {5, 4, 1, 10, 8, 9};
	struct stall_regs *regs = &thread->regs;

	*regs = (struct stall_regs){};
	regs->value[STALL_REG_SP] = call->sp;
	regs->value[STALL_REG_PC] = call->pc;
	regs->valid = 1u << STALL_REG_SP | 1u << STALL_REG_PC;
	thread->in_syscall = call->number >= 0;
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
	thread->regs.valid = 0;
	thread->in_syscall = false;
	thread->stack_size = 0;
}

static bool is_same(const struct stall_proc_syscall *a, const struct stall_proc_syscall *b)
{
	return a->blocked == b->blocked && a->number == b->number && a->sp == b->sp &&
	       a->pc == b->pc && !memcmp(a->args, b->args, sizeof(a->args));
}

// First look at every thread that is not settled yet.
static struct stall_error *look_before(struct stall_snapshot *snapshot, struct sight *sights)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_thread *thread = &snapshot->threads[i];
		if (sights[i].done)
			continue;
		struct stall_error *err = look(&snapshot->processes[thread->process].target, thread,
					       &sights[i].call);
		sights[i].gone = sights[i].done = is_gone(err);
		if (is_gone(err)) {
			stall_error_destroy(err);
			continue;
		}
		if (err)
			return err;
		thread->passes++;
		if (!sights[i].call.blocked) {
			set_running(thread);
			continue;
		}
		set_registers(thread, &sights[i].call);
	}
	return NULL;
}

static struct stall_error *copy_stacks(struct stall_snapshot *snapshot, struct sight *sights,
				       size_t max_stack, size_t *ret_full)
{
	_cleanup_free_ struct stall_stack_copy **copies =
		calloc(snapshot->thread_count + 1, sizeof(*copies));
	size_t count = 0;

	if (!copies)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		if (sights[i].done || !sights[i].call.blocked)
			continue;
		sights[i].copy.thread = &snapshot->threads[i];
		copies[count++] = &sights[i].copy;
	}
	return stall_stacks_copy(snapshot, copies, count, max_stack, ret_full);
}

// The second look settles which copies are exact.
static struct stall_error *look_after(struct stall_snapshot *snapshot, struct sight *sights,
				      size_t *ret_open)
{
	size_t open = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_thread *thread = &snapshot->threads[i];
		struct stall_proc_syscall again = {};
		if (sights[i].done)
			continue;
		if (!sights[i].call.blocked) {
			open++;
			continue;
		}
		uint64_t switches = thread->switches;
		char state = thread->state;
		struct stall_error *err =
			look(&snapshot->processes[thread->process].target, thread, &again);
		if (is_gone(err)) {
			stall_error_destroy(err);
			sights[i].gone = sights[i].done = true;
			continue;
		}
		if (err)
			return err;
		bool same = switches == thread->switches && state == thread->state &&
			    is_same(&again, &sights[i].call);
		thread->label = !same			 ? STALL_RACED :
				sights[i].copy.truncated ? STALL_TRUNCATED :
							   STALL_VERIFIED;
		sights[i].done = same;
		open += !same;
	}
	*ret_open = open;
	return NULL;
}

static void drop_gone(struct stall_snapshot *snapshot, const struct sight *sights)
{
	size_t kept = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		if (sights[i].gone) {
			snapshot->processes[snapshot->threads[i].process].threads_lost++;
			snapshot->processes[snapshot->threads[i].process].thread_count--;
			continue;
		}
		snapshot->threads[kept++] = snapshot->threads[i];
	}
	snapshot->thread_count = kept;
}

static struct stall_error *read_pass(struct stall_snapshot *snapshot, struct sight *sights,
				     const struct stall_snapshot_options *options, size_t *ret_open,
				     size_t *ret_full)
{
	struct stall_error *err = look_before(snapshot, sights);

	if (!err)
		err = copy_stacks(snapshot, sights, options->max_stack, ret_full);
	return err ? err : look_after(snapshot, sights, ret_open);
}

static struct stall_error *proc_capture(void *state, struct stall_snapshot *snapshot,
					const struct stall_snapshot_options *options)
{
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t deadline_ns = started_ns + options->deadline_ms * UINT64_C(1000000);
	size_t open = 1, full = 0;

	(void)state;
	struct stall_error *err = stall_proc_list_threads(snapshot, options);
	if (err)
		return err;
	_cleanup_free_ struct sight *sights = calloc(snapshot->thread_count + 1, sizeof(*sights));
	if (!sights)
		return &stall_enomem;
	for (unsigned int pass = 0; open && pass < options->passes; pass++) {
		if (pass && stall_clock_ns(CLOCK_MONOTONIC) > deadline_ns)
			break;
		err = read_pass(snapshot, sights, options, &open, &full);
		if (!err && pass == 0)
			err = stall_snapshot_read_futexes(snapshot);
		if (err)
			return err;
	}
	drop_gone(snapshot, sights);
	err = stall_snapshot_read_futexes(snapshot);
	if (!err && full)
		err = stall_snapshot_note(snapshot, "arena-full",
					  "no memory was left for %zu stacks; give a smaller --max-stack",
					  full);
	if (err)
		return err;
	snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	for (size_t i = 0; i < snapshot->process_count; i++) {
		err = stall_target_check(&snapshot->processes[i].target);
		if (err)
			return err;
	}
	return NULL;
}

const struct stall_backend stall_backend_proc = {
	.name = "proc",
	.probe = proc_probe,
	.open = proc_open,
	.capture = proc_capture,
	.close = proc_close,
};
