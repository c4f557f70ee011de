// SPDX-License-Identifier: Apache-2.0
// Stops one thread at a time, copies its registers and stack, releases it. Threads that may not or
// cannot be stopped are copied like in the backend proc.
#include "snapshot/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/priority.h"
#include "base/privileges.h"
#include "snapshot/proc_copy.h"
#include "snapshot/proc_thread.h"
#include "snapshot/tracer.h"

// A tracer without progress for this long is killed, which releases its thread of the target.
#define STUCK_MS 500

static struct stall_error *refused(int errnum)
{
	return stall_error_os(
		errnum, "ptrace is refused here; give CAP_SYS_PTRACE, set "
			"kernel.yama.ptrace_scope below 3, allow ptrace in the seccomp filter");
}

// Tries ptrace on a child of ours.
static struct stall_error *ptrace_check(const struct stall_snapshot_options *options)
{
	int errnum = 0;

	(void)options;
	if (stall_has_rights_of_file())
		return stall_error_create(
			STALL_ERROR_PERMISSION,
			"a probe that has its rights from its file (capabilities) "
			"stops no thread of another process: do this as root");
	pid_t child = stall_idle_child_create();
	if (child < 0)
		return stall_error_os(errno, "fork");
	if (ptrace(PTRACE_SEIZE, child, 0, 0) < 0)
		errnum = errno;
	stall_idle_child_destroy(child);
	return errnum ? refused(errnum) : NULL;
}

static struct stall_error *ptrace_open(const struct stall_snapshot_options *options, void **ret)
{
	(void)options;
	*ret = NULL;
	return NULL;
}

static void ptrace_close(void *state)
{
	(void)state;
}

struct capture {
	struct stall_snapshot *snapshot;
	const struct stall_snapshot_options *options;
	struct stall_trace *trace;
	size_t trace_size;
	uint64_t deadline_ns;
};

static void capture_deinit(struct capture *capture)
{
	if (capture->trace)
		munmap(capture->trace, capture->trace_size);
}

static struct stall_error *map_trace(struct capture *capture)
{
	size_t count = capture->snapshot->thread_count;

	capture->trace_size = sizeof(*capture->trace) + count * sizeof(capture->trace->slots[0]);
	void *memory = mmap(NULL, capture->trace_size, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return stall_error_os(errno, "mmap of %zu bytes", capture->trace_size);
	capture->trace = memory;
	capture->trace->count = count;
	return NULL;
}

static void run_tracer(const struct capture *capture, pid_t parent)
{
	// The target must not stay stopped because the parent is killed.
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	stall_child_close_output();
	// Nor because the tracer waits for a CPU.
	stall_raise_priority();
	if (getppid() == parent)
		stall_tracer_run(capture->snapshot, capture->options, capture->trace);
	_exit(0);
}

// Returns when the tracer has ended: by itself, or killed because it was stuck or out of time.
static void supervise(const struct capture *capture, pid_t pid, int ended)
{
	struct pollfd pollfd = {.fd = ended, .events = POLLIN};
	uint64_t now_ns;

	while ((now_ns = stall_clock_ns(CLOCK_MONOTONIC)) < capture->deadline_ns) {
		uint64_t left_ms = (capture->deadline_ns - now_ns) / 1000000 + 1;
		size_t before = capture->trace->next;
		int ready = poll(&pollfd, 1, left_ms < STUCK_MS ? (int)left_ms : STUCK_MS);
		if (ready > 0 || (ready == 0 && before == capture->trace->next))
			break;
	}
	stall_child_end(pid);
}

// Lets one tracer work until it is done or gives up on a thread.
static struct stall_error *trace_some(struct capture *capture)
{
	struct stall_trace *trace = capture->trace;
	struct stall_arena *arena = capture->snapshot->arena;
	pid_t parent = getpid();
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return stall_error_os(errno, "pipe");
	_cleanup_close_ int ended = fds[0];
	stall_arena_inherit(arena, true);
	pid_t pid = fork();
	if (pid == 0)
		run_tracer(capture, parent);
	int errnum = errno;
	stall_arena_inherit(arena, false);
	close(fds[1]);
	if (pid < 0)
		return stall_error_os(errnum, "fork");
	size_t before = trace->next;
	supervise(capture, pid, ended);
	if (arena->used < trace->arena_used)
		arena->used = trace->arena_used;
	if (arena->high < arena->used)
		arena->high = arena->used;
	// It gave up on the last thread, or it was killed at the next, which is not tried again.
	size_t at = trace->next;
	bool gave_up = at > before && trace->slots[at - 1].outcome == STALL_TRACE_LATE;
	if (at < trace->count && !gave_up) {
		if (trace->slots[at].outcome == STALL_TRACE_PENDING)
			trace->slots[at].outcome = STALL_TRACE_LATE;
		trace->next = at + 1;
	}
	return NULL;
}

static struct stall_error *trace_all(struct capture *capture)
{
	struct stall_error *err = map_trace(capture);

