/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the wait programs share among themselves and with their loader. Part of waits.bpf.c. */
#ifndef STALL_WAITS_MAPS_BPF_H
#define STALL_WAITS_MAPS_BPF_H

#include "ebpf/pids.bpf.h"
#include "ebpf/waits.h"
#include "ebpf/waits_calls.h"

// A function that is not static is verified once, on its own, and not again for each way that leads
// to it: it takes numbers and pointers to memory, none to kernel objects.
#define VERIFIED_ONCE __attribute__((noinline))

#define barrier() asm volatile("" ::: "memory")

// Set before the programs are loaded.
const volatile struct stall_call calls[STALL_CALLS];
const volatile __u32 wanted_kinds = 0;
const volatile __u32 thread_mask = 0; // of `threads`, whose size is a power of two
const volatile __u32 stat_mask = 0;   // of the hash table in `stats`
const volatile __u32 max_slots = 0;
const volatile __u32 max_stack = 0;	 // bytes of a stack copy
const volatile __u64 record_cost_ns = 0; // a second divided by the records that may be sent in it

// Changed while they run.
__u32 only_tgid = 0;	// the kernel's number of the one target; 0: there are several, or none
__u32 target_count = 0; // that were added, the ended ones included
__u64 thresholds[STALL_WAIT_KINDS];
__u64 scan_period_ns = 0;

// Told by the programs.
__u32 slots_high = 0; // slots that were ever in use: the first ones
__u32 marks = 0;      // sum of all stat.marked: with none, a wake costs one load
__u64 lost[STALL_LOST_CAUSES];

// The kernel's tgid -> the reader's pid.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_BPF_MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __s32);
} targets SEC(".maps");

// A hash table of threads by the kernel's tid: tid << 32 | slot + 1. Task storage says the same for
// thrice the time, and this is looked up twice in every wait.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct stall_wait_slot);
} slots SEC(".maps");

// Slots below slots_high that were given back.
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1);
	__type(value, __u32);
} free_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct stall_wait_stat);
} stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

// Of waits in flight, so that they need not wait behind stacks of waits that are over.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} alarms SEC(".maps");

static __always_inline void count_lost(enum stall_wait_lost cause)
{
	__sync_fetch_and_add(&lost[cause], 1);
}

static __always_inline bool is_wanted(__u32 tgid)
{
	if (tgid == only_tgid)
		return true;
	return target_count > 1 && bpf_map_lookup_elem(&targets, &tgid);
}

#endif
