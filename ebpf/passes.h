/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Passes of the threads of a process: how waits are found where nothing is attached. Shared by
 * the BPF program and its loader. */
#ifndef STALL_PASSES_BPF_H
#define STALL_PASSES_BPF_H

#include "ebpf/waits.h"

/* What the latest pass saw of a thread, by the index of its slot. */
struct stall_pass {
	__u64 task, start_time; /* which thread */
	__u64 switches;
	__u64 runtime;	/* se.sum_exec_runtime */
	__u64 exec_id;	/* self_exec_id */
	__u64 since_ns; /* it has not run since then, or only before: CLOCK_MONOTONIC */
	__u64 seen_ns;	/* when that was seen */
	__u32 number;	/* of the pass */
	__u32 tid;	/* the kernel's number */
	__u32 sampled;	/* the present state was sampled */
	__u32 no_wait;	/* it is in no system call that waits */
	/* At the start of the wait that the pass has found. */
	__u64 fs_base;
	__u64 regs[STALL_BPF_PT_REGS];
};

#define STALL_PASS_FRAMES 8

/* What a thread does, written by a pass that samples; nothing for a thread that has not run since
 * its last sample. */
struct stall_pass_sample {
	__u32 slot;
	__u32 state; /* TASK_* of include/linux/sched.h; 0 also for a thread on a CPU */
	__s32 call;  /* number of the system call, -1 none */
	__u32 frame_count;
	struct stall_wait_key key; /* kind STALL_WAIT_KINDS: the call is no wait */
	__u64 frames[STALL_PASS_FRAMES];
};

_Static_assert(sizeof(struct stall_pass) == 9 * 8 + 8 + STALL_BPF_PT_REGS * 8, "no holes");
_Static_assert(sizeof(struct stall_pass_sample) == 16 + 24 + STALL_PASS_FRAMES * 8, "no holes");

#endif
