// SPDX-License-Identifier: Apache-2.0
#include "probe.h"

#include <string.h>

#include "arena.h"
#include "backend.h"
#include "cleanup.h"
#include "clock.h"
#include "finish.h"
#include "host.h"
#include "kernel_symbols.h"

// Address space only: pages are taken as stacks are copied.
#define ARENA_MIN (UINT64_C(256) << 20)
#define ARENA_MAX (UINT64_C(64) << 30)
// What stays in memory between captures.
#define ARENA_KEEP (64 << 20)

struct stall_probe {
	struct stall_probe_options options;
	const struct stall_backend *backend;
	char *reason;
	void *state;
	struct stall_host host;
	struct stall_arena arena;
	struct stall_worker *worker;
	struct stall_kernel_symbols *kernel_symbols;
	struct stall_snapshot *previous; // for its open files
};

static size_t arena_size(const struct stall_snapshot_options *options)
{
	uint64_t size;

	if (__builtin_mul_overflow(options->max_stack + 4096, options->max_threads, &size) ||
	    size > ARENA_MAX)
		return ARENA_MAX;
	return size < ARENA_MIN ? ARENA_MIN : size;
}

void stall_probe_destroy(struct stall_probe *probe)
{
	if (!probe)
		return;
	stall_worker_destroy(probe->worker);
	if (probe->backend && probe->state)
		probe->backend->close(probe->state);
	stall_snapshot_destroy(probe->previous);
	stall_kernel_symbols_destroy(probe->kernel_symbols);
	if (probe->arena.base)
		stall_arena_deinit(&probe->arena);
	free(probe->reason);
	free(probe);
}

struct stall_error *stall_probe_create(const struct stall_probe_options *options,
				       struct stall_probe **ret)
{
	_cleanup_(stall_probe_destroyp) struct stall_probe *probe = calloc(1, sizeof(*probe));
	struct stall_error *err;

	if (!probe)
		return &stall_enomem;
	probe->options = *options;
	stall_host_init(&probe->host);
	err = stall_backend_choose(options->backend, options->allow_stop, &options->snapshot,
				   &probe->backend, &probe->reason);
	if (err)
		return err;
	err = stall_arena_init(&probe->arena, arena_size(&options->snapshot));
	if (err)
		return err;
	// The child is made early: it then has little of our memory, and none of the target's.
	err = stall_worker_create(&probe->arena, &options->worker, &probe->worker);
	if (err)
		return err;
	if (options->snapshot.kernel_stacks) {
		err = stall_kernel_symbols_create(&probe->kernel_symbols);
		if (err)
			return err;
	}
	err = probe->backend->open(&options->snapshot, &probe->state);
	if (err)
		return err;
	*ret = no_cleanup_ptr(probe);
	return NULL;
}

static void snapshot_destroyp(struct stall_snapshot **snapshot)
{
	stall_snapshot_destroy(*snapshot);
}

static struct stall_error *capture(struct stall_probe *probe, const struct stall_backend *backend,
				   void *state, struct stall_output *output, bool *ret_partial)
{
	_cleanup_(snapshot_destroyp) struct stall_snapshot *snapshot = NULL;
	const struct stall_probe_options *options = &probe->options;
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_error *err;

	stall_arena_reset(&probe->arena, ARENA_KEEP);
	err = stall_snapshot_create(&probe->arena, options->pids, options->pid_count,
				    probe->previous, &snapshot);
	if (err)
		return err;
	stall_snapshot_destroy(probe->previous);
	probe->previous = NULL;
	snapshot->backend = backend->name;
	snapshot->backend_reason = strdup(probe->reason);
	snapshot->wall_ns = stall_clock_ns(CLOCK_REALTIME);
	uint64_t attach_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	err = backend->capture(state, snapshot, &options->snapshot);
	if (err)
		return err;
	const struct stall_finish finish = {
		.snapshot = snapshot,
		.worker = probe->worker,
		.kernel_symbols = probe->kernel_symbols,
		.strings = options->strings,
		.string_count = options->string_count,
		.host = &probe->host,
		.started_ns = started_ns,
		.attach_ns = attach_ns,
	};
	err = stall_finish(&finish, output, ret_partial);
	probe->previous = no_cleanup_ptr(snapshot);
	return err;
}

struct stall_error *stall_probe_capture(struct stall_probe *probe, struct stall_output *output,
					bool *ret_partial)
{
	return capture(probe, probe->backend, probe->state, output, ret_partial);
}

struct stall_error *stall_probe_warm(struct stall_probe *probe)
{
	_cleanup_(stall_output_destroyp) struct stall_output *nowhere = NULL;
	bool partial;

	struct stall_error *err = stall_output_create_null(&nowhere);
	if (err)
		return err;
	if (!probe->backend->stops_threads)
		return capture(probe, probe->backend, probe->state, nowhere, &partial);
	void *state = NULL;
	err = stall_backend_proc.open(&probe->options.snapshot, &state);
	if (err)
		return err;
	err = capture(probe, &stall_backend_proc, state, nowhere, &partial);
	if (state)
		stall_backend_proc.close(state);
	return err;
}
