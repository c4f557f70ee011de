// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Lets a perf event record samples of the targets alone: of other threads no stack is copied.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/programs/pids.bpf.h"
#include "ebpf/threads.h"

// Set before the program is loaded.
const volatile __u32 reader_pidns = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_BPF_MAX_PROCESSES);
	__type(key, __s32);
	__type(value, __u8);
} sampled SEC(".maps");

SEC("perf_event")
int stall_samples(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__s32 tgid = pid_for_reader(BPF_CORE_READ(task, group_leader, thread_pid));

	return tgid && bpf_map_lookup_elem(&sampled, &tgid);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
