// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Sees the waits of the wanted processes: at the entry and the return of system calls.
#include "ebpf/vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/waits_process.bpf.h"
#include "ebpf/waits_scan.bpf.h"

// Raw tracepoints with BTF: those of single system calls need tracefs, and cost more.
SEC("tp_btf/sys_enter")
int BPF_PROG(stall_sys_enter, struct pt_regs *regs, long number)
{
	return handle_enter(regs, number);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(stall_sys_exit, struct pt_regs *regs, long result)
{
	return handle_exit(regs, result);
}

// The same through perf, which does not let a program be preempted. A kernel that may preempt one
// does not run it meanwhile for other threads on that CPU: their waits would be missed.
struct syscall_event {
	__u64 common;
	long number;
	union {
		long result;
		unsigned long arguments[6];
	};
};

SEC("tp/raw_syscalls/sys_enter")
int stall_perf_enter(struct syscall_event *event)
{
	return handle_enter((void *)bpf_task_pt_regs(bpf_get_current_task_btf()), event->number);
}

SEC("tp/raw_syscalls/sys_exit")
int stall_perf_exit(struct syscall_event *event)
{
	return handle_exit((void *)bpf_task_pt_regs(bpf_get_current_task_btf()), event->result);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(stall_task_exit, struct task_struct *task)
{
	return handle_task_exit(task);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(stall_exec, struct task_struct *task, __s32 old_tid)
{
	return handle_exec(task, old_tid);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(stall_fork, struct task_struct *parent, struct task_struct *child)
{
	return handle_fork(parent, child);
}

SEC("iter/task")
int stall_adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	return task ? handle_adopted(task) : 0;
}

struct scan_timer {
	struct bpf_timer timer;
};

// No program that a tracepoint starts may use a map with a timer in it.
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

// Run once. The kernel stops the timer when nobody holds its map any more.
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

char LICENSE[] SEC("license") = "Dual BSD/GPL";
