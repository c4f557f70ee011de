// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Page faults of one process, with stacks: where its memory grows. See docs/design.md ("Memory").
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/fair_share.h"
#include "ebpf/growth.h"
#include "ebpf/programs/pids.bpf.h"
#include "ebpf/programs/stacks.bpf.h"

// As in programs/waits/state.bpf.h: verified on its own, not for each path to it.
#define VERIFIED_ONCE __attribute__((noinline))

#define HASHED_WORDS 64
#define WINDOW_NS 10000000
#define MAX_STRIDE 4096
#define USER_END                                                                                   \
	0x7ffffffff000ULL // TASK_SIZE_MAX with four levels; five are asked for by no server
#define NEAR_STACK 65536  // below the stack pointer
#define PF_PROT 1	  // of the error code: the page is there
#define MM_ANONPAGES 1	  // include/linux/mm_types_task.h
#define PENDING 4096
#define GAP_PAGES 16 // at the lower end of a stack, that the fault is about to make

// Set before the programs are loaded.
const volatile __u32 reader_pidns = 0;
const volatile bool reader_is_initial = false;
const volatile __s32 wanted = 0; // the process, by the reader's pid
const volatile __u32 max_stack = 0;
const volatile __u64 stack_cost_ns = 0;	 // a second divided by the stacks that may be copied in it
const volatile __u32 window_records = 0; // of a CPU, in WINDOW_NS

// Found by the iterator.
__u64 target_mm = 0;
// Code of the program, and of the libraries. Volatile: a bound that stays in a register has another
// range after each comparison, and the verifier follows all combinations of these (Linux 7.2).
volatile __u64 code_low[2] = {}, code_high[2] = {};
__u32 running = 0;

// Written by the programs.
__u64 faults[STALL_GROWTH_KINDS] = {};
__u64 lost[STALL_GROWTH_LOST_CAUSES] = {};
struct stall_fair_share share = {};

// The thread whose fault in a system call has not made a page yet, by its number.
__u32 pending[PENDING] = {};

struct cpu {
	__u64 window_ns;
	__u32 busy;
	__u32 since, stride; // faults since the last record; a record each `stride`
	__u32 records;	     // in the window
	__u64 words[HASHED_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} fault_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} stack_ring SEC(".maps");

// Too large for the BPF stack, and for a per-CPU map (32 KiB): one for each CPU, which its `busy`
// protects.
struct stack_record {
	struct stall_growth_stack head;
	__u8 stack[MAX_STACK + PAGE]; // room that the verifier can see
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack_record);
} stack_records SEC(".maps");

static __always_inline void count_lost(enum stall_growth_lost cause)
{
	__sync_fetch_and_add(&lost[cause], 1);
}

// The stride follows the rate, so that the cost for the server has a limit. Returns how many faults
// the record stands for; 0: none.
static __always_inline __u32 weigh(struct cpu *cpu, __u64 now)
{
	__u32 stride = cpu->stride ? cpu->stride : 1, weight = cpu->since + 1;

	cpu->since = weight;
	if (weight < stride)
		return 0;
	cpu->since = 0;
	cpu->records++;
	if (now - cpu->window_ns > WINDOW_NS) {
		if (cpu->records < window_records / 4 && stride > 1)
			stride /= 2;
		cpu->window_ns = now;
		cpu->records = 1;
	} else if (cpu->records >= window_records && stride < MAX_STRIDE) {
		stride *= 2;
		cpu->records = 0;
	}
	cpu->stride = stride;
	return weight;
}

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15;
	return hash ^ hash >> 29;
}

// Over the words that may be return addresses, and where they are. Not over the whole stack: a copy
// of a stack costs ten times as much.
static __always_inline __u64 hash_stack(struct cpu *cpu, __u64 sp, __u64 ip)
{
	__u64 hash = mix(1, ip);

	if (bpf_probe_read_user(cpu->words, sizeof(cpu->words), (void *)sp))
		return hash;
	for (__u32 i = 0; i < HASHED_WORDS; i++) {
		__u64 word = cpu->words[i];

		if ((word >= code_low[0] && word < code_high[0]) ||
		    (word >= code_low[1] && word < code_high[1]))
			hash = mix(hash, word ^ i);
	}
	return hash;
}

// The innermost pages of a stack that grows are not there yet. Nothing was in them. `end`: of the
// stack, 0 unknown.
VERIFIED_ONCE int copy_stack(struct stack_record *out, __u64 end, __u64 sp)
{
	__u64 from = sp, limit = max_stack;
	__u32 size = 0;

	if (!out)
		return 0;
	if (end && end - sp < limit)
		limit = end - sp;
	for (int i = 0; i < GAP_PAGES; i++) {
		__u64 word;

		if (!bpf_probe_read_user(&word, sizeof(word), (void *)from))
			break;
		from = (from + PAGE) & ~(__u64)(PAGE - 1);
	}
	if (from - sp < limit)
		size = copy_user_stack(out->stack, from, limit - (from - sp));
	out->head.stack_address = from;
	out->head.stack_size = size;
	if (!size)
		count_lost(STALL_GROWTH_NO_STACK);
	return 0;
}

