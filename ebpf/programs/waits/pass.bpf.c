// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The iterator that finds waits where nothing is attached. A thread that was not on a CPU in two
// passes, with the same number of context switches, has not run in between: if it is in a system
// call that waits, it has waited since the first of them.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/passes.h"
#include "ebpf/programs/tasks.bpf.h"
#include "ebpf/programs/waits/inflight.bpf.h"
#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"

// Set before a pass.
__s32 pass_pid = 0; // in the reader's namespace
__u32 pass_number = 0;
__u32 pass_rests = 0;	// nothing is attached: waits that are over end here
__u32 pass_samples = 0; // write what each thread does
__u64 pass_clock = 0;	// CLOCK_MONOTONIC less the scheduler's clock; 0: unknown
// Set by a pass.
__u32 pass_tgid = 0; // the kernel's number, once it was found
__u32 pass_last = 0; // the end of the process's list of threads was reached
__u32 pass_threads = 0;
__u32 pass_execed = 0;	   // a thread executes another program than in the pass before
__u64 pass_clock_seen = 0; // pass_clock, at most some microseconds too large

// By the index of a slot.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct stall_pass);
} passes SEC(".maps");

// Too large for the BPF stack. One reader: nothing else runs this program from these maps.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stall_pass_sample);
} samples SEC(".maps");

/* The end of a wait that nobody saw: some time after the latest pass that saw it. */

static __always_inline void emit_end(struct stall_wait_slot *slot, __u32 index, __u32 seq,
				     __u64 end_ns, __u32 flags)
{
	struct record_buffer *out = acquire_record();

	if (!out)
		return;
	struct stall_wait_record *record = &out->record;
	init_record(record, STALL_RECORD_END, slot);
	describe_wait(record, slot);
	record->now_ns = end_ns;
	record->slot = index;
	record->seq = seq;
	record->flags = flags;
	__builtin_memcpy(record->comm, slot->comm, sizeof(record->comm));
	emit_bytes(record, sizeof(*record));
	release_record(out);
}

VERIFIED_ONCE int end_passed_wait(struct stall_wait_slot *slot, __u32 index, __u64 seen_ns)
{
	if (!slot)
		return 0;
	__u32 seq = slot->seq, kind = slot->key.kind, flags = wait_flags(slot, seq);
	__u64 start_ns = slot->start_ns, ns = seen_ns > start_ns ? seen_ns - start_ns : 0;

	slot->seq = seq + 1;
	if (slot->marked)
		clear_mark(slot);
	struct stall_wait_stat *stat = stat_at(slot->stat);
	if (!stat)
		return 0;
	count_wait(stat, ns, seen_ns);
	if (ns < threshold_of(kind))
		return 0;
	__sync_fetch_and_add(&stat->over, 1);
	if (stat->role == STALL_ROLE_COND)
		return 0;
	if (is_record_allowed_counted(stall_flow_of(&slot->key, stat->role, STALL_RECORD_END),
				      seen_ns))
		emit_end(slot, index, seq, start_ns + ns, flags);
	return 0;
}

/* Since when a thread has not run. */

// The reader has just been put on its CPU, which gives the scheduler's clock.
static __always_inline void compare_clocks(void)
{
	struct task_struct *reader = bpf_get_current_task_btf();

	if (bpf_core_field_exists(reader->sched_info.last_arrival))
		pass_clock_seen = bpf_ktime_get_ns() - reader->sched_info.last_arrival;
}

// It was put on a CPU at its last arrival, and has used no more CPU time since than since the pass
// before.
static __always_inline __u64 stopped_at(struct task_struct *task, const struct stall_pass *pass,
					__u64 runtime, __u64 now)
{
	if (!pass_clock || !bpf_core_field_exists(task->sched_info.last_arrival))
		return now;
	__u64 arrival = task->sched_info.last_arrival;
	__u64 at = arrival + pass_clock + (runtime - pass->runtime);
	return arrival && at > pass->seen_ns && at < now ? at : now;
}

/* A thread. */

static __noinline int begin_passed_wait(struct task_struct *task, __u32 index)
{
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &index);
	struct stall_pass *pass = bpf_map_lookup_elem(&passes, &index);
	struct pt_regs regs, *at = (void *)bpf_task_pt_regs(task);
	struct file *file = NULL;

	if (!slot || !pass)
		return 0;
	struct stall_wait_key key = {.tgid = slot->tgid};
	if (!at || is_compat(task) || !read_call(at, &regs) ||
	    !key_of_call(task, &regs, &key, &file)) {
		pass->no_wait = 1;
		return 0;
	}
	__u64 switches = pass->switches;
	if (!adopt_call(slot, &regs, &key, file, at))
		return 0;
	slot->start_ns = pass->since_ns;
	pass->fs_base = task->thread.fsbase;
	bpf_probe_read_kernel(pass->regs, sizeof(pass->regs), at);
	// It has run meanwhile.
	if (is_on_cpu(task) || count_switches(task) != switches)
		end_missed_wait(slot);
	return 0;
}

// Whether a wait of this length, a sixteenth of the shortest threshold, begins in the first pass that
// sees it. Most of the shorter ones are over before the next pass, which sees the others before
// their threshold.
static __always_inline bool is_long(const struct stall_pass *pass, __u64 now)
{
	return now - pass->since_ns >= scan_period_ns / 8;
}

