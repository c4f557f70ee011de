/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the kernel knows of a thread that may run meanwhile. */
#ifndef STALL_TASKS_BPF_H
#define STALL_TASKS_BPF_H

#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

// Keeps the order of the reads around it: user space relies on what was read first and last.
#define ordered() asm volatile("" ::: "memory")

static __always_inline __u64 count_switches(struct task_struct *task)
{
	ordered();
	__u64 count = task->nvcsw + task->nivcsw;
	ordered();
	return count;
}

static __always_inline __u32 is_on_cpu(struct task_struct *task)
{
	ordered();
	__u32 on_cpu = BPF_CORE_READ_BITFIELD(task, on_cpu); // an int, or narrower from 7.1 on
	ordered();
	return on_cpu;
}

static __always_inline __u32 task_state(struct task_struct *task)
{
	struct task_struct___before_5_14 *old = (void *)task;

	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return BPF_CORE_READ(old, state);
}

#endif
