/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The data that the units of the wait programs share with one another and with their loader. */
#ifndef STALL_WAITS_STATE_BPF_H
#define STALL_WAITS_STATE_BPF_H

#include "ebpf/programs/pids.bpf.h"
#include "ebpf/waits.h"
#include "ebpf/waits_calls.h"

// A function that several units use is of one of two kinds. VERIFIED_ONCE: it is verified on its
// own, not for each path to it; it takes numbers and pointers to memory, none to kernel objects,
// and returns a number. HIDDEN: it is verified like a static function, for each call, with the
// caller's arguments.
#define VERIFIED_ONCE __attribute__((noinline))
#define HIDDEN __hidden __attribute__((noinline))

#define barrier() asm volatile("" ::: "memory")

// Set before the programs are loaded.
extern const volatile struct stall_call calls[STALL_CALLS];
extern const volatile __u32 enabled_kinds; // bit of each enum stall_wait_kind
extern const volatile __u32 thread_mask;   // of `threads`, whose size is a power of two
extern const volatile __u32 stat_mask;	   // of the hash table in `stats`
extern const volatile __u32 max_slots;
extern const volatile __u32 max_stack;	    // bytes of a stack copy
extern const volatile __u32 counts_storage; // not waits, but what is written to files
extern const volatile __u32 record_mask;    // of `record_buffers`, whose size is a power of two
extern const volatile __u64
	record_cost_ns; // a second divided by the records that may be sent in it

// Changed while they run.
extern __u32 only_tgid;	   // the kernel's number of the one target; 0: there are several, or none
extern __u32 target_count; // targets that were added, including ended ones
extern __u64 thresholds[STALL_WAIT_KINDS];
extern __u64 scan_period_ns;
// Set by a pass. Until then no wait that a pass has found is reported if its word has no role yet:
// user space is about to find out, and thousands of threads may wait there for work.
extern __u64 unknown_until_ns;

extern struct stall_ignored ignored[STALL_MAX_IGNORED];

// Written by the programs.
extern __u32 slots_high; // the slots that were ever in use are below
extern __u32 made_count; // of made_stats
extern __u32 marks;	 // sum of all stat.marked: with none, a wake costs one load
extern __u64 lost[STALL_LOST_CAUSES];

// The kernel's tgid -> the reader's pid.
struct targets_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_BPF_MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __s32);
};
extern struct targets_map targets SEC(".maps");

// A hash table of threads by the kernel's tid: tid << 32 | slot + 1. Task storage costs three times
// as much, and every wait has two lookups.
struct threads_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
};
extern struct threads_map threads SEC(".maps");

struct slots_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct stall_wait_slot);
};
extern struct slots_map slots SEC(".maps");

// Free slots below slots_high.
struct free_slots_map {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1);
	__type(value, __u32);
};
extern struct free_slots_map free_slots SEC(".maps");

struct stats_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct stall_wait_stat);
};
extern struct stats_map stats SEC(".maps");

// As `stats`; one where waits are counted.
struct storage_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct stall_storage_stat);
};
extern struct storage_map storage SEC(".maps");

// Index + 1 of each stat that was ever made, in their order: few of them are.
struct made_stats_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64); // as far apart as a mapped array has its elements
};
extern struct made_stats_map made_stats SEC(".maps");

struct record_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};
extern struct record_ring records SEC(".maps");
// A ring buffer for waits in flight, so that they are not delayed by stacks of ended waits.
extern struct record_ring alarms SEC(".maps");

static __always_inline void count_lost(enum stall_wait_lost cause)
{
	__sync_fetch_and_add(&lost[cause], 1);
}

static __always_inline bool is_target(__u32 tgid)
{
	if (tgid == only_tgid)
		return true;
	return target_count > 1 && bpf_map_lookup_elem(&targets, &tgid);
}

// For a number that is no kind: no wait is that long.
static __always_inline __u64 threshold_of(__u32 kind)
{
	// Checked again: the verifier (6.1) misses the first check where the compiler uses a copy.
	barrier_var(kind);
	return kind < STALL_WAIT_KINDS ? thresholds[kind] : ~0ULL;
}

static __always_inline bool is_enabled(__u32 kind)
{
	return kind < STALL_WAIT_KINDS && (enabled_kinds >> kind & 1);
}

#endif
