/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Waits that began before a program could see their entry: an iterator finds the thread in its
 * system call. */
#ifndef STALL_WAITS_INFLIGHT_BPF_H
#define STALL_WAITS_INFLIGHT_BPF_H

#include "ebpf/programs/waits/calls.bpf.h"
#include "ebpf/programs/waits/wait.bpf.h"

#define ENOSYS 38

static __always_inline void add_target(__u32 tgid, __s32 pid)
{
	bpf_map_update_elem(&targets, &tgid, &pid, 0);
	target_count++;
	only_tgid = target_count == 1 ? tgid : 0;
}

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

// Begins the wait of a call in the thread's slot, which has none. `at`: the thread's registers.
// Returns whether it waits.
static __always_inline bool adopt_call(struct stall_wait_slot *slot, struct pt_regs *regs,
				       struct stall_wait_key *key, struct file *file,
				       struct pt_regs *at)
{
	bool futex = key->kind == STALL_WAIT_FUTEX;

	slot->key = *key;
	slot->operation = futex && regs->orig_ax == 202 ? regs->si : regs->orig_ax;
	slot->value = futex ? (__u32)regs->dx : 0;
	slot->size = 0;
	__u32 stat_index = get_or_create_stat(key);
	begin_wait(slot, (__u64)at, stat_index);
	slot->flags = STALL_SLOT_ADOPTED;
	__u32 seq = slot->seq;
	struct stall_wait_stat *stat = stat_at(stat_index);
	if (stat && !stat->announced && file)
		emit_file(FILE_OF_ADOPTION, slot, stat, (__u64)file, regs->di);
	// Its return may have been missed meanwhile: then it does not wait.
	if (read_call(at, regs))
		return true;
	__sync_val_compare_and_swap(&slot->seq, seq, seq + 1);
	return false;
}

#endif
