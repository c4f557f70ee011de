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
#include "read_child.h"

// Address space only: pages are taken as stacks are copied.
#define ARENA_MIN (UINT64_C(256) << 20)
#define ARENA_MAX (UINT64_C(64) << 30)
// What stays in memory between captures.
#define ARENA_KEEP (64 << 20)

struct stall_probe {
	struct stall_probe_options options;
	pid_t *pids;
	size_t pid_count;
	const struct stall_backend *backend;
	char *reason;
	void *state;
	struct stall_host host;
	struct stall_arena arena;
	struct stall_worker *worker;
	struct stall_kernel_symbols *kernel_symbols;
	struct stall_snapshot *previous; // for its open files
	struct stall_snapshot *taken;	 // raw, until it is finished
	const struct stall_backend *taken_by;
	void *taken_state;
	uint64_t started_ns, attach_ns; // of `taken`
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
	stall_snapshot_destroy(probe->taken);
	stall_snapshot_destroy(probe->previous);
	stall_kernel_symbols_destroy(probe->kernel_symbols);
	stall_read_child_forget(&probe->arena);
	if (probe->arena.base)
		stall_arena_deinit(&probe->arena);
	free(probe->pids);
	free(probe->reason);
	free(probe);
}

struct stall_error *stall_probe_set_targets(struct stall_probe *probe, const pid_t *pids,
					    size_t count)
{
	pid_t *copy = calloc(count + 1, sizeof(*copy));

	if (!copy)
		return &stall_enomem;
	memcpy(copy, pids, count * sizeof(*copy));
	free(probe->pids);
	probe->pids = copy;
	probe->pid_count = count;
	return NULL;
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
	err = stall_probe_set_targets(probe, options->pids, options->pid_count);
	if (err)
		return err;
	struct stall_snapshot_options wanted = options->snapshot;
	wanted.pids = options->pids;
	wanted.pid_count = options->pid_count;
	err = stall_backend_choose(options->backend, options->allow_stop, &wanted, &probe->backend,
				   &probe->reason);
	if (err)
		return err;
	err = stall_arena_init(&probe->arena, arena_size(&options->snapshot));
	if (!err)
		err = stall_read_child_share(&probe->arena);
	if (err)
		return err;
	stall_read_child_set_patience(options->snapshot.deadline_ms / 4);
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

static struct stall_error *take(struct stall_probe *probe, const struct stall_backend *backend,
				void *state)
{
	_cleanup_(snapshot_destroyp) struct stall_snapshot *snapshot = NULL;
	struct stall_error *err;

	stall_snapshot_destroy(probe->taken);
	probe->taken = NULL;
	probe->started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	stall_arena_reset(&probe->arena, ARENA_KEEP);
	const struct stall_maps_source source = {backend->create_maps, state};
	err = backend->create_maps
		      ? stall_snapshot_create_from(&probe->arena, probe->pids, probe->pid_count,
						   probe->previous, &source, &snapshot)
		      : stall_snapshot_create(&probe->arena, probe->pids, probe->pid_count,
					      probe->previous, &snapshot);
	if (err)
		return err;
	stall_snapshot_destroy(probe->previous);
	probe->previous = NULL;
	snapshot->backend = backend->name;
	snapshot->backend_reason = strdup(probe->reason);
	snapshot->wall_ns = stall_clock_ns(CLOCK_REALTIME);
	probe->attach_ns = stall_clock_ns(CLOCK_MONOTONIC) - probe->started_ns;
	err = backend->capture(state, snapshot, &probe->options.snapshot);
	if (err)
		return err;
	probe->taken = no_cleanup_ptr(snapshot);
	probe->taken_by = backend;
	probe->taken_state = state;
	return NULL;
}

struct stall_error *stall_probe_take(struct stall_probe *probe)
{
	return take(probe, probe->backend, probe->state);
}

struct stall_error *stall_probe_finish(struct stall_probe *probe,
				       const struct stall_trigger *trigger,
				       struct stall_output *output, bool *ret_partial)
{
	const struct stall_finish finish = {
		.snapshot = probe->taken,
		.backend = probe->taken_by,
		.backend_state = probe->taken_state,
		.worker = probe->worker,
		.kernel_symbols = probe->kernel_symbols,
		.strings = probe->options.strings,
		.string_count = probe->options.string_count,
		.host = &probe->host,
		.trigger = trigger,
		.started_ns = probe->started_ns,
		.attach_ns = probe->attach_ns,
	};
	struct stall_error *err = stall_finish(&finish, output, ret_partial);

	probe->previous = no_cleanup_ptr(probe->taken);
	return err;
}

struct stall_error *stall_probe_capture(struct stall_probe *probe, struct stall_output *output,
					bool *ret_partial)
{
	struct stall_error *err = stall_probe_take(probe);

	return err ? err : stall_probe_finish(probe, NULL, output, ret_partial);
}

struct stall_error *stall_probe_warm(struct stall_probe *probe)
{
	_cleanup_(stall_output_destroyp) struct stall_output *nowhere = NULL;
	bool partial;

	struct stall_error *err = stall_output_create_null(&nowhere);
	if (err)
		return err;
	if (!probe->backend->stops_threads)
		return stall_probe_capture(probe, nowhere, &partial);
	void *state = NULL;
	err = stall_backend_proc.open(&probe->options.snapshot, &state);
	if (err)
		return err;
	err = take(probe, &stall_backend_proc, state);
	if (!err)
		err = stall_probe_finish(probe, NULL, nowhere, &partial);
	if (state)
		stall_backend_proc.close(state);
	return err;
}
