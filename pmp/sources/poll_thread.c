// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_thread.h"
#include "proc/read_child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

#define MAX_TEXT 512
#define MAX_TRIES 3
#define KEEP_FROM 2 // reads of the call: threads that always wait need theirs once
#define BELOW 512   // bytes of the stack

/* Files of /proc. */

bool stall_poll_parse_runs(const char *text, uint64_t *ret)
{
	return sscanf(text, "%*u %*u %" SCNu64, ret) == 1;
}

bool stall_poll_parse_transfers(const char *text, uint64_t *ret)
{
	const char *reads = strstr(text, "syscr: "), *writes = strstr(text, "syscw: ");

	if (!reads || !writes)
		return false;
	*ret = strtoull(reads + 7, NULL, 10) + strtoull(writes + 7, NULL, 10);
	return true;
}

int stall_poll_read_file(int task, pid_t tid, const char *name, int *kept, size_t *left, char *text,
			 size_t size)
{
	int fd = kept ? *kept : -1, errnum = 0;
	bool is_kept = fd >= 0;
	char path[48];
	ssize_t got;

	if (!is_kept) {
		snprintf(path, sizeof(path), "%d/%s", tid, name);
		fd = openat(task, path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return errno;
	}
	do
		got = pread(fd, text, size - 1, 0);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		errnum = errno;
	else
		text[got] = '\0';
	if (!is_kept && !errnum && left && *left) {
		*kept = fd;
		--*left;
	} else if (!is_kept) {
		close(fd);
	}
	return errnum;
}

// `keep`: not where the thread is only asked for (`thread` must not change).
static int read_runs(struct stall_poll_reader *reader, const struct stall_target *target, int task,
		     pid_t tid, int *kept, bool keep, uint64_t *ret)
{
	char text[MAX_TEXT];

	if (reader->by_status) {
		struct stall_thread thread = {};
		struct stall_error *err = stall_proc_status_read(target, tid, &thread);
		int errnum = err && err->code == STALL_ERROR_NO_PROCESS ? ESRCH : err ? EACCES : 0;
		stall_error_destroy(err);
		*ret = thread.switches;
		return errnum;
	}
	int errnum = stall_poll_read_file(task, tid, "schedstat", kept,
					  keep ? &reader->runs_left : NULL, text, sizeof(text));
	if (errnum)
		return errnum;
	return stall_poll_parse_runs(text, ret) ? 0 : EINVAL;
}

static int read_call(struct stall_poll_reader *reader, int task, pid_t tid, int *kept, bool keep,
		     struct stall_proc_syscall *ret)
{
	char text[MAX_TEXT];
	int errnum = stall_poll_read_file(task, tid, "syscall", kept,
					  keep ? &reader->calls_left : NULL, text, sizeof(text));

	if (errnum)
		return errnum;
	return stall_proc_syscall_parse(text, ret) ? 0 : EINVAL;
}

/* Waits. */

static bool is_futex_wait(uint64_t operation)
{
	switch ((int)operation & FUTEX_CMD_MASK) {
	case FUTEX_WAIT:
	case FUTEX_WAIT_BITSET:
	case FUTEX_LOCK_PI:
	case FUTEX_LOCK_PI2:
	case FUTEX_WAIT_REQUEUE_PI:
		return true;
	}
	return false;
}

bool stall_poll_is_wait(const struct stall_call *calls, const struct stall_proc_syscall *call,
			bool *ret_futex)
{
	*ret_futex = false;
	// 32-bit programs have other numbers.
	if (!call->blocked || call->number < 0 || call->number >= STALL_CALLS ||
	    !stall_code_is_64bit(call->pc, call->sp))
		return false;
	switch (calls[call->number].how) {
	case STALL_CALL_FUTEX:
		*ret_futex = true;
		return is_futex_wait(call->args[1]);
	case STALL_CALL_FUTEX_WAIT:
	case STALL_CALL_FUTEX_WAITV:
		*ret_futex = true;
		return true;
	case STALL_CALL_IGNORED:
	case STALL_CALL_FUTEX_WAKE:
	case STALL_CALL_FUTEX_REQUEUE:
	case STALL_CALL_RESTART: // known by the call that it continues
	case STALL_CALL_IO_SUBMIT:
	case STALL_CALL_IO_GETEVENTS:
		return false;
	}
	return true;
}

// A signal interrupted a wait with a timeout, and the kernel continues it under another number.
static void settle_restart(const struct stall_poll_thread *thread, struct stall_proc_syscall *call)
{
	const struct stall_proc_syscall *before = &thread->call;

	if (call->number == SYS_restart_syscall && thread->in_wait && call->sp == before->sp &&
	    call->pc == before->pc && !memcmp(call->args, before->args, sizeof(call->args)))
		call->number = before->number;
}

static uint64_t hash_below(const struct stall_target *target, uint64_t sp)
{
	uint64_t words[BELOW / sizeof(uint64_t)], hash = UINT64_C(0xcbf29ce484222325);
	size_t got =
		sp > BELOW ? stall_read_child_range(target, sp - BELOW, words, sizeof(words)) : 0;

	for (size_t i = 0; i < got / sizeof(words[0]); i++)
		hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15) + (hash >> 29);
	return hash;
}

