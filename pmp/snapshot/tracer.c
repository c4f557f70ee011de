// SPDX-License-Identifier: Apache-2.0
#include "snapshot/tracer.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "snapshot/call_mode.h"
#include "snapshot/proc_thread.h"
#include "snapshot/stack_copy.h"

// A sleeping thread stops within 0.1 ms; on a machine without an idle CPU it waits for its turn.
#define STOP_TIMEOUT_NS UINT64_C(100000000)

// The kernel's rax of a system call that was interrupted and restarts by itself
// (include/linux/errno.h); never seen by programs.
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

// man 7 signal, "Interruption of system calls and library functions by stop signals"; the socket
// calls only with SO_RCVTIMEO or SO_SNDTIMEO, which cannot be seen from outside, and read(2) and
// write(2) of a socket like them. The io_ calls were tried on Linux 6.18.
static const int spared[] = {
	SYS_read,	    SYS_readv,	    SYS_recvfrom, SYS_recvmsg,	  SYS_recvmmsg,
	SYS_accept,	    SYS_accept4,    SYS_connect,  SYS_write,	  SYS_writev,
	SYS_sendto,	    SYS_sendmsg,    SYS_sendmmsg, SYS_epoll_wait, SYS_epoll_pwait,
	SYS_semop,	    SYS_semtimedop, SYS_msgrcv,	  SYS_msgsnd,	  SYS_rt_sigtimedwait,
	SYS_io_getevents,
#ifdef SYS_epoll_pwait2
	SYS_epoll_pwait2,
#endif
#ifdef SYS_io_pgetevents
	SYS_io_pgetevents,
#endif
#ifdef SYS_io_uring_enter
	SYS_io_uring_enter,
#endif
};

static bool is_spared(int64_t syscall)
{
	for (size_t i = 0; i < sizeof(spared) / sizeof(spared[0]); i++)
		if (spared[i] == syscall)
			return true;
	return false;
}

static enum stall_trace_outcome outcome_of_errno(int errnum, int *ret_errnum)
{
	if (errnum == ESRCH)
		return STALL_TRACE_GONE;
	*ret_errnum = errnum;
	return STALL_TRACE_REFUSED;
}

static enum stall_trace_outcome outcome_of_error(struct stall_error *err, int *ret_errnum)
{
	enum stall_trace_outcome outcome = STALL_TRACE_GONE;

	if (err->code != STALL_ERROR_NO_PROCESS)
		outcome = outcome_of_errno(err->errnum, ret_errnum);
	stall_error_destroy(err);
	return outcome;
}

// Checks before any stop. PENDING: the thread can be stopped.
static enum stall_trace_outcome check(const struct stall_target *target,
				      const struct stall_snapshot_options *options,
				      struct stall_thread *thread, int *ret_errnum)
{
	struct stall_proc_syscall call;
	struct stall_error *err = stall_proc_status_read(target, thread->tid, thread);

	if (err)
		return outcome_of_error(err, ret_errnum);
	// Uninterruptible: it would stop only when its wait is over. An ended thread cannot stop.
	if (strchr("DZX", thread->state))
		return STALL_TRACE_LEFT;
	if (options->stop_reads)
		return STALL_TRACE_PENDING;
	err = stall_proc_syscall_read(target, thread->tid, &call);
	if (err)
		return outcome_of_error(err, ret_errnum);
	return call.blocked && is_spared(call.number) ? STALL_TRACE_LEFT : STALL_TRACE_PENDING;
}

// Waits until the thread has stopped, has ended, or the time is over. PENDING: stopped.
static enum stall_trace_outcome wait_for_stop(pid_t tid, int *ret_status)
{
	uint64_t deadline_ns = stall_clock_ns(CLOCK_MONOTONIC) + STOP_TIMEOUT_NS;
	sigset_t child;

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	for (;;) {
		pid_t got = waitpid(tid, ret_status, __WALL | WNOHANG);
		if (got == tid)
			return WIFSTOPPED(*ret_status) ? STALL_TRACE_PENDING : STALL_TRACE_GONE;
		// ECHILD: another thread's execve gave it another TID.
		if (got < 0 && errno != EINTR)
			return STALL_TRACE_LATE;
		uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
		if (now_ns >= deadline_ns)
			return STALL_TRACE_LATE;
		struct timespec left = {
			.tv_sec = (time_t)((deadline_ns - now_ns) / 1000000000),
			.tv_nsec = (long)((deadline_ns - now_ns) % 1000000000),
		};
		sigtimedwait(&child, NULL, &left);
	}
}

static bool is_interrupted(long long result)
{
	return result == -EINTR || result == -ERESTARTSYS || result == -ERESTARTNOINTR ||
	       result == -ERESTARTNOHAND || result == -ERESTART_RESTARTBLOCK;
}

