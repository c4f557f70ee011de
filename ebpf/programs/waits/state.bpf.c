// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/state.bpf.h"

const volatile __u32 reader_pidns = 0;
const volatile struct stall_call calls[STALL_CALLS];
const volatile __u32 enabled_kinds = 0;
const volatile __u32 thread_mask = 0;
const volatile __u32 stat_mask = 0;
const volatile __u32 max_slots = 0;
const volatile __u32 max_stack = 0;
const volatile __u32 counts_storage = 0;
const volatile __u32 record_mask = 0;
const volatile __u64 record_cost_ns = 0;

__u32 only_tgid = 0;
__u32 target_count = 0;
__u64 thresholds[STALL_WAIT_KINDS];
__u64 scan_period_ns = 0;
__u64 unknown_until_ns = 0;
struct stall_ignored ignored[STALL_MAX_IGNORED];

__u32 slots_high = 0;
__u32 made_count = 0;
__u32 marks = 0;
__u64 lost[STALL_LOST_CAUSES];

struct targets_map targets SEC(".maps");
struct threads_map threads SEC(".maps");
struct slots_map slots SEC(".maps");
struct free_slots_map free_slots SEC(".maps");
struct stats_map stats SEC(".maps");
struct storage_map storage SEC(".maps");
struct made_stats_map made_stats SEC(".maps");
struct record_ring records SEC(".maps");
struct record_ring alarms SEC(".maps");

char LICENSE[] SEC("license") = "Dual BSD/GPL";
