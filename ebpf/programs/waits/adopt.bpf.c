// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The iterator that starts the watching of a process: its threads, and waits that have begun
// before.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/calls.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"
#include "ebpf/programs/waits/wait.bpf.h"

#define ENOSYS 38

__s32 adopted_pid = 0;	// in the reader's namespace
__u32 adopted_tgid = 0; // the kernel's number, once it was found
__u32 adopted_last = 0; // the end of the process's list of threads was reached

// The system call that a thread is in: ax has the value of the entry code until it returns.
static __always_inline bool read_call(struct pt_regs *at, struct pt_regs *regs)
{
	return !bpf_probe_read_kernel(regs, sizeof(*regs), at) && (long)regs->ax == -ENOSYS &&
	       regs->orig_ax < STALL_CALLS;
}

static __always_inline bool key_of_transfer(struct task_struct *task, struct pt_regs *regs,
					    __u32 how, struct stall_wait_key *key,
					    struct file **ret)
{
	*ret = file_of(task, regs->di);
	struct inode *inode = BPF_CORE_READ(*ret, f_inode);

	if (!is_regular(inode))
		return false;
	key->kind = kind_of_transfer(how, key->kind, regs->r10 + regs->dx, inode);
	set_file_key(key, inode);
	return is_enabled(key->kind);
}

static __always_inline bool key_of_call(struct task_struct *task, struct pt_regs *regs,
					struct stall_wait_key *key, struct file **ret)
{
	struct stall_call call = {.how = calls[regs->orig_ax & (STALL_CALLS - 1)].how,
				  .kind = calls[regs->orig_ax & (STALL_CALLS - 1)].kind};

	key->kind = call.kind;
	switch (call.how) {
	case STALL_CALL_FUTEX:
		key->id = regs->di;
		return is_futex_operation(regs->si, FUTEX_WAITS);
	case STALL_CALL_FUTEX_WAIT:
		key->id = regs->di;
		return true;
	case STALL_CALL_FILE:
	case STALL_CALL_RANGE:
	case STALL_CALL_FALLOCATE:
	case STALL_CALL_TRUNCATE:
		*ret = file_of(task, regs->di);
		if (!*ret)
			return false;
		set_file_key(key, BPF_CORE_READ(*ret, f_inode));
		return true;
	case STALL_CALL_TRANSFER:
	case STALL_CALL_TRANSFER_AT:
		return key_of_transfer(task, regs, call.how, key, ret);
	}
	return false; // paths and sizes of vectors: only the thread itself can read them
}

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
	bool futex = key.kind == STALL_WAIT_FUTEX;
	slot->key = key;
	slot->operation = futex && regs.orig_ax == 202 ? regs.si : regs.orig_ax;
	slot->value = futex ? (__u32)regs.dx : 0;
	slot->size = 0;
	__u32 stat_index = get_or_create_stat(&key);
	begin_wait(slot, (__u64)at, stat_index);
	slot->flags = STALL_SLOT_ADOPTED;
	__u32 seq = slot->seq;
	struct stall_wait_stat *stat = stat_at(stat_index);
	if (stat && !stat->announced && file)
		emit_file(FILE_OF_ADOPTION, slot, stat, (__u64)file, regs.di);
	// Its return may have been missed meanwhile: then it does not wait.
	if (!read_call(at, &regs))
		__sync_val_compare_and_swap(&slot->seq, seq, seq + 1);
	return 0;
}

static __always_inline int handle_adopted(struct task_struct *task)
{
	__s32 pid = pid_for_reader(task->group_leader->thread_pid);
	__u32 tgid = task->tgid;

	if (!pid || pid != adopted_pid)
		return 0;
	if (is_last(task))
		adopted_last = 1;
	if (!adopted_tgid) {
		adopted_tgid = tgid;
		bpf_map_update_elem(&targets, &tgid, &pid, 0);
		target_count++;
		only_tgid = target_count == 1 ? tgid : 0;
	}
	return adopt_wait(task, pid);
}

SEC("iter/task")
int stall_adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	return task ? handle_adopted(task) : 0;
}
