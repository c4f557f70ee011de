// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Threads and processes that begin and end.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"

static __always_inline void emit_process(enum stall_process_change change, __s32 tgid, __u64 value)
{
	struct stall_wait_record record = {};

	record.magic = STALL_BPF_MAGIC;
	record.type = STALL_RECORD_PROCESS;
	record.tid = record.tgid = tgid;
	record.key.tgid = tgid;
	record.start_ns = record.now_ns = bpf_ktime_get_ns();
	record.result = change;
	record.value = value;
	bpf_get_current_comm(record.comm, sizeof(record.comm));
	emit_bytes(&record, sizeof(record));
}

static __always_inline int handle_task_exit(struct task_struct *task)
{
	__u32 tgid = task->tgid;

	release_slot(task->pid);
	if (task->signal->live.counter || !is_target(tgid))
		return 0;
	// Several last threads may get here; only one of them finds the entry.
	__s32 *found = bpf_map_lookup_elem(&targets, &tgid);
	__s32 pid = found ? *found : 0;
	if (!found || bpf_map_delete_elem(&targets, &tgid))
		return 0;
	emit_process(STALL_PROCESS_EXITED, pid, 0);
	return 0;
}

static __always_inline int handle_exec(struct task_struct *task, __s32 old_tid)
{
	__u32 tgid = task->tgid;
	__s32 *pid = is_target(tgid) ? bpf_map_lookup_elem(&targets, &tgid) : NULL;

	if (!pid)
		return 0;
	// A thread that execs takes the number of its leader, and it has another name now.
	release_slot(old_tid);
	release_slot(task->pid);
	emit_process(STALL_PROCESS_EXECED, *pid, 0);
	return 0;
}

static __always_inline int handle_fork(struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = parent->tgid;

	if (tgid == (__u32)child->tgid || !is_target(tgid))
		return 0;
	__s32 *pid = bpf_map_lookup_elem(&targets, &tgid);
	if (pid)
		emit_process(STALL_PROCESS_FORKED, *pid, pid_for_reader(child->thread_pid));
	return 0;
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
