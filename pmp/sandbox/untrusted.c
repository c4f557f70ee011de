// SPDX-License-Identifier: Apache-2.0
#include "sandbox/untrusted.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/path_broker.h"
#include "proc/read_child.h"
#include "proc/stuck_child.h"
#include "sandbox/sandbox.h"

#define MS UINT64_C(1000000)
#define VERDICT_MS 1000 // from the end of the output to it
#define STUCK_MS 5000

// Plain numbers: a bool of another process could be neither true nor false.
struct verdict {
	uint32_t failed, code, missing;
	char message[1024];
	uint8_t answer[STALL_UNTRUSTED_ANSWER];
};

// Ends of the child: its output and its verdict come by pipes, files by a socket.
struct ends {
	int output, verdict, files;
};

static void ends_deinit(struct ends *ends)
{
	stall_closep(&ends->output);
	stall_closep(&ends->verdict);
	stall_closep(&ends->files);
	*ends = (struct ends){-1, -1, -1};
}

static struct stall_error *make_ends(struct ends *parent, struct ends *child)
{
	int output[2], verdict[2], files[2];

	if (pipe2(output, O_CLOEXEC) < 0)
		return stall_error_os(errno, "pipe");
	parent->output = output[0];
	child->output = output[1];
	if (pipe2(verdict, O_CLOEXEC) < 0)
		return stall_error_os(errno, "pipe");
	parent->verdict = verdict[0];
	child->verdict = verdict[1];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, files) < 0)
		return stall_error_os(errno, "socketpair");
	parent->files = files[0];
	child->files = files[1];
	return NULL;
}

/* The child. */

static struct stall_error *work_in_sandbox(const struct stall_untrusted *work,
					   const struct ends *ends, pid_t parent,
					   struct verdict *verdict)
{
	const struct stall_sandbox_options options = {
		.parent = parent,
		.memory_limit = work->memory_limit,
		.cpu_seconds = work->cpu_seconds,
	};
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_error *err = stall_output_create_fd(ends->output, &output);

	if (!err && work->prepare)
		err = work->prepare(work->arg);
	if (!err)
		err = stall_sandbox_enter(&options, &verdict->missing);
	if (err)
		return err;
	stall_path_ask(ends->files);
	return work->run(work->arg, output, verdict->answer);
}

static _Noreturn void child(const struct stall_untrusted *work, const struct ends *ends,
			    pid_t parent)
{
	static struct verdict verdict;

	stall_child_close_output();
	stall_read_child_disown();
	struct stall_error *err = work_in_sandbox(work, ends, parent, &verdict);

	if (err) {
		verdict.failed = 1;
		verdict.code = err->code;
		strncpy(verdict.message, err->message, sizeof(verdict.message) - 1);
	}
	// Longer than what a pipe takes at once, and it has room: the parent reads.
	for (size_t done = 0; done < sizeof(verdict);) {
		ssize_t n = write(ends->verdict, (char *)&verdict + done, sizeof(verdict) - done);

		if (n < 0 && errno != EINTR)
			_exit(1);
		done += n > 0 ? (size_t)n : 0;
	}
	_exit(0);
}

/* The parent. */

static struct stall_error *late_error(const struct stall_untrusted *work)
{
	return stall_error_create(STALL_ERROR_LATE,
				  "%s: the %s is not read within %" PRIu64
				  " ms; it may be hostile, or its disk is slow: give more "
				  "time with --deadline",
				  work->path, work->what, work->deadline_ms);
}

static struct stall_error *stuck_error(const struct stall_untrusted *work)
{
	return stall_error_create(STALL_ERROR_LATE,
				  "%s: the %s is not read: its disk, or that of a file that it "
				  "needs, does not answer",
				  work->path, work->what);
}

static struct stall_error *pass_on(const struct stall_untrusted *work, int from,
				   struct stall_output *output, uint64_t *total, bool *ret_end)
{
	char bytes[65536];
	ssize_t got = read(from, bytes, sizeof(bytes));

	*ret_end = got == 0;
	if (got < 0 && errno == EINTR)
		return NULL;
	if (got < 0)
		return stall_error_os(errno, "cannot read from the child that reads the %s",
				      work->what);
	*total += (uint64_t)got;
	if (*total > work->max_bytes)
		return stall_error_create(STALL_ERROR_LIMIT,
					  "%s: more than %" PRIu64 " bytes were made of it",
					  work->path, work->max_bytes);
	return stall_output_write(output, bytes, (size_t)got);
}

