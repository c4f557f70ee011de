/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Threads as the reader numbers them: its pid namespace may be another than theirs. */
#ifndef STALL_PIDS_BPF_H
#define STALL_PIDS_BPF_H

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define TS_COMPAT 0x0002 // arch/x86/include/asm/thread_info.h
#define MAX_LEVEL 32	 // MAX_PID_NS_LEVEL, include/linux/pid_namespace.h

// The pid namespace of the reader, as in /proc/self/ns/pid.
const volatile __u32 reader_pidns = 0;

// struct pid ends in one struct upid for each level; its declared length changed over time
// (b69f0aeb0689), so it is addressed by hand.
static __always_inline __s32 upid_number(struct pid *pid, __u32 level)
{
	struct upid *upid = (void *)&pid->numbers + level * bpf_core_type_size(struct upid);

	return BPF_CORE_READ(upid, nr);
}

static __always_inline __u32 upid_namespace(struct pid *pid, __u32 level)
{
	struct upid *upid = (void *)&pid->numbers + level * bpf_core_type_size(struct upid);

	return BPF_CORE_READ(upid, ns, ns.inum);
}

// The number of the pid in the reader's namespace, 0 where it has none.
static __always_inline __s32 number_for_reader(struct pid *pid)
{
	__u32 level = BPF_CORE_READ(pid, level);

	for (__u32 i = 0; i < MAX_LEVEL && i <= level; i++) {
		if (upid_namespace(pid, i) == reader_pidns)
			return upid_number(pid, i);
	}
	return 0;
}

// The number in the namespace that the thread itself lives in.
static __always_inline __s32 own_number(struct pid *pid)
{
	return upid_number(pid, BPF_CORE_READ(pid, level) & (MAX_LEVEL - 1));
}

// Whether it is in a 32-bit system call.
static __always_inline bool is_compat(struct task_struct *task)
{
	return task->thread_info.status & TS_COMPAT;
}

// Whether no thread of its process comes after it in the kernel's list.
static __always_inline bool is_last(struct task_struct *task)
{
	struct signal_struct *signal = task->signal;

	return task->thread_node.next ==
	       (void *)signal + bpf_core_field_offset(signal->thread_head);
}

#endif
