// SPDX-License-Identifier: Apache-2.0
#include "snapshot/thread_record.h"

#include <errno.h>
#include <string.h>

// include/linux/sched.h; these bits have kept their values since 4.14.
#define TASK_INTERRUPTIBLE 0x01
#define TASK_UNINTERRUPTIBLE 0x02
#define TASK_STOPPED 0x04
#define TASK_TRACED 0x08
#define EXIT_DEAD 0x10
#define EXIT_ZOMBIE 0x20
#define TASK_DEAD 0x80
#define TASK_NOLOAD 0x400
#define TASK_RTLOCK_WAIT 0x1000 // PREEMPT_RT: shown as D
#define TASK_FROZEN 0x8000	// since 6.1; fs/proc/array.c shows it as D

#define USER32_CS 0x23 // __USER32_CS, arch/x86/include/asm/segment.h

char stall_record_state(const struct stall_bpf_thread *record)
{
	uint32_t state = record->state;

	if (record->exit_state & EXIT_ZOMBIE)
		return 'Z';
	if ((record->exit_state & EXIT_DEAD) || (state & TASK_DEAD))
		return 'X';
	if ((state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD)) == (TASK_UNINTERRUPTIBLE | TASK_NOLOAD))
		return 'I';
	if (state & TASK_TRACED)
		return 't';
	if (state & TASK_STOPPED)
		return 'T';
	if (state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT | TASK_FROZEN))
		return 'D';
	return state & TASK_INTERRUPTIBLE ? 'S' : 'R';
}

bool stall_record_is_dead(const struct stall_bpf_thread *record)
{
	return record->exit_state || (record->state & TASK_DEAD);
}

// Leaving a CPU counts a switch (__schedule) before it clears on_cpu (finish_task). `after` read
// on_cpu as 0 and the count behind that, so every run that began before is counted in it; `before`
// read the count first of all. The same count in both: no run in between. x86 keeps the order of
// loads, and of stores. The state may differ: a thread that was woken but has not run yet is the
// same thread.
bool stall_record_did_not_run(const struct stall_bpf_thread *before,
			      const struct stall_bpf_thread *after)
{
	return !before->on_cpu && !after->on_cpu &&
	       before->switches_before == after->switches_after &&
	       before->runtime == after->runtime && before->exec_id == after->exec_id &&
	       before->flags == after->flags && before->fs_base == after->fs_base &&
	       !memcmp(before->regs, after->regs, sizeof(before->regs));
}

static void fill_regs(const struct stall_bpf_thread *record, struct stall_regs *regs)
{
	static const uint8_t order[STALL_REGS] = {
		STALL_BPF_AX,  STALL_BPF_DX,  STALL_BPF_CX,  STALL_BPF_BX,  STALL_BPF_SI,
		STALL_BPF_DI,  STALL_BPF_BP,  STALL_BPF_SP,  STALL_BPF_R8,  STALL_BPF_R9,
		STALL_BPF_R10, STALL_BPF_R11, STALL_BPF_R12, STALL_BPF_R13, STALL_BPF_R14,
		STALL_BPF_R15, STALL_BPF_IP,
	};

	for (unsigned int i = 0; i < STALL_REGS; i++)
		regs->value[i] = record->regs[order[i]];
	regs->valid = (1U << STALL_REGS) - 1;
}

bool stall_record_is_32bit(const struct stall_bpf_thread *record)
{
	return (record->flags & STALL_BPF_REGS) &&
	       (record->regs[STALL_BPF_CS] & 0xffff) == USER32_CS;
}

// Threads that never were in user space (io_uring's workers) have zeroes for a stack pointer and a
// PC (copy_thread, arch/x86/kernel/process.c). 32-bit code has other registers.
static bool has_user_regs(const struct stall_bpf_thread *record)
{
	return (record->flags & STALL_BPF_REGS) && record->regs[STALL_BPF_IP] &&
	       record->regs[STALL_BPF_SP] && !stall_record_is_32bit(record);
}

// Entering by a system call saves its number in orig_ax and -ENOSYS in ax; faults and interrupts
// save -1 (arch/x86/entry/entry_64.S; with FRED fred_syscall and fred_intx, arch/x86/entry/
// entry_fred.c). On its way out ax holds the result while orig_ax still holds the number: such a
// thread, preempted there, waits for nothing. The saved words are those of the last entry, so they
// mean nothing for a thread that is on a CPU.
static bool is_in_syscall(const struct stall_bpf_thread *record)
{
	return !record->on_cpu && !(record->flags & STALL_BPF_COMPAT) &&
	       (int64_t)record->regs[STALL_BPF_ORIG_AX] >= 0 &&
	       (int64_t)record->regs[STALL_BPF_AX] == -ENOSYS;
}

static void fill_syscall(const struct stall_bpf_thread *record, struct stall_thread *ret)
{
	static const uint8_t order[6] = {STALL_BPF_DI,	STALL_BPF_SI, STALL_BPF_DX,
					 STALL_BPF_R10, STALL_BPF_R8, STALL_BPF_R9};

	ret->in_syscall = true;
	ret->syscall = (int64_t)record->regs[STALL_BPF_ORIG_AX];
	for (unsigned int i = 0; i < 6; i++)
		ret->args[i] = record->regs[order[i]];
}

void stall_record_fill(const struct stall_bpf_thread *record, const uint64_t *frames,
		       struct stall_thread *ret)
{
	ret->tid = record->tid;
	ret->ns_tid = record->ns_tid;
	memcpy(ret->comm, record->comm, sizeof(ret->comm) - 1);
	ret->state = stall_record_state(record);
	ret->on_cpu = record->on_cpu;
	ret->switches = record->switches_after;
	ret->fs_base = record->fs_base;
	ret->regs = (struct stall_regs){};
	ret->in_syscall = false;
	ret->is_32bit = stall_record_is_32bit(record) || (record->flags & STALL_BPF_COMPAT);
	ret->kernel_frame_count = record->kernel_frame_count;
	memcpy(ret->kernel_frames, frames, record->kernel_frame_count * sizeof(*frames));
	if (!has_user_regs(record))
		return;
	fill_regs(record, &ret->regs);
	if (is_in_syscall(record))
		fill_syscall(record, ret);
}
