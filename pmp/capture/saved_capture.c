// SPDX-License-Identifier: Apache-2.0
#include "capture/saved_capture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/host.h"
#include "capture/finish.h"
#include "unwind/sandbox.h"

#define ARENA_SIZE (UINT64_C(16) << 30)
// The child's result comes on a pipe of its own, after the pipe of records.
#define MAX_MESSAGE 1024

struct verdict {
	bool failed, partial;
	enum stall_error_code code;
	char message[MAX_MESSAGE];
};

struct stall_error *stall_saved_open(const char *path, int flags, int *ret)
{
	if (!path)
		return NULL;
	// O_NONBLOCK: a FIFO must not block us.
	*ret = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
	return *ret < 0 ? stall_error_os(errno, "%s", path) : NULL;
}

static void worker_destroyp(struct stall_worker **worker)
{
	stall_worker_destroy(*worker);
}

static void snapshot_destroyp(struct stall_snapshot **snapshot)
{
	stall_snapshot_destroy(*snapshot);
}

static struct stall_error *capture(const struct stall_saved_capture *saved, int records,
				   bool *ret_partial)
{
	const struct stall_sandbox_options sandbox = {.keep_uid = true};
	_cleanup_(worker_destroyp) struct stall_worker *worker = NULL;
	_cleanup_(snapshot_destroyp) struct stall_snapshot *snapshot = NULL;
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_arena arena;
	struct stall_host host;
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	stall_host_init(&host);
	struct stall_error *err = stall_output_create_fd(records, &output);
	if (!err)
		err = stall_arena_init(&arena, ARENA_SIZE);
	if (!err)
		err = stall_worker_create(&arena, &saved->worker, &worker);
	if (!err)
		err = stall_sandbox_enter(&sandbox);
	if (!err)
		err = saved->create(saved->arg, &arena, &snapshot);
	if (err)
		return err;
	const struct stall_finish finish = {
		.snapshot = snapshot,
		.worker = worker,
		.strings = saved->strings,
		.string_count = saved->string_count,
		.host = &host,
		.started_ns = started_ns,
		.attach_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns,
	};
	return stall_finish(&finish, output, ret_partial);
}

static void child(const struct stall_saved_capture *saved, int records, int verdicts, pid_t parent)
{
	struct verdict verdict = {};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	// It may have been killed before that.
	if (getppid() != parent)
		_exit(1);
	struct stall_error *err = capture(saved, records, &verdict.partial);
	if (err) {
		verdict.failed = true;
		verdict.code = err->code;
		strncpy(verdict.message, err->message, sizeof(verdict.message) - 1);
	}
	ssize_t written = write(verdicts, &verdict, sizeof(verdict));
	_exit(written == sizeof(verdict) ? 0 : 1);
}

// Passes the child's records on until it has closed its end.
static struct stall_error *relay(int records, struct stall_output *output)
{
	char bytes[65536];

	for (;;) {
		ssize_t got = read(records, bytes, sizeof(bytes));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return stall_error_os(errno,
					      "cannot read from the child that reads the file");
		if (got == 0)
			return NULL;
		struct stall_error *err = stall_output_write(output, bytes, got);
		if (err)
			return err;
	}
}

static struct stall_error *read_verdict(int verdicts, const struct stall_saved_capture *saved,
					bool *ret_partial)
{
	struct verdict verdict;

	if (read(verdicts, &verdict, sizeof(verdict)) != sizeof(verdict))
		return stall_error_create(
			STALL_ERROR_OTHER,
			"%s: the child that read the %s died; the file may be hostile", saved->path,
			saved->what);
	verdict.message[sizeof(verdict.message) - 1] = '\0';
	if (verdict.failed)
		return stall_error_create(verdict.code, "%s", verdict.message);
	*ret_partial = verdict.partial;
	return NULL;
}

static struct stall_error *make_pipe(int *ret_read, int *ret_write)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return stall_error_os(errno, "pipe");
	*ret_read = fds[0];
	*ret_write = fds[1];
	return NULL;
}

struct stall_error *stall_saved_capture(const struct stall_saved_capture *saved,
					struct stall_output *output, bool *ret_partial)
{
	_cleanup_close_ int records_out = -1, records_in = -1, verdict_out = -1, verdict_in = -1;

	struct stall_error *err = make_pipe(&records_in, &records_out);
	if (!err)
		err = make_pipe(&verdict_in, &verdict_out);
	if (err)
		return err;
	pid_t parent = getpid(), pid = fork();
	if (pid < 0)
		return stall_error_os(errno, "fork");
	if (pid == 0)
		child(saved, records_out, verdict_out, parent);
	close(records_out);
	close(verdict_out);
	records_out = verdict_out = -1;
	err = relay(records_in, output);
	if (err)
		kill(pid, SIGKILL);
	else
		err = read_verdict(verdict_in, saved, ret_partial);
	waitpid(pid, NULL, 0);
	return err;
}
