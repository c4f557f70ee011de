/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The task iterator's record of one thread: shared by the BPF program and its loader. */
#ifndef STALL_THREADS_BPF_H
#define STALL_THREADS_BPF_H

#ifndef __bpf__
#include <linux/types.h>
#endif

#define STALL_BPF_MAGIC                                                                            \
	0x6c617473 /* begins each record: shows a reader that lost its place in the stream */
#define STALL_BPF_COMM 16
#define STALL_BPF_KERNEL_FRAMES 48
#define STALL_BPF_PT_REGS 21
#define STALL_BPF_MAX_PROCESSES 16384
#define STALL_BPF_MAX_CHOSEN 1024

/* Indexes into stall_bpf_thread.regs: struct pt_regs of x86-64. */
enum stall_bpf_reg {
	STALL_BPF_R15,
	STALL_BPF_R14,
	STALL_BPF_R13,
	STALL_BPF_R12,
	STALL_BPF_BP,
	STALL_BPF_BX,
	STALL_BPF_R11,
	STALL_BPF_R10,
	STALL_BPF_R9,
	STALL_BPF_R8,
	STALL_BPF_AX,
	STALL_BPF_CX,
	STALL_BPF_DX,
	STALL_BPF_SI,
	STALL_BPF_DI,
	STALL_BPF_ORIG_AX,
	STALL_BPF_IP,
	STALL_BPF_CS,
	STALL_BPF_FLAGS,
	STALL_BPF_SP,
	STALL_BPF_SS,
};

enum stall_bpf_flags {
	STALL_BPF_REGS = 1 << 0,   /* regs could be read */
	STALL_BPF_COMPAT = 1 << 1, /* in a 32-bit system call */
};

/* switches_before is read first and switches_after last, after on_cpu: see stall_record_did_not_run(). */
struct stall_bpf_thread {
	__u32 magic;
	__u32 flags;
	__s32 tid, tgid; /* in the reader's pid namespace */
	__s32 ns_tid;	 /* in the thread's own */
	__u32 state;	 /* TASK_* of include/linux/sched.h */
	__u32 exit_state;
	__u32 on_cpu;
	__u64 switches_before;
	__u64 switches_after;
	__u64 runtime; /* se.sum_exec_runtime */
	__u64 exec_id;
	__u64 start_stack,
		start_brk; /* of its memory: they differ from one program image to the next */
	__u64 fs_base;
	__u64 regs[STALL_BPF_PT_REGS];
	char comm[STALL_BPF_COMM];
	__u32 kernel_frame_count; /* number of __u64 that follow */
	__u32 pad;
};

_Static_assert(sizeof(struct stall_bpf_thread) == 32 + 7 * 8 + STALL_BPF_PT_REGS * 8 + 16 + 8,
	       "no holes: what leaves the kernel is all set");
_Static_assert(STALL_BPF_SS + 1 == STALL_BPF_PT_REGS, "struct pt_regs has 21 words");

#endif
