// SPDX-License-Identifier: Apache-2.0
// A snapshot of a process of the test's own, taken by stopping it with ptrace: every register is
// known and nothing moves, so that two unwinders can be compared on the same stacks.
#ifndef STALL_FROZEN_H
#define STALL_FROZEN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "snapshot/read_child.h"
#include "snapshot/snapshot.h"

static inline void frozen_set(struct stall_regs *regs, int reg, uint64_t value)
{
	regs->value[reg] = value;
	regs->valid |= 1U << reg;
}

// System V ABI, AMD64 supplement, figure 3.36.
static inline void frozen_regs(const struct user_regs_struct *user, struct stall_regs *regs)
{
	const uint64_t values[STALL_REGS] = {
		user->rax, user->rdx, user->rcx, user->rbx, user->rsi, user->rdi,
		user->rbp, user->rsp, user->r8,	 user->r9,  user->r10, user->r11,
		user->r12, user->r13, user->r14, user->r15, user->rip,
	};

	regs->valid = 0;
	for (int i = 0; i < STALL_REGS; i++)
		frozen_set(regs, i, values[i]);
}

// A thread in state D (the parent of a vfork) would not stop before it wakes.
static inline bool frozen_can_stop(pid_t tid)
{
	char path[64], text[512], state = '?';

	snprintf(path, sizeof(path), "/proc/%d/stat", tid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	text[fread(text, 1, sizeof(text) - 1, file)] = 0;
	fclose(file);
	const char *end = strrchr(text, ')');
	return end && sscanf(end + 1, " %c", &state) == 1 && state != 'D' && state != 'Z';
}

static inline bool frozen_thread(struct stall_snapshot *snapshot, pid_t tid, size_t max_stack,
				 struct stall_thread *thread)
{
	struct stall_process *process = &snapshot->processes[0];
	struct user_regs_struct user;
	int status;

	*thread = (struct stall_thread){.tid = tid, .ns_tid = tid, .state = 'S'};
	if (!frozen_can_stop(tid))
		return false;
	if (ptrace(PTRACE_SEIZE, tid, 0, 0) < 0 || ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0 ||
	    waitpid(tid, &status, __WALL) != tid || ptrace(PTRACE_GETREGS, tid, 0, &user) < 0)
		return false;
	frozen_regs(&user, &thread->regs);
	thread->fs_base = user.fs_base;
	thread->stack_address = user.rsp;
	uint64_t end = stall_stack_end(process->maps, user.rsp, user.fs_base);
	size_t size = end > user.rsp ? end - user.rsp : 0;
	size = size < max_stack ? size : max_stack;
	thread->stack = stall_arena_alloc(snapshot->arena, size);
	if (thread->stack)
		thread->stack_size =
			stall_read_child_range(&process->target, user.rsp, thread->stack, size);
	return true;
}

// The threads stay stopped until frozen_thaw.
static inline struct stall_error *frozen_snapshot(struct stall_arena *arena, pid_t pid,
						  size_t max_stack, struct stall_snapshot **ret)
{
	struct stall_snapshot *snapshot;
	pid_t *tids;
	size_t count;
	struct stall_error *err = stall_snapshot_create(arena, &pid, 1, NULL, &snapshot);

	if (!err)
		err = stall_target_tids(&snapshot->processes[0].target, 100000, &tids, &count);
	if (err)
		return err;
	snapshot->threads = calloc(count, sizeof(*snapshot->threads));
	for (size_t i = 0; i < count; i++) {
		if (frozen_thread(snapshot, tids[i], max_stack,
				  &snapshot->threads[snapshot->thread_count]))
			snapshot->thread_count++;
	}
	free(tids);
	*ret = snapshot;
	return NULL;
}

static inline void frozen_thaw(const struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->thread_count; i++)
		ptrace(PTRACE_DETACH, snapshot->threads[i].tid, 0, 0);
}

// A stop interrupts a system call: a thread goes back to the instruction of the call, and makes it
// again when it runs. False where one has not for minutes.
static inline bool frozen_wait_blocked(const struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		char path[64], text[16] = "";

		snprintf(path, sizeof(path), "/proc/%d/syscall", snapshot->threads[i].tid);
		for (int k = 0; text[0] < '0' || text[0] > '9'; k++) { // else: running
			FILE *file = fopen(path, "re");

			if (k == 100000 || !file)
				return false;
			if (!fgets(text, sizeof(text), file))
				text[0] = 0;
			fclose(file);
			if (k)
				usleep(1000);
		}
	}
	return true;
}

#endif
