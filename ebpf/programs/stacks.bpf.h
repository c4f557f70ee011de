/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Copies of the stack of the thread that runs a program. */
#ifndef STALL_STACKS_BPF_H
#define STALL_STACKS_BPF_H

#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>

#define PAGE 4096
#define MAX_STACK 32768 // of one copy

// Where the stack that sp points into ends: glibc puts struct pthread on top of a thread's stack,
// and the kernel the arguments on top of the first thread's. 0: unknown.
static __always_inline __u64 stack_end(struct task_struct *task, __u64 sp)
{
	struct mm_struct *mm = task->mm;
	__u64 pthread = task->thread.fsbase, arguments = mm ? mm->start_stack : 0;

	if (pthread > sp && (arguments <= sp || pthread < arguments))
		return pthread;
	return arguments > sp ? arguments : 0;
}

// Copies from sp upward, page by page: the stack ends at a page that is not there. `to` has
// MAX_STACK + PAGE bytes: room that the verifier can see. Returns the number of bytes.
static __always_inline __u32 copy_user_stack(__u8 *to, __u64 sp, __u64 limit)
{
	__u32 size = 0;

	for (int i = 0; i < MAX_STACK / PAGE + 1; i++) {
		__u32 chunk = PAGE - ((sp + size) & (PAGE - 1));

		if (size >= limit || size > MAX_STACK)
			break;
		if (chunk > limit - size)
			chunk = limit - size;
		// Checked in the program, since older verifiers do not follow comparisons of two variables.
		barrier_var(chunk);
		if (chunk > PAGE || bpf_probe_read_user(to + size, chunk, (void *)(sp + size)))
			break;
		size += chunk;
	}
	return size;
}

#endif
