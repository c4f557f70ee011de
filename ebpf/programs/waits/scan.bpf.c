// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Finds waits in flight that have passed their threshold: by a timer, or run by user space.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>

#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/wait.bpf.h"

// The least interval between two scans, also when many waits pass their thresholds.
#define MIN_PAUSE_NS 500000ULL

// A record takes microseconds, and a scan occupies a CPU: the next scan emits the rest.
#define MAX_EMITTED 64

// While waits are not reported that are to be identified first.
#define UNKNOWN_PAUSE_NS 20000000ULL

// Not read yet: records behind these are late.
#define MAX_PENDING (128 * sizeof(struct stall_wait_record))

// Less than a record with a stack.
#define ALARM_CHEAPER 8

struct scan {
	__u64 now;
	__u64 next; // when something is due
	__u32 emitted;
};

static __always_inline void mark_wait(struct stall_wait_slot *slot, struct stall_wait_stat *stat,
				      __u32 seq)
{
	if (stat->tag == 0 || stat->key.tgid == 0) { // not the key's own
		count_lost(STALL_LOST_MARKS_FULL);
		return;
	}
	mark_stat(stat);
	__sync_lock_test_and_set(&slot->marked, seq);
	// The wait may have ended before it could see `reported`.
	if (*(volatile __u32 *)&slot->seq != seq &&
	    __sync_lock_test_and_set(&slot->marked, 0) == seq)
		unmark_stat(stat);
}

// Losses of the scan's records.
struct stall_fair_share alarm_share;

VERIFIED_ONCE int is_alarm_allowed(__u32 flow, __u64 now)
{
	return stall_fair_take(&alarm_share, flow, record_cost_ns / ALARM_CHEAPER, now,
			       bpf_ringbuf_query(&alarms, BPF_RB_AVAIL_DATA) > MAX_PENDING);
}

static __always_inline void emit_in_flight(struct stall_wait_slot *slot, __u32 index, __u32 seq,
					   __u32 flow, struct scan *scan)
{
	__u64 now = scan->now, next = scan->next;
	struct task_struct *task = (void *)slot->task;

	scan->next = now; // try again in the next scan
	if (scan->emitted >= MAX_EMITTED || !is_alarm_allowed(flow, now))
		return;
	struct record_buffer *out = acquire_record();
	if (!out)
		return;
	scan->next = next;
	struct stall_wait_record *record = &out->record;
	init_record(record, STALL_RECORD_IN_FLIGHT, slot);
	describe_wait(record, slot);
	record->now_ns = now;
	record->slot = index;
	record->seq = seq;
	record->flags = wait_flags(slot, seq) | STALL_SLOT_REPORTED;
	bpf_probe_read_kernel(record->regs, sizeof(record->regs), (void *)slot->regs);
	bpf_probe_read_kernel_str(record->comm, sizeof(record->comm), &task->comm);
	record->stack_address = record->regs[STALL_BPF_SP];
	barrier();
	if (*(volatile __u32 *)&slot->seq == seq) {
		slot->reported = seq;
		// Waking the reader is the most expensive step: once is enough.
		if (bpf_ringbuf_output(&alarms, record, sizeof(*record),
				       scan->emitted++ ? 0 : BPF_RB_FORCE_WAKEUP))
			count_lost(STALL_LOST_RING_FULL);
	}
	release_record(out);
}

static __always_inline bool is_due(struct scan *scan, __u64 when)
{
	if (when <= scan->now)
		return true;
	if (when < scan->next)
		scan->next = when;
	return false;
}

static __always_inline bool is_to_be_identified(__u32 kind, const struct stall_wait_slot *slot,
						const struct stall_wait_stat *stat)
{
	return kind == STALL_WAIT_FUTEX && stat->role == STALL_ROLE_UNKNOWN &&
	       (slot->flags & STALL_SLOT_ADOPTED);
}

// unknown_until_ns, or soon if a pass has not ended yet.
static __always_inline __u64 later(const struct scan *scan)
{
	__u64 until = *(volatile __u64 *)&unknown_until_ns, soon = scan->now + UNKNOWN_PAUSE_NS;

	return until < soon ? until : soon;
}

struct bpf_map;

static long scan_slot(struct bpf_map *map, __u32 *index, struct stall_wait_slot *slot,
		      struct scan *scan)
{
	__u32 seq = *(volatile __u32 *)&slot->seq;

	if (*index >= slots_high)
		return 1;
	if (!(seq & 1))
		return 0;
	__u64 start = slot->start_ns;
	__u32 kind = slot->key.kind;
	struct stall_wait_stat *stat = stat_at(slot->stat);
	barrier();
	if (*(volatile __u32 *)&slot->seq != seq || kind >= STALL_WAIT_KINDS || !stat)
		return 0;
	if (stat->role == STALL_ROLE_COND) // no stall, however long
		return 0;
	if (is_to_be_identified(kind, slot, stat) && !is_due(scan, later(scan)))
		return 0;
	__u64 threshold = threshold_of(kind);
	if (kind == STALL_WAIT_FUTEX && slot->marked != seq && is_due(scan, start + threshold / 2))
		mark_wait(slot, stat, seq);
	if (slot->reported != seq && is_due(scan, start + threshold))
		emit_in_flight(slot, *index, seq,
			       stall_flow_of(&slot->key, stat->role, STALL_RECORD_IN_FLIGHT), scan);
	return 0;
}

// Returns how long the next scan can wait. A wait that begins from now on is seen at least once
// before it is due: the period is half the shortest threshold.
static __always_inline __u64 scan_slots(void)
{
	struct scan scan = {.now = bpf_ktime_get_ns()};

	scan.next = scan.now + scan_period_ns;
	bpf_for_each_map_elem(&slots, scan_slot, &scan, 0);
	__u64 now = bpf_ktime_get_ns();
	return scan.next > now + MIN_PAUSE_NS ? scan.next - now : MIN_PAUSE_NS;
}

struct scan_timer {
	struct bpf_timer timer;
};

// A program that a tracepoint starts must not use a map with a timer.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scan_timer);
} scan_timers SEC(".maps");

static int on_scan_timer(void *map, __u32 *key, struct scan_timer *timer)
{
	bpf_timer_start(&timer->timer, scan_slots(), 0);
	return 0;
}

#define CLOCK_MONOTONIC 1

// Run once. The kernel stops the timer when its map has no holder any more.
SEC("syscall")
int stall_start_timer(void *ctx)
{
	__u32 zero = 0;
	struct scan_timer *timer = bpf_map_lookup_elem(&scan_timers, &zero);

	if (!timer)
		return 1;
	return bpf_timer_init(&timer->timer, &scan_timers, CLOCK_MONOTONIC) ||
	       bpf_timer_set_callback(&timer->timer, on_scan_timer) ||
	       bpf_timer_start(&timer->timer, 0, 0);
}

// Where there is no timer: run by user space.
SEC("syscall")
int stall_scan(void *ctx)
{
	scan_slots();
	return 0;
}
