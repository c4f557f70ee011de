// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/records.bpf.h"

#define RECORD_TRIES 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record_buffer);
} record_buffers SEC(".maps");

// For records with stacks; those of the scan have their own map.
struct stall_fair_share record_share;

VERIFIED_ONCE int is_record_allowed(__u32 flow, __u64 now)
{
	return stall_fair_take(&record_share, flow, record_cost_ns, now,
			       bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) >
				       bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / 2);
}

VERIFIED_ONCE int is_record_allowed_counted(__u32 flow, __u64 now)
{
	if (is_record_allowed(flow, now))
		return 1;
	count_lost(STALL_LOST_RATE);
	return 0;
}

HIDDEN struct record_buffer *acquire_record(void)
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

HIDDEN void release_record(struct record_buffer *out)
{
	__sync_lock_test_and_set(&out->is_taken, 0);
}

// Returns the number of bytes.
static __always_inline __u32 copy_stack(struct record_buffer *out, __u64 sp, __u64 end)
{
	__u64 limit = max_stack;

	if (end && end - sp <= limit)
		limit = end - sp;
	else
		end = 0; // max_stack is reached before the end
	__u32 size = copy_user_stack(out->stack, sp, limit);
	if (!size)
		count_lost(STALL_LOST_STACK_READ);
	else if (size == limit && !end)
		count_lost(STALL_LOST_STACK_SHORT);
	return size;
}

VERIFIED_ONCE int emit_with_stack_of_regs(struct record_buffer *out)
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
	return emit_bytes(out, sizeof(*record) + size);
}
