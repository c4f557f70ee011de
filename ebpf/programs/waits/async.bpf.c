// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/async.bpf.h"

#include "ebpf/programs/waits/files.bpf.h"
#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/stats.bpf.h"
#include "ebpf/programs/waits/storage.bpf.h"

#define ASYNC_CALLS 16384 // in flight at once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ASYNC_CALLS);
	__type(key, struct async_id);
	__type(value, struct async_call);
} async_calls SEC(".maps");

VERIFIED_ONCE int set_async_file(struct async_call *call, __u64 address)
{
	struct file *file = (void *)address;
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	if (!call || !inode)
		return 0;
	set_file_key(&call->key, inode);
	if (call->key.kind == STALL_WAIT_WRITE && is_regular(inode) &&
	    is_enabled(STALL_WAIT_EXTEND) && is_beyond_end(inode, call->value + call->size))
		call->key.kind = STALL_WAIT_EXTEND;
	return 0;
}

HIDDEN void begin_async_call(const struct async_id *id, struct async_call *call)
{
	call->start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&async_calls, id, call, 0))
		count_lost(STALL_LOST_ASYNC_FULL);
}

HIDDEN bool take_async_call(const struct async_id *id, struct async_call *ret)
{
	struct async_call *found = bpf_map_lookup_elem(&async_calls, id);

	if (!found)
		return false;
	*ret = *found;
	bpf_map_delete_elem(&async_calls, id);
	return true;
}

static __always_inline void emit_async_end(const struct async_call *call, __u64 now, __s64 result)
{
	__u32 index = call->slot;
	__u32 flow = stall_flow_of(&call->key, STALL_ROLE_UNKNOWN, STALL_RECORD_END);
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &index);

	if (!slot || !is_record_allowed_counted(flow, now))
		return;
	struct stall_wait_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		count_lost(STALL_LOST_RING_FULL);
		return;
	}
	init_record(record, STALL_RECORD_END, slot);
	record->server = (struct stall_wait_server){};
	if (slot->tid == call->tid)
		__builtin_memcpy(record->comm, slot->comm, sizeof(record->comm));
	else
		record->ns_tid = 0;
	record->tid = call->tid;
	record->tgid = call->key.tgid;
	record->operation = call->operation;
	record->key = call->key;
	record->start_ns = call->start_ns;
	record->now_ns = now;
	record->result = result;
	record->value = call->value;
	record->size = call->size;
	record->slot = index;
	record->flags = STALL_SLOT_ASYNC;
	bpf_ringbuf_submit(record, 0);
}

VERIFIED_ONCE int count_async_call(const struct async_call *call, __s64 result)
{
	__u64 now = bpf_ktime_get_ns();

	if (!call)
		return 0;
	__u32 kind = call->key.kind;
	__u64 ns = now - call->start_ns;

	if (counts_storage)
		return end_storage_request(call, ns, result);
	struct stall_wait_stat *stat = stat_at(get_or_create_stat(&call->key));
	if (!stat || kind >= STALL_WAIT_KINDS)
		return 0;
	count_wait(stat, ns, now);
	if (stall_wait_has_bytes(kind) && result > 0)
		__sync_fetch_and_add(&stat->bytes, result);
	if (ns < threshold_of(kind))
		return 0;
	__sync_fetch_and_add(&stat->over, 1);
	emit_async_end(call, now, result);
	return 0;
}
