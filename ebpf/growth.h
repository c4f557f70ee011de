/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The records of page faults of one process: shared by the BPF programs and their loader. */
#ifndef STALL_GROWTH_BPF_H
#define STALL_GROWTH_BPF_H

#ifndef __bpf__
#include <linux/types.h>
#endif

#include "ebpf/threads.h"

enum stall_growth_kind {
	STALL_GROWTH_USER,     /* the thread touched the page */
	STALL_GROWTH_KERNEL,   /* a system call touched it: read(2) into new memory */
	STALL_GROWTH_POPULATE, /* the kernel made pages without a fault; `address` is 0 */
	STALL_GROWTH_KINDS,
};

enum stall_growth_flags {
	STALL_GROWTH_ON_STACK = 1 << 0, /* in the stack of the thread itself */
	STALL_GROWTH_PRESENT = 1 << 1,	/* the page was there: written after it was shared */
};

/* Why something of a fault is not known. */
enum stall_growth_lost {
	STALL_GROWTH_NO_ROOM,	 /* no room for the record of a fault */
	STALL_GROWTH_NO_STACK,	 /* its stack could not be read */
	STALL_GROWTH_STACK_ROOM, /* no room for a stack: its fault has a record without one */
	STALL_GROWTH_NESTED,	 /* a program interrupted another one on its CPU */
	STALL_GROWTH_LOST_CAUSES,
};

/* One fault, or `weight` of them: where they come too fast, a record stands for those before it on
 * its CPU. */
struct stall_growth_fault {
	__u32 magic; /* STALL_BPF_MAGIC */
	__u32 kind;
	__s32 tid; /* in the reader's pid namespace */
	__u32 weight;
	__u64 address; /* of the page */
	__u64 hash;    /* of the innermost part of the stack: equal ones are taken for equal */
	__u64 site;    /* of program counter and stack pointer: the same, where that is not known */
	__u32 flags;
	__u32 pad;
};

/* Followed by stack_size bytes from stack_address on. */
struct stall_growth_stack {
	struct stall_growth_fault fault;
	__u64 now_ns;
	__u64 stack_address;
	__u64 stack_size;
	__s32 ns_tid;
	__u32 pad;
	__u64 regs[STALL_BPF_PT_REGS];
	char comm[STALL_BPF_COMM];
};

_Static_assert(sizeof(struct stall_growth_fault) == 48, "no holes");
_Static_assert(sizeof(struct stall_growth_stack) == 48 + 32 + STALL_BPF_PT_REGS * 8 + 16,
	       "no holes: what leaves the kernel is all set");

#endif