// Not where there is some, or its end.
static bool may_wait_for_input(const struct stall_untrusted *work)
{
	struct pollfd polled = {.fd = STDIN_FILENO, .events = POLLIN};

	return work->reads_input && poll(&polled, 1, 0) == 0;
}

// Until the child has closed its output.
static struct stall_error *serve(const struct stall_untrusted *work, struct ends *ends, pid_t pid,
				 struct stall_output *output, uint64_t until_ns)
{
	struct stall_stuck stuck = {};
	struct stall_error *err = NULL;
	uint64_t total = 0;
	bool ended = false;

	while (!err && !ended) {
		struct pollfd polled[] = {{.fd = ends->output, .events = POLLIN},
					  {.fd = ends->files, .events = POLLIN}};
		uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

		if (until_ns && now_ns >= until_ns)
			return late_error(work);
		uint64_t left_ms = until_ns ? (until_ns - now_ns) / MS + 1 : STALL_STUCK_LOOK_MS;
		int ready =
			poll(polled, 2,
			     (int)(left_ms < STALL_STUCK_LOOK_MS ? left_ms : STALL_STUCK_LOOK_MS));
		if (ready == 0 && !may_wait_for_input(work) &&
		    stall_child_is_stuck(pid, &stuck, STUCK_MS))
			return stuck_error(work);
		if (ready == 0 || (ready < 0 && errno == EINTR))
			continue;
		if (ready < 0)
			return stall_error_os(errno, "poll");
		if (polled[1].revents && !stall_path_answer(ends->files)) {
			close(ends->files);
			ends->files = -1;
		}
		if (polled[0].revents)
			err = pass_on(work, ends->output, output, &total, &ended);
	}
	return err;
}

// The child closes its output only when it ends: the verdict is in the pipe then, or comes at once.
static struct stall_error *read_verdict(const struct stall_untrusted *work, int from,
					struct verdict *ret)
{
	struct pollfd polled = {.fd = from, .events = POLLIN};
	size_t done = 0;

	while (done < sizeof(*ret)) {
		int ready = poll(&polled, 1, VERDICT_MS);
		ssize_t n = ready > 0 ? read(from, (char *)ret + done, sizeof(*ret) - done) : 0;

		if ((ready < 0 || n < 0) && errno == EINTR)
			continue;
		if (ready <= 0 || n <= 0)
			return stall_error_create(
				STALL_ERROR_OTHER,
				"%s: the child that read the %s died; the file may be hostile, or "
				"memory is missing",
				work->path, work->what);
		done += (size_t)n;
	}
	ret->message[sizeof(ret->message) - 1] = '\0';
	if (ret->failed)
		return stall_error_create(ret->code < STALL_ERROR_CODES ? ret->code
									: STALL_ERROR_OTHER,
					  "%s", ret->message);
	return NULL;
}

struct stall_error *stall_untrusted_run(const struct stall_untrusted *work,
					struct stall_output *output, void *ret_answer,
					unsigned int *ret_missing)
{
	_cleanup_(ends_deinit) struct ends ends = {-1, -1, -1}, others = {-1, -1, -1};
	struct verdict verdict;
	uint64_t until_ns =
		work->deadline_ms ? stall_clock_ns(CLOCK_MONOTONIC) + work->deadline_ms * MS : 0;

	struct stall_error *err = make_ends(&ends, &others);
	if (err)
		return err;
	pid_t parent = getpid(), pid = fork();
	if (pid < 0)
		return stall_error_os(errno, "fork");
	if (pid == 0) {
		ends_deinit(&ends);
		child(work, &others, parent);
	}
	ends_deinit(&others);
	err = serve(work, &ends, pid, output, until_ns);
	if (!err)
		err = read_verdict(work, ends.verdict, &verdict);
	stall_child_end(pid);
	if (err)
		return err;
	if (work->answer_size)
		memcpy(ret_answer, verdict.answer, work->answer_size);
	*ret_missing = verdict.missing & ((1U << STALL_SANDBOX_LAYERS) - 1);
	return NULL;
}
