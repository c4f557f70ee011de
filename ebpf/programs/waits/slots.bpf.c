// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/slots.bpf.h"

#include "ebpf/programs/waits/wait.bpf.h"

VERIFIED_ONCE __u32 find_slot_slow(__u32 tid)
{
	for (__u32 i = 1; i < STALL_THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (place && *place >> 32 == tid)
			return slot_of_place(*place);
	}
	return NO_SLOT;
}

VERIFIED_ONCE __u32 publish_slot(__u32 tid, __u32 slot)
{
	__u64 entry = (__u64)tid << 32 | (slot + 1);

	for (__u32 i = 0; i < STALL_THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (!place)
			break;
		__u64 old = *place ? *place : __sync_val_compare_and_swap(place, 0, entry);
		if (!old)
			return slot;
		if (old >> 32 == tid)
			return slot_of_place(old);
	}
	return NO_SLOT;
}

// The number of a thread that is ignored; NO_SLOT for any other.
VERIFIED_ONCE __u32 find_ignored(__u32 tid)
{
	for (__u32 i = 0; i < STALL_THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (place && *place >> 32 == tid && slot_of_place(*place) >= STALL_IGNORED)
			return slot_of_place(*place);
	}
	return NO_SLOT;
}

HIDDEN void fill_slot(struct stall_wait_slot *slot, struct task_struct *task, __s32 tgid)
{
	end_missed_wait(slot);
	slot->tid = pid_for_reader(task->thread_pid);
	slot->tgid = tgid;
	slot->ns_tid = pid_in_own_namespace(task->thread_pid);
	slot->task = (__u64)task;
	slot->restart = 0;
	slot->server.function = 0;
	slot->outer.function = 0;
	bpf_probe_read_kernel_str(slot->comm, sizeof(slot->comm), task->comm);
}

static __always_inline __u32 allocate_slot(void)
{
	__u32 index;

	if (!bpf_map_pop_elem(&free_slots, &index))
		return index;
	if (*(volatile __u32 *)&slots_high < max_slots) {
		index = __sync_fetch_and_add(&slots_high, 1);
		if (index < max_slots)
			return index;
		__sync_fetch_and_add(&slots_high, -1);
	}
	count_lost(STALL_LOST_SLOTS_FULL);
	return NO_SLOT;
}

HIDDEN __u32 create_slot_of(struct task_struct *task)
{
	__u32 tgid = task->tgid, index;
	__s32 *pid = bpf_map_lookup_elem(&targets, &tgid);

	if (!pid)
		return NO_SLOT;
	index = find_ignored(task->pid);
	if (index != NO_SLOT)
		return index;
	index = allocate_slot();
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return NO_SLOT;
	fill_slot(slot, task, *pid);
	__u32 published = publish_slot(task->pid, index);
	if (published != index) {
		bpf_map_push_elem(&free_slots, &index, 0);
		if (published == NO_SLOT)
			count_lost(STALL_LOST_SLOTS_FULL);
		return published;
	}
	return index;
}

VERIFIED_ONCE __u32 create_slot(void)
{
	return create_slot_of(bpf_get_current_task_btf());
}

VERIFIED_ONCE int release_slot(__u32 tid)
{
	for (__u32 i = 0; i < STALL_THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (!place || *place >> 32 != tid)
			continue;
		__u32 index = slot_of_place(*place);
		struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &index);
		*place = 0;
		if (!slot)
			break;
		end_missed_wait(slot);
		slot->tid = 0;
		bpf_map_push_elem(&free_slots, &index, 0);
		break;
	}
	return 0;
}