static void set_registers(struct stall_thread *thread, const struct user_regs_struct *regs)
{
	const uint64_t values[STALL_REGS] = {
		regs->rax, regs->rdx, regs->rcx, regs->rbx, regs->rsi, regs->rdi,
		regs->rbp, regs->rsp, regs->r8,	 regs->r9,  regs->r10, regs->r11,
		regs->r12, regs->r13, regs->r14, regs->r15, regs->rip,
	};
	const uint64_t args[6] = {regs->rdi, regs->rsi, regs->rdx, regs->r10, regs->r8, regs->r9};

	memcpy(thread->regs.value, values, sizeof(values));
	thread->regs.valid = (1u << STALL_REGS) - 1;
	thread->fs_base = regs->fs_base;
	thread->in_syscall = (int64_t)regs->orig_rax >= 0 && is_interrupted((int64_t)regs->rax);
	if (!thread->in_syscall)
		return;
	thread->syscall = (int64_t)regs->orig_rax;
	memcpy(thread->args, args, sizeof(args));
}

// Registers and stack of a stopped thread.
static enum stall_trace_outcome copy(const struct stall_snapshot *snapshot, size_t max_stack,
				     struct stall_thread *thread, size_t *ret_full, int *ret_errnum)
{
	struct user_regs_struct regs;
	struct iovec vector = {.iov_base = &regs, .iov_len = sizeof(regs)};
	struct stall_stack_copy copy = {.thread = thread};
	struct stall_stack_copy *const copies[] = {&copy};

	if (ptrace(PTRACE_GETREGSET, thread->tid, NT_PRSTATUS, &vector) < 0)
		return outcome_of_errno(errno, ret_errnum);
	// A 32-bit program has shorter ones.
	if (vector.iov_len != sizeof(regs))
		return outcome_of_errno(ENOTSUP, ret_errnum);
	set_registers(thread, &regs);
	struct stall_error *err = stall_stacks_copy(snapshot, copies, 1, max_stack, ret_full);
	if (err)
		return outcome_of_error(err, ret_errnum);
	thread->label = copy.truncated ? STALL_TRUNCATED : STALL_VERIFIED;
	thread->passes = 1;
	return STALL_TRACE_TAKEN;
}

// A signal that was about to be delivered when the thread stopped is delivered now. A thread of a
// process that is stopped as a whole stays stopped: the kernel ensures that.
static int signal_of_stop(int status)
{
	return status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
}

static enum stall_trace_outcome stop_and_copy(const struct stall_snapshot *snapshot,
					      size_t max_stack, struct stall_thread *thread,
					      size_t *ret_full, int *ret_errnum)
{
	int status;

	if (ptrace(PTRACE_SEIZE, thread->tid, 0, 0) < 0)
		return outcome_of_errno(errno, ret_errnum);
	uint64_t stopped_at = stall_clock_ns(CLOCK_MONOTONIC);
	if (ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0) < 0)
		return outcome_of_errno(errno, ret_errnum);
	enum stall_trace_outcome outcome = wait_for_stop(thread->tid, &status);
	if (outcome != STALL_TRACE_PENDING)
		return outcome;
	outcome = copy(snapshot, max_stack, thread, ret_full, ret_errnum);
	ptrace(PTRACE_DETACH, thread->tid, 0, signal_of_stop(status));
	thread->stopped_ns = stall_clock_ns(CLOCK_MONOTONIC) - stopped_at;
	return outcome;
}

static enum stall_trace_outcome take(const struct stall_snapshot *snapshot,
				     const struct stall_snapshot_options *options,
				     struct stall_trace *trace, struct stall_trace_slot *slot)
{
	struct stall_thread *thread = &slot->thread;
	size_t full = 0;

	enum stall_trace_outcome outcome =
		check(&snapshot->processes[thread->process].target, options, thread, &slot->errnum);
	if (outcome != STALL_TRACE_PENDING)
		return outcome;
	outcome = stop_and_copy(snapshot, options->max_stack, thread, &full, &slot->errnum);
	// Its code is 64-bit, by its registers.
	thread->is_32bit =
		outcome == STALL_TRACE_TAKEN && thread->in_syscall &&
		!stall_call_is_64bit(&trace->places, &snapshot->processes[thread->process].target,
				     thread->regs.value[STALL_REG_PC]);
	if (thread->is_32bit)
		thread->in_syscall = false;
	trace->full += full;
	trace->arena_used = snapshot->arena->used;
	return outcome;
}

void stall_tracer_run(const struct stall_snapshot *snapshot,
		      const struct stall_snapshot_options *options, struct stall_trace *trace)
{
	sigset_t child;

	// Kept pending for sigtimedwait.
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	while (trace->next < trace->count) {
		struct stall_trace_slot *slot = &trace->slots[trace->next];
		slot->thread = snapshot->threads[trace->next];
		enum stall_trace_outcome outcome = take(snapshot, options, trace, slot);
		slot->outcome = outcome;
		trace->next++;
		if (outcome == STALL_TRACE_LATE)
			return;
	}
}
