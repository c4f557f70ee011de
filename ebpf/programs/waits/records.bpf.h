/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Records for user space, with the stack of the user's thread. */
#ifndef STALL_WAITS_RECORDS_BPF_H
#define STALL_WAITS_RECORDS_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

#include "ebpf/fair_share.h"
#include "ebpf/programs/stacks.bpf.h"

// Too large for the BPF stack, and for a per-CPU map (32 KiB). So there is a pool of records. A CPU
// needs more than one where a program is interrupted by the timer's program or preempted, as a
// uprobe's can be; all CPUs hardly ever need one at the same moment.
struct record_buffer {
	struct stall_wait_record record;
	__u8 stack[MAX_STACK + PAGE]; // room that the verifier can see
	__u64 is_taken;
};

// Whether the rate limit permits a record of this flow. `_counted`: a refusal counts as a loss.
VERIFIED_ONCE int is_record_allowed(__u32 flow, __u64 now);
VERIFIED_ONCE int is_record_allowed_counted(__u32 flow, __u64 now);

// NULL where none is free, which is counted as a loss. Release what was acquired.
HIDDEN struct record_buffer *acquire_record(void);
HIDDEN void release_record(struct record_buffer *out);

// Copies name and stack of the thread that runs this and emits the record. Returns whether it was
// sent.
VERIFIED_ONCE int emit_with_stack_of_regs(struct record_buffer *out); // that are set in the record

static __always_inline int emit_with_stack(struct record_buffer *out, const void *regs)
{
	bpf_probe_read_kernel(out->record.regs, sizeof(out->record.regs), regs);
	return emit_with_stack_of_regs(out);
}

// A record of this thread, all set but what is the event's own.
static __always_inline void init_record(struct stall_wait_record *record, __u32 type,
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

static __always_inline bool emit_bytes(void *data, __u64 size)
{
	if (!bpf_ringbuf_output(&records, data, size, 0))
		return true;
	count_lost(STALL_LOST_RING_FULL);
	return false;
}

#endif
