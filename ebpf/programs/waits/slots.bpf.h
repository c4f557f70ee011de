/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A slot for each thread of the targets. Functions that every wait runs through are inline. */
#ifndef STALL_WAITS_SLOTS_BPF_H
#define STALL_WAITS_SLOTS_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

#define NO_SLOT (~0U)

// The thread's slot where it is not at the first place of the table; NO_SLOT where it has none.
VERIFIED_ONCE __u32 find_slot_slow(__u32 tid);
// Gives the current thread a slot if it is a target's. NO_SLOT: no target, or no room.
VERIFIED_ONCE __u32 create_slot(void);
// The same for any thread. A number from STALL_IGNORED on: it is ignored, and gets none.
HIDDEN __u32 create_slot_of(struct task_struct *task);
// Makes it the slot of this thread.
HIDDEN void fill_slot(struct stall_wait_slot *slot, struct task_struct *task, __s32 tgid);
VERIFIED_ONCE int release_slot(__u32 tid);
// Puts the thread's slot into the table, unless it has one there. Returns the slot in the table, or
// NO_SLOT where there is no room. Called by the thread itself or by an iterator.
VERIFIED_ONCE __u32 publish_slot(__u32 tid, __u32 slot);

static __always_inline __u64 *thread_place(__u32 tid, __u32 i)
{
	__u32 place = (tid + i) & thread_mask;

	return bpf_map_lookup_elem(&threads, &place);
}

static __always_inline __u32 slot_of_place(__u64 place)
{
	return (__u32)place - 1;
}

// The slot of a thread in *ret, NULL where it has none.
static __always_inline struct stall_wait_slot *find_slot(struct task_struct *task, __u32 *ret)
{
	__u32 tid = task->pid;
	__u64 *place = thread_place(tid, 0);

	if (place && *place >> 32 == tid) {
		*ret = slot_of_place(*place);
	} else {
		// Threads of all other programs get here, too.
		if (!is_target(task->tgid))
			return NULL;
		*ret = find_slot_slow(tid);
	}
	return bpf_map_lookup_elem(&slots, ret);
}

// The same for the current thread; a target's thread without a slot gets one.
static __always_inline struct stall_wait_slot *get_or_create_slot(struct task_struct *task,
								  __u32 *ret)
{
	struct stall_wait_slot *slot = find_slot(task, ret);

	if (slot || !is_target(task->tgid))
		return slot;
	*ret = create_slot();
	return bpf_map_lookup_elem(&slots, ret);
}

#endif
