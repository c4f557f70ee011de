/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Thread ids in the reader's pid namespace, which may differ from that of the threads. */
#ifndef STALL_PIDS_BPF_H
#define STALL_PIDS_BPF_H

#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define TS_COMPAT 0x0002 // arch/x86/include/asm/thread_info.h
#define MAX_LEVEL 32	 // MAX_PID_NS_LEVEL, include/linux/pid_namespace.h

// The pid namespace of the reader, as in /proc/self/ns/pid. Each object defines it once.
extern const volatile __u32 reader_pidns;

// struct pid ends in one struct upid for each level; its declared length changed over time
// (b69f0aeb0689), so they are addressed by hand. Step by step, and hidden from the compiler: before
// 6.2 the verifier takes no product as an offset to a kernel pointer, and the compiler makes one of
// any loop that it can count.
#define next_upid(upid)                                                                            \
	do {                                                                                       \
		upid = (void *)upid + bpf_core_type_size(struct upid);                             \
		barrier_var(upid);                                                                 \
	} while (0)

// The number of the pid in the reader's namespace, 0 where it has none.
static __always_inline __s32 pid_for_reader(struct pid *pid)
{
	__u32 level = BPF_CORE_READ(pid, level);
	struct upid *upid = (void *)&pid->numbers;

	for (__u32 i = 0; i < MAX_LEVEL && i <= level; i++) {
		if (BPF_CORE_READ(upid, ns, ns.inum) == reader_pidns)
			return BPF_CORE_READ(upid, nr);
		next_upid(upid);
	}
	return 0;
}

// The number in the namespace that the thread itself lives in.
static __always_inline __s32 pid_in_own_namespace(struct pid *pid)
{
	__u32 level = BPF_CORE_READ(pid, level);
	struct upid *upid = (void *)&pid->numbers;

	for (__u32 i = 0; i < MAX_LEVEL; i++) {
		if (i == level)
			return BPF_CORE_READ(upid, nr);
		next_upid(upid);
	}
	return 0;
}

// Whether it is in a 32-bit system call.
static __always_inline bool is_compat(struct task_struct *task)
{
	return task->thread_info.status & TS_COMPAT;
}

// The end of the kernel's list of its process's threads: the entry of the last one points to it.
static __always_inline __u64 list_end(struct task_struct *task)
{
	struct signal_struct *signal = BPF_CORE_READ(task, signal);

	return (__u64)signal + bpf_core_field_offset(signal->thread_head);
}

// Whether it is the last of its process in the kernel's list.
static __always_inline bool is_last(struct task_struct *task)
{
	return (__u64)BPF_CORE_READ(task, thread_node.next) == list_end(task);
}

#endif
