// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// One record for each thread of the targets.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "ebpf/programs/pids.bpf.h"
#include "ebpf/programs/tasks.bpf.h"
#include "ebpf/threads.h"

// Set before the program is loaded.
const volatile __u32 reader_pidns = 0;
const volatile bool reader_is_initial = false; // it is the system's own pid namespace

// Set between two runs.
__u32 with_kernel_stacks = 0;
__u32 chosen_only = 0; // leave out threads that are not in `chosen`
// Set by a run.
__u32 saw_last = 0; // the end of the process's list of threads was reached

// What neighbours in the walk have in common, read once: most of the time goes into reads of the
// kernel's memory. User space clears it before a run, since memory is used again.
struct {
	__u64 leader, mm; // addresses; leader: or the pid in the initial namespace
	__s32 tgid;	  // 0: no target
	__u32 level;	  // of its own pid namespace
	__u64 start_stack, start_brk;
	__u64 end; // what the last thread's list entry points to
} common = {};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_BPF_MAX_PROCESSES);
	__type(key, __s32);
	__type(value, __u8);
} targets SEC(".maps");

// Threads, by tid.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STALL_BPF_MAX_CHOSEN);
	__type(key, __s32);
	__type(value, __u8);
} chosen SEC(".maps");

struct scratch {
	struct stall_bpf_thread thread;
	__u64 kernel_frames[STALL_BPF_KERNEL_FRAMES];
};

// Too large for the BPF stack. One reader: nothing else runs this program from these maps.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

// Pointers are read as numbers (BPF_CORE_READ): for each typed dereference the verifier of 6.x
// searches all types of the kernel by name, some milliseconds in total.

static __always_inline void read_regs(struct task_struct *task, struct stall_bpf_thread *thread)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

	// The saved registers are at the top of the kernel stack, which is freed when the thread
	// ends: use a read that can fail, not a dereference.
	if (regs && !bpf_probe_read_kernel(thread->regs, sizeof(thread->regs), regs))
		thread->flags |= STALL_BPF_REGS;
}

static __always_inline void fill(struct task_struct *task, struct stall_bpf_thread *thread)
{
	thread->magic = STALL_BPF_MAGIC;
	thread->ns_tid = reader_is_initial && !common.level
				 ? thread->tid
				 : pid_in_own_namespace(BPF_CORE_READ(task, thread_pid));
	thread->state = task_state(task);
	thread->exit_state = task->exit_state;
	thread->runtime = task->se.sum_exec_runtime;
	thread->exec_id = task->self_exec_id;
	__u64 mm = (__u64)BPF_CORE_READ(task, mm);
	if (mm != common.mm || !mm) {
		common.start_stack = BPF_CORE_READ(task, mm, start_stack); // 0 through NULL
		common.start_brk = BPF_CORE_READ(task, mm, start_brk);
		common.mm = mm;
	}
	thread->start_stack = common.start_stack;
	thread->start_brk = common.start_brk;
	thread->fs_base = task->thread.fsbase;
	BPF_CORE_READ_STR_INTO(&thread->comm, task, comm);
	if (is_compat(task))
		thread->flags |= STALL_BPF_COMPAT;
	read_regs(task, thread);
}

static __always_inline __u32 read_kernel_stack(struct task_struct *task, __u64 *frames)
{
	// The stack of a thread that is on a CPU changes under the unwinder.
	if (!with_kernel_stacks || is_on_cpu(task))
		return 0;
	long size = bpf_get_task_stack(task, frames, STALL_BPF_KERNEL_FRAMES * sizeof(*frames), 0);
	if (size <= 0)
		return 0;
	return (__u32)size / sizeof(*frames);
}

// In the reader's pid namespace; 0: it is none of the targets.
static __always_inline __s32 find_target(struct task_struct *task)
{
	__u64 leader =
		reader_is_initial ? (__u64)task->tgid : (__u64)BPF_CORE_READ(task, group_leader);

	if (leader != common.leader) {
		__s32 tgid = pid_for_reader(BPF_CORE_READ(task, group_leader, thread_pid));

		common.tgid = tgid && bpf_map_lookup_elem(&targets, &tgid) ? tgid : 0;
		common.level = BPF_CORE_READ(task, thread_pid, level);
		common.end = list_end(task);
		common.leader = leader;
	}
	return common.tgid;
}

static __always_inline int handle_task(struct seq_file *seq, struct task_struct *task)
{
	__u64 switches = count_switches(task);
	__s32 tgid = find_target(task);
	__u32 zero = 0;

	if (!tgid)
		return 0;
	if ((__u64)BPF_CORE_READ(task, thread_node.next) == common.end)
		saw_last = 1;
	// A pid is a number of its thread until that has been reaped.
	__s32 tid = reader_is_initial ? task->pid : pid_for_reader(BPF_CORE_READ(task, thread_pid));
	if (!tid) // it has ended, and has no pid any more
		return 0;
	if (chosen_only && !bpf_map_lookup_elem(&chosen, &tid))
		return 0;
	struct scratch *out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out) // an array has all its elements
		return 0;
	struct stall_bpf_thread *thread = &out->thread;
	__builtin_memset(thread, 0, sizeof(*thread));
	thread->switches_before = switches;
	thread->tgid = tgid;
	thread->tid = tid;
	fill(task, thread);
	__u32 frames = read_kernel_stack(task, out->kernel_frames);
	if (frames > STALL_BPF_KERNEL_FRAMES)
		frames = STALL_BPF_KERNEL_FRAMES;
	thread->kernel_frame_count = frames;
	thread->on_cpu = is_on_cpu(task);
	thread->switches_after = count_switches(task);
	bpf_seq_write(seq, out, sizeof(*thread) + frames * sizeof(__u64));
	return 0;
}

SEC("iter/task")
int stall_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task)
		return 0;
	return handle_task(ctx->meta->seq, task);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