static __always_inline struct stall_wait_slot *slot_of(struct task_struct *task, __u32 *index)
{
	struct stall_wait_slot *slot = find_slot(task, index);

	if (slot)
		return slot;
	*index = create_slot_of(task);
	return bpf_map_lookup_elem(&slots, index);
}

static __always_inline void forget_earlier(struct task_struct *task, struct stall_wait_slot *slot,
					   struct stall_pass *pass)
{
	bool other = slot->task != (__u64)task || pass->task == (__u64)task;

	// The end of the slot's thread was not seen, and this one has its number now.
	if (other)
		fill_slot(slot, task, slot->tgid);
	__builtin_memset(pass, 0, sizeof(*pass));
	pass->task = (__u64)task;
	pass->start_time = task->start_time;
	pass->exec_id = task->self_exec_id;
	pass->tid = task->pid;
}

static __always_inline void see(struct task_struct *task, struct stall_wait_slot *slot, __u32 index,
				struct stall_pass *pass)
{
	__u64 switches = count_switches(task), runtime = task->se.sum_exec_runtime;
	bool on_cpu = is_on_cpu(task);
	__u64 now = bpf_ktime_get_ns();

	if (pass->exec_id != task->self_exec_id) {
		pass->exec_id = task->self_exec_id;
		pass_execed = 1;
	}
	if (on_cpu || pass->switches != switches || !pass->since_ns) {
		if (pass_rests && (slot->seq & 1))
			end_passed_wait(slot, index, pass->seen_ns);
		pass->since_ns = on_cpu ? now : stopped_at(task, pass, runtime, now);
		pass->switches = switches;
		pass->runtime = runtime;
		pass->sampled = pass->no_wait = 0;
	}
	bool slept = pass->seen_ns >= pass->since_ns || is_long(pass, now);
	if (!on_cpu && slept && !pass->no_wait && !(slot->seq & 1))
		begin_passed_wait(task, index);
	pass->seen_ns = now;
	pass->number = pass_number;
}

/* Samples. */

static __always_inline void describe(struct task_struct *task, struct stall_pass_sample *sample)
{
	struct pt_regs regs, *at = (void *)bpf_task_pt_regs(task);
	struct file *file = NULL;
	struct stall_wait_key key = {};

	if (!at || is_compat(task) || !read_call(at, &regs))
		return;
	sample->call = regs.orig_ax;
	if (key_of_call(task, &regs, &key, &file))
		sample->key = key;
}

// Returns whether there was room for it: where the kernel has to empty its buffer first, it calls the
// program again for the same thread.
static __noinline int sample_thread(struct seq_file *seq, struct task_struct *task, __u32 index)
{
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &index);
	__u32 zero = 0;
	struct stall_pass_sample *sample = bpf_map_lookup_elem(&samples, &zero);

	if (!slot || !sample)
		return 0;
	__builtin_memset(sample, 0, sizeof(*sample));
	sample->slot = index;
	sample->call = -1;
	sample->key.kind = STALL_WAIT_KINDS;
	if (!is_on_cpu(task)) {
		sample->state = task_state(task);
		describe(task, sample);
		long size = bpf_get_task_stack(task, sample->frames, sizeof(sample->frames), 0);
		sample->frame_count = size > 0 ? (__u32)size / sizeof(__u64) : 0;
	}
	sample->key.tgid = slot->tgid;
	return !bpf_seq_write(seq, sample, sizeof(*sample));
}

// A pass reads all threads many times an hour: plain loads, and no number is translated twice.
static __always_inline bool is_of_process(struct task_struct *task)
{
	if (pass_tgid)
		return (__u32)task->tgid == pass_tgid;
	if (pid_for_reader(task->group_leader->thread_pid) != pass_pid)
		return false;
	pass_tgid = task->tgid;
	return true;
}

static __always_inline bool is_last_of_process(struct task_struct *task)
{
	struct signal_struct *signal = task->signal;

	return (void *)task->thread_node.next ==
	       (void *)signal + bpf_core_field_offset(signal->thread_head);
}

static __always_inline bool is_ignored(struct task_struct *task, __u32 index)
{
	struct stall_ignored *found = &ignored[index & (STALL_MAX_IGNORED - 1)];

	if (index < STALL_IGNORED || index == NO_SLOT)
		return false;
	// Else user space releases the number: it is another thread's now.
	if (found->start_time == task->start_time)
		found->seen = pass_number;
	return true;
}

static __always_inline int handle_passed(struct seq_file *seq, struct task_struct *task)
{
	__u32 index;

	if (!is_of_process(task))
		return 0;
	if (is_last_of_process(task))
		pass_last = 1;
	if (!task->thread_pid) // it has ended
		return 0;
	struct stall_wait_slot *slot = slot_of(task, &index);
	if (!slot && is_ignored(task, index))
		return 0;
	struct stall_pass *pass = bpf_map_lookup_elem(&passes, &index);
	if (!slot || !pass) {
		pass_threads++;
		return 0;
	}
	if (pass->task != (__u64)task || pass->start_time != task->start_time)
		forget_earlier(task, slot, pass);
	if (pass->number != pass_number)
		pass_threads++;
	see(task, slot, index, pass);
	if (pass_samples && !pass->sampled)
		pass->sampled = sample_thread(seq, task, index);
	return 0;
}

SEC("iter/task")
int stall_pass(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!pass_clock_seen)
		compare_clocks();
	return task ? handle_passed(ctx->meta->seq, task) : 0;
}