// A thread that waits for a disk may run several times before its call returns. The return shows in
// its count of reads and writes, where the call is one. Other calls only leave a trace on the
// stack: the next functions that are called overwrite the memory below its pointer.
static struct stall_poll_mark make_mark(const struct stall_poll_reader *reader,
					const struct stall_target *target, int task, pid_t tid,
					const struct stall_proc_syscall *call)
{
	uint8_t how = reader->calls[call->number].how;
	bool is_transfer = how >= STALL_CALL_TRANSFER && how <= STALL_CALL_VECTOR_AT;
	struct stall_poll_mark mark = {};
	char text[MAX_TEXT];

	mark.has_transfers =
		!stall_poll_read_file(task, tid, "io", NULL, NULL, text, sizeof(text)) &&
		stall_poll_parse_transfers(text, &mark.transfers);
	// Reading memory waits for threads that change the target's mappings: only where necessary.
	if (!is_transfer || !mark.has_transfers)
		mark.below = hash_below(target, call->sp);
	return mark;
}

static bool is_same_mark(const struct stall_poll_mark *a, const struct stall_poll_mark *b)
{
	return a->has_transfers == b->has_transfers && a->transfers == b->transfers &&
	       a->below == b->below;
}

/* Polls. */

// What was read of a thread in one pass.
struct reading {
	uint64_t runs;
	bool settled; // it slept from before `call` was read until `runs` was
	struct stall_proc_syscall call;
	bool is_wait, is_futex;
	struct stall_poll_mark mark;
};

// With the same count of runs before and after, the thread slept all the time in between. (The
// kernel counts when it gives the thread a CPU, and shows the call only of a blocked thread.)
static int read_closely(struct stall_poll_reader *reader, const struct stall_target *target,
			int task, const struct stall_poll_thread *thread, int *runs_fd,
			int *call_fd, bool keep, struct reading *reading)
{
	for (int tries = 0; tries < MAX_TRIES; tries++) {
		uint64_t runs = 0;
		int errnum = read_call(reader, task, thread->tid, call_fd,
				       keep && thread->call_reads >= KEEP_FROM, &reading->call);

		if (errnum || !reading->call.blocked)
			return errnum;
		settle_restart(thread, &reading->call);
		reading->is_wait =
			stall_poll_is_wait(reader->calls, &reading->call, &reading->is_futex) &&
			stall_call_is_64bit(&reader->places, target, reading->call.pc);
		if (reading->is_wait && !reading->is_futex)
			reading->mark =
				make_mark(reader, target, task, thread->tid, &reading->call);
		errnum = read_runs(reader, target, task, thread->tid, runs_fd, keep, &runs);
		if (errnum)
			return errnum;
		reading->settled = runs == reading->runs;
		reading->runs = runs;
		if (reading->settled)
			return 0;
	}
	return 0;
}