	// A thread is not stopped for a stack that cannot be read.
	for (size_t i = 0; !err && i < capture->trace->count; i++)
		if (stall_snapshot_is_late(capture->snapshot,
					   capture->snapshot->threads[i].process))
			capture->trace->slots[i].outcome = STALL_TRACE_LEFT;
	while (!err && capture->trace->next < capture->trace->count &&
	       stall_clock_ns(CLOCK_MONOTONIC) < capture->deadline_ns)
		err = trace_some(capture);
	return err;
}

struct tally {
	size_t refused, late, pending;
	int errnum; // of the first that was refused
};

// Takes the tracer's results over; *threads lists the other threads.
static size_t take_over(struct capture *capture, bool *gone, size_t *threads, struct tally *tally)
{
	size_t count = 0;

	for (size_t i = 0; i < capture->trace->count; i++) {
		const struct stall_trace_slot *slot = &capture->trace->slots[i];
		switch (slot->outcome) {
		case STALL_TRACE_TAKEN:
			capture->snapshot->threads[i] = slot->thread;
			continue;
		case STALL_TRACE_GONE:
			gone[i] = true;
			continue;
		case STALL_TRACE_LEFT:
			break;
		case STALL_TRACE_REFUSED:
			if (!tally->refused++)
				tally->errnum = slot->errnum;
			break;
		case STALL_TRACE_LATE:
			tally->late++;
			break;
		case STALL_TRACE_PENDING:
			tally->pending++;
			break;
		}
		threads[count++] = i;
	}
	return count;
}

static struct stall_error *note(const struct capture *capture, const struct tally *tally)
{
	struct stall_snapshot *snapshot = capture->snapshot;
	struct stall_error *err = NULL;

	if (tally->refused)
		err = stall_snapshot_note(
			snapshot, "ptrace-refused",
			"%zu threads could not be stopped (%s) and were read from /proc",
			tally->refused, strerror(tally->errnum));
	if (!err && tally->late)
		err = stall_snapshot_note(
			snapshot, "thread-unresponsive",
			"%zu threads did not stop in time and were read from /proc", tally->late);
	if (!err && tally->pending)
		err = stall_snapshot_note(
			snapshot, "deadline",
			"the deadline of %u ms was over before %zu threads were stopped; "
			"they were read from /proc",
			capture->options->deadline_ms, tally->pending);
	return err;
}

// Threads that were not stopped. Lock words are read before and after.
static struct stall_error *copy_rest(struct capture *capture)
{
	struct stall_snapshot *snapshot = capture->snapshot;
	size_t count = snapshot->thread_count;
	struct stall_proc_left left;
	_cleanup_free_ size_t *threads = calloc(count + 1, sizeof(*threads));
	_cleanup_free_ bool *gone = calloc(count + 1, sizeof(*gone));
	_cleanup_free_ bool *rest_gone = calloc(count + 1, sizeof(*rest_gone));
	struct tally tally = {};

	if (!threads || !gone || !rest_gone)
		return &stall_enomem;
	size_t rest = take_over(capture, gone, threads, &tally);
	struct stall_error *err = stall_snapshot_read_futexes(snapshot);
	// The threads that are left when the time for stopping is over get the same time again.
	if (!err)
		err = stall_proc_copy(snapshot, threads, rest, capture->options,
				      stall_clock_ns(CLOCK_MONOTONIC), rest_gone, &left);
	if (err)
		return err;
	for (size_t i = 0; i < rest; i++)
		gone[threads[i]] = rest_gone[i];
	stall_proc_drop_gone(snapshot, gone);
	err = stall_snapshot_read_futexes(snapshot);
	left.full += capture->trace->full;
	if (!err)
		err = note(capture, &tally);
	return err ? err : stall_proc_note(snapshot, capture->options, &left);
}

static struct stall_error *ptrace_capture(void *state, struct stall_snapshot *snapshot,
					  const struct stall_snapshot_options *options)
{
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	_cleanup_(capture_deinit) struct capture capture = {
		.snapshot = snapshot,
		.options = options,
		.deadline_ns = started_ns + options->deadline_ms * UINT64_C(1000000),
	};

	(void)state;
	struct stall_error *err = stall_proc_list_threads(snapshot, options);
	if (!err)
		err = trace_all(&capture);
	if (!err)
		err = copy_rest(&capture);
	snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	for (size_t i = 0; !err && i < snapshot->process_count; i++)
		err = stall_process_check(&snapshot->processes[i]);
	return err;
}

// A thread that was stopped and released has run. The others were read from /proc.
static struct stall_error *ptrace_find_runs(void *state, const struct stall_snapshot *snapshot,
					    const uint32_t *threads, size_t count, bool *ret)
{
	struct stall_error *err = stall_proc_find_runs(snapshot, threads, count, ret);

	(void)state;
	for (size_t i = 0; i < count; i++)
		ret[i] |= snapshot->threads[threads[i]].stopped_ns > 0;
	return err;
}

const struct stall_backend stall_backend_ptrace = {
	.name = "ptrace",
	.feature = "ptrace",
	.stops_threads = true,
	.check = ptrace_check,
	.open = ptrace_open,
	.capture = ptrace_capture,
	.find_runs = ptrace_find_runs,
	.close = ptrace_close,
};
