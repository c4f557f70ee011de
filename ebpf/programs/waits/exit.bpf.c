// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// A thread returns from a system call.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/async.bpf.h"
#include "ebpf/programs/waits/calls.bpf.h"
#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"
#include "ebpf/programs/waits/stats.bpf.h"
#include "ebpf/programs/waits/storage.bpf.h"
#include "ebpf/programs/waits/wait.bpf.h"

#define EAGAIN 11
#define ERESTART_RESTARTBLOCK 516 // include/linux/errno.h

// Arguments for the rare end of a wait: BPF functions take at most five.
struct end {
	__u64 regs; // their address
	__u64 now;
	__s64 result;
	__u32 slot, seq;
};

VERIFIED_ONCE int emit_end(struct end *end, struct stall_wait_slot *slot,
			   struct stall_wait_stat *stat, bool is_over, __u32 flags)
{
	if (!end || !slot || !stat)
		return 0;
	if (is_over)
		__sync_fetch_and_add(&stat->over, 1);
	if (stat->role == STALL_ROLE_COND)
		return 0;
	if (!is_record_allowed(stall_flow_of(&slot->key, stat->role, STALL_RECORD_END), end->now)) {
		if (is_over) // else the next wait for this word is reported instead
			count_lost(STALL_LOST_RATE);
		return 0;
	}
	struct record_buffer *out = acquire_record();
	if (!out)
		return 0;
	init_record(&out->record, STALL_RECORD_END, slot);
	describe_wait(&out->record, slot);
	out->record.now_ns = end->now;
	out->record.result = end->result;
	out->record.slot = end->slot;
	out->record.seq = end->seq;
	out->record.flags = flags;
	bool is_first = !stat->announced && slot->key.kind == STALL_WAIT_FUTEX;
	if (is_first)
		out->record.flags |= STALL_SLOT_FIRST;
	bool was_sent = emit_with_stack(out, (void *)end->regs);
	if (is_first)
		stat->announced = was_sent;
	release_record(out);
	return 0;
}

static __always_inline int end_wait(struct end *end, struct stall_wait_slot *slot)
{
	__u32 kind = slot->key.kind;
	__u64 ns = end->now - slot->start_ns;

	if (counts_storage) {
		slot->seq = end->seq + 1;
		return end_storage_call(slot, ns, end->result);
	}
	__u32 flags = wait_flags(slot, end->seq);

	slot->seq = end->seq + 1;
	if (slot->marked)
		clear_mark(slot);
	struct stall_wait_stat *stat = stat_at(slot->stat);
	if (!stat || kind >= STALL_WAIT_KINDS)
		return 0;
	if (kind == STALL_WAIT_FUTEX && end->result == -EAGAIN) {
		__sync_fetch_and_add(&stat->not_waited, 1);
		return 0;
	}
	count_wait(stat, ns, end->now);
	if (end->result == -ERESTART_RESTARTBLOCK)
		slot->restart = 1;
	if (stall_wait_has_bytes(kind) && end->result > 0)
		__sync_fetch_and_add(&stat->bytes, end->result);
	bool is_over = ns >= threshold_of(kind);
	if (is_over || (kind == STALL_WAIT_FUTEX && !stat->announced))
		emit_end(end, slot, stat, is_over, flags);
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
		if (!is_futex_operation(regs->si, FUTEX_WAITS))
			return 0;
		break;
	case STALL_CALL_IO_SUBMIT:
		return is_target(bpf_get_current_task_btf()->tgid)
			       ? handle_io_submitted(regs, result)
			       : 0;
	case STALL_CALL_IO_GETEVENTS:
		return is_target(bpf_get_current_task_btf()->tgid)
			       ? handle_io_getevents(regs, result)
			       : 0;
	}
	return handle_wait_exit(regs, result);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(stall_sys_exit, struct pt_regs *regs, long result)
{
	return handle_exit(regs, result);
}

SEC("tp/raw_syscalls/sys_exit")
int stall_perf_exit(struct syscall_event *event)
{
	return handle_exit((void *)bpf_task_pt_regs(bpf_get_current_task_btf()), event->result);
}