// A thread never runs during a futex wait. In a wait for a file it may.
static bool goes_on(const struct stall_poll_reader *reader, const struct stall_target *target,
		    int task, const struct stall_poll_thread *thread, const struct reading *reading)
{
	if (!thread->in_wait || thread->is_futex)
		return false;
	if (reading->settled)
		return stall_proc_syscall_is_same(&reading->call, &thread->call) &&
		       is_same_mark(&reading->mark, &thread->mark);
	if (reading->call.blocked && !stall_proc_syscall_is_same(&reading->call, &thread->call))
		return false;
	const struct stall_poll_mark now =
		make_mark(reader, target, task, thread->tid, &thread->call);
	return is_same_mark(&now, &thread->mark);
}

static enum stall_poll_result failed(int errnum)
{
	return errnum == ENOENT || errnum == ESRCH ? STALL_POLL_GONE : STALL_POLL_REFUSED;
}

enum stall_poll_result stall_poll_thread_read(struct stall_poll_reader *reader,
					      const struct stall_target *target, int task,
					      struct stall_poll_thread *thread)
{
	struct reading reading = {};

	if (thread->ignored)
		return STALL_POLL_GONE;
	int errnum =
		read_runs(reader, target, task, thread->tid, &thread->runs_fd, true, &reading.runs);

	if (!errnum && thread->asleep && reading.runs == thread->runs)
		return STALL_POLL_SAME;
	thread->call_reads++;
	if (!errnum)
		errnum = read_closely(reader, target, task, thread, &thread->runs_fd,
				      &thread->call_fd, true, &reading);
	thread->asleep = !errnum && reading.settled;
	if (errnum) {
		thread->in_wait = false;
		return failed(errnum);
	}
	bool same = goes_on(reader, target, task, thread, &reading);
	if (!reading.settled) {
		thread->in_wait = same;
		return same ? STALL_POLL_SAME : STALL_POLL_RUNS;
	}
	thread->runs = reading.runs;
	if (same)
		return STALL_POLL_SAME;
	thread->call = reading.call;
	thread->mark = reading.mark;
	thread->in_wait = reading.is_wait;
	thread->is_futex = reading.is_futex;
	return STALL_POLL_OTHER;
}

bool stall_poll_thread_is_same(struct stall_poll_reader *reader, const struct stall_target *target,
			       int task, const struct stall_poll_thread *thread)
{
	int runs_fd = thread->runs_fd, call_fd = thread->call_fd;
	struct reading reading = {};

	if (!thread->in_wait ||
	    read_runs(reader, target, task, thread->tid, &runs_fd, false, &reading.runs))
		return false;
	if (thread->asleep && reading.runs == thread->runs)
		return true;
	return !thread->is_futex &&
	       !read_closely(reader, target, task, thread, &runs_fd, &call_fd, false, &reading) &&
	       goes_on(reader, target, task, thread, &reading);
}

struct stall_poll_thread *stall_poll_thread_create(pid_t tid)
{
	struct stall_poll_thread *thread = calloc(1, sizeof(*thread));

	if (!thread)
		return NULL;
	thread->tid = tid;
	thread->runs_fd = thread->call_fd = -1;
	thread->slot = STALL_POLL_NO_SLOT;
	return thread;
}

void stall_poll_thread_destroy(struct stall_poll_reader *reader, struct stall_poll_thread *thread)
{
	if (!thread)
		return;
	if (thread->runs_fd >= 0) {
		close(thread->runs_fd);
		reader->runs_left++;
	}
	if (thread->call_fd >= 0) {
		close(thread->call_fd);
		reader->calls_left++;
	}
	free(thread);
}
