// SPDX-License-Identifier: Apache-2.0
#include "capture/saved_capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/host.h"
#include "capture/finish.h"
#include "proc/path_open.h"
#include "sandbox/untrusted.h"

#define ARENA_SIZE (UINT64_C(16) << 30)
#define MEMORY_LIMIT ((size_t)8 << 30) // without the arena
#define MAX_CPU_SECONDS 600
#define MAX_OUTPUT (UINT64_C(8) << 30)

struct stall_error *stall_saved_open(const char *path, unsigned int how, int *ret)
{
	const struct stall_path named = {.folder = AT_FDCWD, .name = path};

	return path ? stall_path_open(&named, how, ret, NULL) : NULL;
}

static void worker_destroyp(struct stall_worker **worker)
{
	stall_worker_destroy(*worker);
}

static void snapshot_destroyp(struct stall_snapshot **snapshot)
{
	stall_snapshot_destroy(*snapshot);
}

struct work {
	const struct stall_saved_capture *saved;
	struct stall_arena arena;
	struct stall_worker *worker;
	struct stall_host host;
	uint64_t started_ns;
};

// The worker is forked while that is permitted.
static struct stall_error *prepare(void *arg)
{
	struct work *work = arg;

	work->started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	stall_host_init(&work->host);
	struct stall_error *err = work->saved->open(work->saved->arg);
	if (!err)
		err = stall_arena_init(&work->arena, ARENA_SIZE);
	return err ? err : stall_worker_create(&work->arena, &work->saved->worker, &work->worker);
}

static struct stall_error *capture(void *arg, struct stall_output *output, void *ret_answer)
{
	struct work *work = arg;
	const struct stall_saved_capture *saved = work->saved;
	_cleanup_(worker_destroyp) struct stall_worker *worker = work->worker;
	_cleanup_(snapshot_destroyp) struct stall_snapshot *snapshot = NULL;
	bool partial = false;
	struct stall_error *err = saved->create(saved->arg, &work->arena, &snapshot);

	if (err)
		return err;
	const struct stall_finish finish = {
		.snapshot = snapshot,
		.worker = worker,
		.strings = saved->strings,
		.string_count = saved->string_count,
		.host = &work->host,
		.started_ns = work->started_ns,
		.attach_ns = stall_clock_ns(CLOCK_MONOTONIC) - work->started_ns,
	};
	err = stall_finish(&finish, output, &partial);
	*(uint8_t *)ret_answer = partial;
	return err;
}

struct stall_error *stall_saved_capture(const struct stall_saved_capture *saved,
					struct stall_output *output, bool *ret_partial)
{
	struct work work = {.saved = saved};
	const struct stall_untrusted untrusted = {
		.path = saved->path,
		.what = saved->what,
		.prepare = prepare,
		.run = capture,
		.arg = &work,
		.answer_size = 1,
		.memory_limit = MEMORY_LIMIT + ARENA_SIZE,
		.cpu_seconds = MAX_CPU_SECONDS,
		// To read it, and again so long to unwind its stacks.
		.deadline_ms = 2 * (uint64_t)saved->worker.deadline_ms + 1000,
		.max_bytes = MAX_OUTPUT,
	};
	unsigned int missing;
	uint8_t partial = 0;
	struct stall_error *err = stall_worker_open_dirs(&saved->worker);

	if (!err)
		err = stall_untrusted_run(&untrusted, output, &partial, &missing);
	*ret_partial = partial != 0;
	return err;
}
