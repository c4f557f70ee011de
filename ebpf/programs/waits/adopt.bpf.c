// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The iterator that starts the watching of a process: its threads, and waits that have begun
// before.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/inflight.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"

__s32 adopted_pid = 0;	// in the reader's namespace
__u32 adopts_waits = 1; // 0: only the process is added
__u32 adopted_tgid = 0; // the kernel's number, once it was found
__u32 adopted_last = 0; // the end of the process's list of threads was reached

static __noinline int adopt_wait(struct task_struct *task, __s32 pid)
{
	struct pt_regs regs, *at = (void *)bpf_task_pt_regs(task);
	struct stall_wait_key key = {.tgid = pid};
	struct file *file = NULL;
	__u32 index;

	if (!at || is_compat(task) || !read_call(at, &regs) ||
	    !key_of_call(task, &regs, &key, &file))
		return 0;
	struct stall_wait_slot *slot = find_slot(task, &index);
	if (slot) // it has entered a wait since the watching began
		return 0;
	index = create_slot_of(task);
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot || (slot->seq & 1))
		return 0;
	adopt_call(slot, &regs, &key, file, at);
	return 0;
}

static __always_inline int handle_adopted(struct task_struct *task)
{
	__s32 pid = pid_for_reader(task->group_leader->thread_pid);

	if (!pid || pid != adopted_pid)
		return 0;
	if (is_last(task))
		adopted_last = 1;
	if (!adopted_tgid) {
		adopted_tgid = task->tgid;
		add_target(adopted_tgid, pid);
	}
	return adopts_waits ? adopt_wait(task, pid) : 0;
}

SEC("iter/task")
int stall_adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	return task ? handle_adopted(task) : 0;
}