static __always_inline bool emit_stack(const struct stall_growth_fault *fault,
				       struct task_struct *task, const void *regs, __u64 sp,
				       __u64 now)
{
	if (!stall_fair_take(&share, fault->hash >> 40, stack_cost_ns, now, false))
		return false;
	__u32 number = bpf_get_smp_processor_id();
	struct stack_record *out = bpf_map_lookup_elem(&stack_records, &number);
	if (!out)
		return false;
	__builtin_memset(&out->head, 0, sizeof(out->head));
	out->head.fault = *fault;
	out->head.now_ns = now;
	out->head.ns_tid = reader_is_initial && !BPF_CORE_READ(task, thread_pid, level)
				   ? fault->tid
				   : pid_in_own_namespace(BPF_CORE_READ(task, thread_pid));
	bpf_probe_read_kernel(out->head.regs, sizeof(out->head.regs), regs);
	bpf_get_current_comm(out->head.comm, sizeof(out->head.comm));
	copy_stack(out, stack_end(task, sp), sp);
	__u64 size = out->head.stack_size;
	if (size > MAX_STACK)
		return false;
	if (bpf_ringbuf_output(&stack_ring, out, sizeof(out->head) + size, BPF_RB_NO_WAKEUP)) {
		count_lost(STALL_GROWTH_STACK_ROOM);
		return false;
	}
	return true;
}

static __always_inline int record_fault(struct cpu *cpu, struct task_struct *task, __u64 address,
					enum stall_growth_kind kind, __u32 flags)
{
	// Of an exception from user mode, or of the system call.
	const struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	__u64 sp = BPF_CORE_READ(regs, sp), ip = BPF_CORE_READ(regs, ip), now = bpf_ktime_get_ns();
	struct stall_growth_fault fault = {};

	fault.weight = weigh(cpu, now);
	if (!fault.weight)
		return 0;
	fault.magic = STALL_BPF_MAGIC;
	fault.kind = kind;
	fault.tid = reader_is_initial ? task->pid : pid_for_reader(BPF_CORE_READ(task, thread_pid));
	fault.address = address & ~(__u64)(PAGE - 1);
	fault.hash = hash_stack(cpu, sp, ip);
	fault.site = mix(mix(2, ip), sp);
	fault.flags = flags;
	if (address && address + NEAR_STACK > sp && address < stack_end(task, sp))
		fault.flags |= STALL_GROWTH_ON_STACK;
	if (emit_stack(&fault, task, regs, sp, now))
		return 0;
	if (bpf_ringbuf_output(&fault_ring, &fault, sizeof(fault), BPF_RB_NO_WAKEUP))
		count_lost(STALL_GROWTH_NO_ROOM);
	return 0;
}

// A read of user memory in a program may fault itself, which must not count. Nor may a program that
// interrupts another one use its memory.
static __always_inline int take_fault(struct task_struct *task, __u64 address,
				      enum stall_growth_kind kind, __u32 flags)
{
	__u32 zero = 0;
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &zero);

	if (!cpu)
		return 0;
	if (cpu->busy) {
		if (kind != STALL_GROWTH_KERNEL)
			count_lost(STALL_GROWTH_NESTED);
		return 0;
	}
	cpu->busy = 1;
	__sync_fetch_and_add(&faults[kind], 1);
	record_fault(cpu, task, address, kind, flags);
	cpu->busy = 0;
	return 0;
}

static __always_inline bool is_target(const struct task_struct *task)
{
	return running && (__u64)task->mm == target_mm;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(stall_fault_user, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!is_target(task))
		return 0;
	return take_fault(task, address, STALL_GROWTH_USER,
			  error & PF_PROT ? STALL_GROWTH_PRESENT : 0);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(stall_fault_kernel, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!is_target(task) || address >= USER_END)
		return 0;
	pending[task->pid & (PENDING - 1)] = task->pid;
	return take_fault(task, address, STALL_GROWTH_KERNEL,
			  error & PF_PROT ? STALL_GROWTH_PRESENT : 0);
}

// Calls that give memory back, or to another process.
static __always_inline bool gives_back(const struct pt_regs *regs)
{
	__u64 call = BPF_CORE_READ(regs, orig_ax);

	switch (call) {
	case 9: // mmap: unless MAP_LOCKED or MAP_POPULATE
		return !(BPF_CORE_READ(regs, r10) & 0xa000);
	case 28: // madvise: unless MADV_POPULATE_READ, MADV_POPULATE_WRITE
		return BPF_CORE_READ(regs, dx) != 22 && BPF_CORE_READ(regs, dx) != 23;
	case 11: // munmap
	case 12: // brk
	case 25: // mremap
	case 29: // shmat
	case 56: // clone, fork, vfork, execve, exit
	case 57:
	case 58:
	case 59:
	case 60:
	case 231: // exit_group
	case 322: // execveat
	case 435: // clone3
		return true;
	default:
		return (__s64)call < 0; // in an exception: a fault that has a record
	}
}

// The kernel makes pages for direct I/O and mlock without any fault.
SEC("tp_btf/rss_stat")
int BPF_PROG(stall_rss, struct mm_struct *mm, int member)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (member != MM_ANONPAGES || (__u64)mm != target_mm || !is_target(task))
		return 0;
	__u32 *made = &pending[task->pid & (PENDING - 1)];
	if (*made == (__u32)task->pid) {
		*made = 0;
		return 0;
	}
	const struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	if (!regs || gives_back(regs))
		return 0;
	return take_fault(task, 0, STALL_GROWTH_POPULATE, 0);
}

SEC("iter/task")
int stall_growth_find(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task || target_mm)
		return 0;
	if (pid_for_reader(BPF_CORE_READ(task, group_leader, thread_pid)) == wanted)
		target_mm = (__u64)BPF_CORE_READ(task, mm);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
