// SPDX-License-Identifier: Apache-2.0
#include "snapshot/label_reason.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

// The beginning of struct clone_args (linux/sched.h), which all versions of it have.
struct clone_args_0 {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

// A child that was given no stack in its parent's memory goes on where the parent stands.
static bool is_shared(uint64_t flags, uint64_t stack)
{
	return (flags & CLONE_VM) && !stack;
}

// What the call was given lies on the caller's stack in every C library. Where it does not, nothing
// is known.
static bool shares_by_clone3(const struct stall_thread *thread)
{
	struct clone_args_0 args;
	uint64_t offset = thread->args[0] - thread->stack_address;

	if (thread->stack_size < sizeof(args) || offset > thread->stack_size - sizeof(args))
		return true;
	memcpy(&args, thread->stack + offset, sizeof(args));
	return is_shared(args.flags, args.stack);
}

static enum stall_label_reason find_reason(const struct stall_thread *thread)
{
	if (!thread->in_syscall)
		return STALL_REASON_NONE;
	switch (thread->syscall) {
	case SYS_vfork:
		return STALL_REASON_VFORK;
	case SYS_clone:
		return is_shared(thread->args[0], thread->args[1]) ? STALL_REASON_VFORK
								   : STALL_REASON_NONE;
	case SYS_clone3:
		return shares_by_clone3(thread) ? STALL_REASON_VFORK : STALL_REASON_NONE;
	// Old registers and new memory, from the moment when the old memory is given up until the
	// new program begins; a slow disk makes that long.
	case SYS_execve:
	case SYS_execveat:
		return STALL_REASON_EXEC;
	// Who joins it is woken before it has left its memory (mm_release, kernel/fork.c), and may
	// have made another thread on its stack.
	case SYS_exit:
		return STALL_REASON_EXIT;
	default:
		return STALL_REASON_NONE;
	}
}

void stall_label_reasons_add(struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_thread *thread = &snapshot->threads[i];

		if (thread->label != STALL_VERIFIED && thread->label != STALL_TRUNCATED)
			continue;
		thread->label_reason = find_reason(thread);
		if (thread->label_reason)
			thread->label = STALL_RACED;
	}
}
