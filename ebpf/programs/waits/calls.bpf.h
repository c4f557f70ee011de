/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The facts about a wait in its system call's arguments, for its entry, its return and the iterator
 * that finds it in between. */
#ifndef STALL_WAITS_CALLS_BPF_H
#define STALL_WAITS_CALLS_BPF_H

#include "ebpf/programs/waits/files.bpf.h"

/* include/uapi/linux/futex.h */
#define FUTEX_CMD_MASK 127
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_REQUEUE 3
#define FUTEX_CMP_REQUEUE 4
#define FUTEX_WAKE_OP 5
#define FUTEX_LOCK_PI 6
#define FUTEX_UNLOCK_PI 7
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAKE_BITSET 10
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_CMP_REQUEUE_PI 12
#define FUTEX_LOCK_PI2 13

#define BIT(n) (1U << (n))
#define FUTEX_WAITS                                                                                \
	(BIT(FUTEX_WAIT) | BIT(FUTEX_WAIT_BITSET) | BIT(FUTEX_LOCK_PI) | BIT(FUTEX_LOCK_PI2) |     \
	 BIT(FUTEX_WAIT_REQUEUE_PI))
#define FUTEX_WAKES                                                                                \
	(BIT(FUTEX_WAKE) | BIT(FUTEX_WAKE_BITSET) | BIT(FUTEX_REQUEUE) | BIT(FUTEX_CMP_REQUEUE) |  \
	 BIT(FUTEX_WAKE_OP) | BIT(FUTEX_UNLOCK_PI) | BIT(FUTEX_CMP_REQUEUE_PI))

// The saved registers that are needed where their pointer cannot be passed.
struct call_args {
	__u64 regs; // their address
	__u64 di, si, dx, r10;
	__u32 number;
	__u8 how, kind;
};

static __always_inline bool is_futex_operation(__u64 operation, __u32 set)
{
	operation &= FUTEX_CMD_MASK;
	return operation < 32 && (set >> operation & 1);
}

static __always_inline bool is_positioned(__u32 how)
{
	return how == STALL_CALL_TRANSFER_AT || how == STALL_CALL_VECTOR_AT;
}

static __always_inline __u32 kind_of_transfer(__u32 how, __u32 kind, __u64 end, struct inode *inode)
{
	if (kind == STALL_WAIT_WRITE && is_positioned(how) && is_enabled(STALL_WAIT_EXTEND) &&
	    is_beyond_end(inode, end))
		return STALL_WAIT_EXTEND;
	return kind;
}

// What perf gives its programs at the entry and the return of a system call. It disables
// preemption. A kernel that can preempt the program of a raw tracepoint does not run it meanwhile
// for other threads on that CPU, so their waits would be missed.
struct syscall_event {
	__u64 common;
	long number;
	union {
		long result;
		unsigned long arguments[6];
	};
};

#endif
