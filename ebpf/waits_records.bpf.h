/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What goes to user space, with the user's stack. Part of waits.bpf.c. */
#ifndef STALL_WAITS_RECORDS_BPF_H
#define STALL_WAITS_RECORDS_BPF_H

#include "ebpf/fair_share.h"
#include "ebpf/waits_slots.bpf.h"

#define PAGE 4096
#define MAX_STACK 32768 // of `max_stack`

// Too large for the BPF stack, and for a per-CPU map (32 KiB). A pool: who needs a record takes one
// that is free. A CPU needs more than one where a program is interrupted by the timer's, or preempted,
// as that of a uprobe can be; but hardly ever do all CPUs need one at the same moment.
struct record_buffer {
	struct stall_wait_record record;
	__u8 stack[MAX_STACK + PAGE]; // room that the verifier can see
	__u64 is_taken;
};

#define RECORD_TRIES 8

const volatile __u32 record_mask = 0; // of the pool, whose size is a power of two

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record_buffer);
} record_buffers SEC(".maps");

// Of records with stacks, and of those of the scan.
struct stall_fair_share record_share, alarm_share;

VERIFIED_ONCE int is_record_due(__u32 flow, __u64 now)
{
	return stall_fair_take(&record_share, flow, record_cost_ns, now,
			       bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >
				       bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE) / 2);
}

static __always_inline bool may_tell(__u32 flow, __u64 now)
{
	if (is_record_due(flow, now))
		return true;
	count_lost(STALL_LOST_RATE);
	return false;
}

// NULL where none is free: the loss is counted. What is taken must be released.
static __always_inline struct record_buffer *take_record(void)
{
	__u32 first = 2 * bpf_get_smp_processor_id();

	for (__u32 i = 0; i < RECORD_TRIES; i++) {
		__u32 index = (first + i) & record_mask;
		struct record_buffer *out = bpf_map_lookup_elem(&record_buffers, &index);

		if (out && !__sync_lock_test_and_set(&out->is_taken, 1))
			return out;
	}
	count_lost(STALL_LOST_MISSED);
	return NULL;
}

static __always_inline void release_record(struct record_buffer *out)
{
	__sync_lock_test_and_set(&out->is_taken, 0);
}

// A record of this thread, all set but what is the event's own.
static __always_inline void begin_record(struct stall_wait_record *record, __u32 type,
					 const struct stall_wait_slot *slot)
{
	__builtin_memset(record, 0, sizeof(*record));
	record->magic = STALL_BPF_MAGIC;
	record->type = type;
	record->tid = slot->tid;
	record->tgid = slot->tgid;
	record->ns_tid = slot->ns_tid;
	record->server = slot->server;
}

static __always_inline bool send_bytes(void *data, __u64 size)
{
	if (!bpf_ringbuf_output(&ring, data, size, 0))
		return true;
	count_lost(STALL_LOST_RING_FULL);
	return false;
}

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

// From sp upward, page by page: what lies beyond one that is not there is no stack. Returns the
// number of bytes.
static __always_inline __u32 copy_stack(struct record_buffer *out, __u64 sp, __u64 end)
{
	__u64 wanted = max_stack;
	__u32 size = 0;

	if (end && end - sp <= wanted)
		wanted = end - sp;
	else
		end = 0; // the limit comes first
	for (int i = 0; i < MAX_STACK / PAGE + 1; i++) {
		__u32 chunk = PAGE - ((sp + size) & (PAGE - 1));

		if (size >= wanted || size > MAX_STACK)
			break;
		if (chunk > wanted - size)
			chunk = wanted - size;
		// Checked in the program, since older verifiers do not follow comparisons of two variables.
		barrier_var(chunk);
		if (chunk > PAGE ||
		    bpf_probe_read_user(out->stack + size, chunk, (void *)(sp + size)))
			break;
		size += chunk;
	}
	if (!size)
		count_lost(STALL_LOST_STACK_READ);
	else if (size == wanted && !end)
		count_lost(STALL_LOST_STACK_SHORT);
	return size;
}

// Of a record whose registers are set.
VERIFIED_ONCE int send_with_stack_of_regs(struct record_buffer *out)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!out)
		return 0;
	struct stall_wait_record *record = &out->record;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	__u64 sp = record->regs[STALL_BPF_SP];
	__u32 size = copy_stack(out, sp, stack_end(task, sp));
	record->stack_address = sp;
	record->stack_size = size;
	if (size > MAX_STACK)
		return 0;
	return send_bytes(out, sizeof(*record) + size);
}

// Sends a record of the thread that runs this, with its registers, name and stack.
static __always_inline int send_with_stack(struct record_buffer *out, const void *regs)
{
	bpf_probe_read_kernel(out->record.regs, sizeof(out->record.regs), regs);
	return send_with_stack_of_regs(out);
}

#endif
