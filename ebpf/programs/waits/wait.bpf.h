/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A thread's current wait, in its slot. All inline: every wait runs through it. */
#ifndef STALL_WAITS_WAIT_BPF_H
#define STALL_WAITS_WAIT_BPF_H

#include "ebpf/programs/waits/stats.bpf.h"

// Sets the fields of the wait, before others may see that the thread waits.
static __always_inline void begin_wait(struct stall_wait_slot *slot, __u64 regs, __u32 stat)
{
	__u32 seq = (slot->seq + 1) & ~1U; // a wait whose end was missed ends now

	slot->stat = stat;
	slot->regs = regs;
	slot->flags = 0;
	slot->restart = 0;
	slot->start_ns = bpf_ktime_get_ns();
	barrier();
	slot->seq = seq + 1;
}

static __always_inline void clear_mark(struct stall_wait_slot *slot)
{
	// The scan may remove the mark at the same time: only one of both does.
	if (!__sync_lock_test_and_set(&slot->marked, 0))
		return;
	struct stall_wait_stat *stat = stat_at(slot->stat);
	if (stat)
		unmark_stat(stat);
}

// Before the slot's fields change: ends a wait whose end was missed.
static __always_inline void end_missed_wait(struct stall_wait_slot *slot)
{
	if (slot->seq & 1) {
		slot->seq++;
		barrier();
	}
	if (slot->marked) // set at the very end of the previous wait
		clear_mark(slot);
}

static __always_inline __u32 wait_flags(const struct stall_wait_slot *slot, __u32 seq)
{
	return slot->flags | (slot->reported == seq ? STALL_SLOT_REPORTED : 0) |
	       (slot->marked == seq ? STALL_SLOT_MARKED : 0);
}

static __always_inline void describe_wait(struct stall_wait_record *record,
					  const struct stall_wait_slot *slot)
{
	record->operation = slot->operation;
	record->key = slot->key;
	record->start_ns = slot->start_ns;
	record->value = slot->value;
	record->size = slot->size;
}

#endif
