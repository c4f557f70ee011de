/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A thread leaves a system call. Part of waits.bpf.c. */
#ifndef STALL_WAITS_EXIT_BPF_H
#define STALL_WAITS_EXIT_BPF_H

#include "ebpf/waits_enter.bpf.h"

#define EAGAIN 11

// What the rare end of a wait needs: more than five arguments.
struct end {
	__u64 regs; // their address
	__u64 now;
	__s64 result;
	__u32 slot, seq;
};

static __always_inline __u32 flags_of(const struct stall_wait_slot *slot, __u32 seq)
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

VERIFIED_ONCE int tell_end(struct end *end, struct stall_wait_slot *slot,
			   struct stall_wait_stat *stat, bool is_over, __u32 flags)
{
	if (!end || !slot || !stat)
		return 0;
	if (is_over)
		__sync_fetch_and_add(&stat->over, 1);
	if (stat->role == STALL_ROLE_COND)
		return 0;
	if (!is_record_due(stall_flow_of(&slot->key, stat->role, STALL_RECORD_END), end->now)) {
		if (is_over) // else the next wait for this word is told in its place
			count_lost(STALL_LOST_RATE);
		return 0;
	}
	struct record_buffer *out = take_record();
	if (!out)
		return 0;
	begin_record(&out->record, STALL_RECORD_END, slot);
	describe_wait(&out->record, slot);
	out->record.now_ns = end->now;
	out->record.result = end->result;
	out->record.slot = end->slot;
	out->record.seq = end->seq;
	out->record.flags = flags;
	bool is_first = !stat->told && slot->key.kind == STALL_WAIT_FUTEX;
	if (is_first)
		out->record.flags |= STALL_SLOT_FIRST;
	bool was_sent = send_with_stack(out, (void *)end->regs);
	if (is_first)
		stat->told = was_sent;
	release_record(out);
	return 0;
}

static __always_inline int end_wait(struct end *end, struct stall_wait_slot *slot)
{
	__u32 kind = slot->key.kind;
	__u64 ns = end->now - slot->start_ns;
	__u32 flags = flags_of(slot, end->seq);

	slot->seq = end->seq + 1;
	if (slot->marked)
		end_mark(slot);
	struct stall_wait_stat *stat = stat_at(slot->stat);
	if (!stat || kind >= STALL_WAIT_KINDS)
		return 0;
	if (kind == STALL_WAIT_FUTEX && end->result == -EAGAIN) {
		__sync_fetch_and_add(&stat->in_vain, 1);
		return 0;
	}
	count_wait(stat, ns, end->now);
	if (end->result == -ERESTART_RESTARTBLOCK)
		slot->restart = 1;
	if (kind >= STALL_WAIT_EXTEND && end->result > 0 && kind != STALL_WAIT_UNLINK &&
	    kind != STALL_WAIT_RENAME)
		__sync_fetch_and_add(&stat->bytes, end->result);
	bool is_over = ns >= thresholds[kind];
	if (is_over || (kind == STALL_WAIT_FUTEX && !stat->told))
		tell_end(end, slot, stat, is_over, flags);
	return 0;
}

static __always_inline int handle_wait_exit(struct pt_regs *regs, long result)
{
	struct end end = {.regs = (__u64)regs, .result = result};
	struct stall_wait_slot *slot = find_slot(bpf_get_current_task_btf(), &end.slot);

	if (!slot || !(slot->seq & 1))
		return 0;
	end.seq = slot->seq;
	end.now = bpf_ktime_get_ns();
	return end_wait(&end, slot);
}

static __always_inline int handle_exit(struct pt_regs *regs, long result)
{
	__u64 number = regs->orig_ax;

	if (number >= STALL_CALLS)
		return 0;
	switch (calls[number].how) {
	case STALL_CALL_IGNORED:
	case STALL_CALL_FUTEX_WAKE:
	case STALL_CALL_FUTEX_REQUEUE:
		return 0;
	case STALL_CALL_FUTEX:
		if (!is_futex_operation(regs->si, WAITS))
			return 0;
		break;
	case STALL_CALL_IO_SUBMIT:
		return is_wanted(bpf_get_current_task_btf()->tgid)
			       ? handle_io_submitted(regs, result)
			       : 0;
	case STALL_CALL_IO_GETEVENTS:
		return is_wanted(bpf_get_current_task_btf()->tgid)
			       ? handle_io_getevents(regs, result)
			       : 0;
	}
	return handle_wait_exit(regs, result);
}

#endif
