// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The iterator that takes a thread's slot away, so that none of its waits is seen.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/slots.bpf.h"

// Set before a run.
__s32 ignored_pid = 0;	 // the process, in the reader's namespace
__s32 ignored_tid = 0;	 // its thread, in its own
__u32 ignored_index = 0; // in `ignored`
// Set by a run.
__u32 ignored_found = 0;
__u32 ignored_slot = 0; // that it had; NO_SLOT: none

// Returns the slot that the entry of this thread had, and puts another entry there.
VERIFIED_ONCE __u32 replace_entry(__u32 tid, __u64 entry)
{
	for (__u32 i = 0; i < STALL_THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (!place || *place >> 32 != tid)
			continue;
		__u64 old = *place;
		if (__sync_val_compare_and_swap(place, old, entry) == old)
			return slot_of_place(old);
	}
	return NO_SLOT;
}

static __always_inline void handle_ignored(struct task_struct *task)
{
	struct stall_ignored *found = &ignored[ignored_index & (STALL_MAX_IGNORED - 1)];
	__u32 number = STALL_IGNORED + (ignored_index & (STALL_MAX_IGNORED - 1));

	found->tid = task->pid;
	found->start_time = task->start_time;
	ignored_slot = replace_entry(task->pid, (__u64)task->pid << 32 | (number + 1));
	// It has none yet, or has got one since: publish_slot() leaves an entry where there is one.
	if (ignored_slot == NO_SLOT) {
		__u32 published = publish_slot(task->pid, number);

		if (published != number)
			ignored_slot =
				replace_entry(task->pid, (__u64)task->pid << 32 | (number + 1));
	}
	ignored_found = 1;
}

SEC("iter/task")
int stall_ignore(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task || ignored_found || !task->thread_pid ||
	    pid_in_own_namespace(task->thread_pid) != ignored_tid ||
	    pid_for_reader(task->group_leader->thread_pid) != ignored_pid)
		return 0;
	handle_ignored(task);
	return 0;
}
