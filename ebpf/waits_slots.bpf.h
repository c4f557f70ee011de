/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A slot for each thread of the wanted processes. Part of waits.bpf.c. */
#ifndef STALL_WAITS_SLOTS_BPF_H
#define STALL_WAITS_SLOTS_BPF_H

#include "ebpf/waits_maps.bpf.h"

#define THREAD_PLACES 16 // of the hash table that are looked at
#define NO_SLOT (~0U)

static __always_inline __u64 *thread_place(__u32 tid, __u32 i)
{
	__u32 place = (tid + i) & thread_mask;

	return bpf_map_lookup_elem(&threads, &place);
}

static __always_inline __u32 place_slot(__u64 place)
{
	return (__u32)place - 1;
}

VERIFIED_ONCE __u32 find_slot_further(__u32 tid)
{
	for (__u32 i = 1; i < THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (place && *place >> 32 == tid)
			return place_slot(*place);
	}
	return NO_SLOT;
}

// Puts the thread's slot into the table, unless it is there already: the slot that is there then, or
// NO_SLOT where there is no room. A thread is put in by itself or by the iterator that adopts it.
VERIFIED_ONCE __u32 publish_slot(__u32 tid, __u32 slot)
{
	__u64 entry = (__u64)tid << 32 | (slot + 1);

	for (__u32 i = 0; i < THREAD_PLACES; i++) {
		__u64 *place = thread_place(tid, i);

		if (!place)
			break;
		__u64 old = *place ? *place : __sync_val_compare_and_swap(place, 0, entry);
		if (!old)
			return slot;
		if (old >> 32 == tid)
			return place_slot(old);
	}
	return NO_SLOT;
}

static __always_inline void fill_slot(struct stall_wait_slot *slot, struct task_struct *task,
				      __s32 tgid)
{
	slot->seq &= ~1U;
	slot->tid = number_for_reader(task->thread_pid);
	slot->tgid = tgid;
	slot->ns_tid = own_number(task->thread_pid);
	slot->task = (__u64)task;
	slot->restart = 0;
	slot->server.function = 0;
	slot->outer.function = 0;
	bpf_probe_read_kernel_str(slot->comm, sizeof(slot->comm), task->comm);
}

static __always_inline __u32 pop_slot(void)
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

// For a thread of a wanted process that has none.
static __always_inline __u32 make_slot_of(struct task_struct *task)
{
	__u32 tgid = task->tgid, index;
	__s32 *pid = bpf_map_lookup_elem(&targets, &tgid);

	if (!pid)
		return NO_SLOT;
	index = pop_slot();
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

VERIFIED_ONCE __u32 make_slot(void)
{
	return make_slot_of(bpf_get_current_task_btf());
}

// The slot of a thread in *ret, NULL where it has none.
static __always_inline struct stall_wait_slot *find_slot(struct task_struct *task, __u32 *ret)
{
	__u32 tid = task->pid;
	__u64 *place = thread_place(tid, 0);

	if (place && *place >> 32 == tid) {
		*ret = place_slot(*place);
	} else {
		// Threads of all other programs come this way too.
		if (!is_wanted(task->tgid))
			return NULL;
		*ret = find_slot_further(tid);
	}
	return bpf_map_lookup_elem(&slots, ret);
}

// The same of the thread that runs this, made where there is none and the process is wanted.
static __always_inline struct stall_wait_slot *take_slot(struct task_struct *task, __u32 *ret)
{
	struct stall_wait_slot *slot = find_slot(task, ret);

	if (slot || !is_wanted(task->tgid))
		return slot;
	*ret = make_slot();
	return bpf_map_lookup_elem(&slots, ret);
}

// For uprobes and the like: the slot of the thread that runs this.
static __always_inline struct stall_wait_slot *slot_of_current(__u32 *ret)
{
	return take_slot(bpf_get_current_task_btf(), ret);
}

#endif
