// SPDX-License-Identifier: Apache-2.0
#include "capture/capturer.h"

#include <malloc.h>
#include <string.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/json_writer.h"
#include "capture/backends.h"
#include "capture/finish.h"
#include "capture/kernel_symbols.h"
#include "introspect/postgres.h"
#include "introspect/sessions.h"
#include "proc/read_child.h"
#include "snapshot/blocked_files.h"
#include "snapshot/sampler.h"

// Address space only: pages are taken as stacks are copied.
#define ARENA_MIN (UINT64_C(256) << 20)
#define ARENA_MAX (UINT64_C(64) << 30)
// Kept between captures, for the stacks of 1,000 idle threads: fresh pages take time. More would be
// kept as long as the probe runs, most of the time for nothing.
#define ARENA_KEEP (4 << 20)
#define HEAP_THRESHOLD (128 << 10) // as it begins, mallopt(3)
#define BURST_HEAP (32 << 20)	   // the largest that mallopt takes

struct stall_capturer {
	struct stall_capturer_options options;
	pid_t *pids;
	size_t pid_count;
	const struct stall_backend *backend;
	char *reason;
	void *state;
	struct stall_host host;
	struct stall_arena arena;
	struct stall_worker *worker;
	struct stall_memory_locks *memory;   // NULL: no layout is given
	const struct stall_own_threads *own; // NULL: none
	struct stall_kernel_symbols *kernel_symbols;
	struct stall_snapshot *previous; // for its open files
	struct stall_snapshot *taken;	 // raw, until it is finished
	const struct stall_backend *taken_by;
	void *taken_state;
	uint64_t started_ns, attach_ns; // of `taken`
	uint64_t memory_ns;		// for its locks in the server's memory
	// Between the begin and the end of a burst.
	bool in_burst;
	struct stall_locks locks;      // of the capture before
	struct stall_sampler *sampler; // kept for the next burst
	bool sampling;
	struct stall_json sessions;		  // lines of the captures
	struct stall_postgres_waits server_waits; // of what was taken
	struct stall_blocked_files blocked;	  // of what was taken
	char *not_sampled;			  // why; NULL once a capture says it
};

static size_t arena_size(const struct stall_snapshot_options *options)
{
	uint64_t size;

	if (__builtin_mul_overflow(options->max_stack + 4096, options->max_threads, &size) ||
	    size > ARENA_MAX)
		return ARENA_MAX;
	return size < ARENA_MIN ? ARENA_MIN : size;
}

void stall_capturer_destroy(struct stall_capturer *capturer)
{
	if (!capturer)
		return;
	stall_capturer_burst_end(capturer);
	stall_sampler_destroy(capturer->sampler);
	stall_worker_destroy(capturer->worker);
	if (capturer->backend && capturer->state)
		capturer->backend->close(capturer->state);
	stall_snapshot_destroy(capturer->taken);
	stall_snapshot_destroy(capturer->previous);
	stall_memory_locks_destroy(capturer->memory);
	stall_kernel_symbols_destroy(capturer->kernel_symbols);
	stall_json_deinit(&capturer->sessions);
	stall_postgres_waits_deinit(&capturer->server_waits);
	stall_blocked_files_deinit(&capturer->blocked);
	stall_read_child_forget(&capturer->arena);
	if (capturer->arena.base)
		stall_arena_deinit(&capturer->arena);
	free(capturer->pids);
	free(capturer->reason);
	free(capturer);
}

struct stall_error *stall_capturer_set_targets(struct stall_capturer *capturer, const pid_t *pids,
					       size_t count)
{
	pid_t *copy = calloc(count + 1, sizeof(*copy));

	if (!copy)
		return &stall_enomem;
	memcpy(copy, pids, count * sizeof(*copy));
	if (capturer->previous) // a burst does not go on with other processes
		stall_snapshot_forget_threads(capturer->previous);
	free(capturer->pids);
	capturer->pids = copy;
	capturer->pid_count = count;
	return NULL;
}

static struct stall_error *create_memory(struct stall_capturer *capturer)
{
	const struct stall_memory_layouts layouts = {
		.given = capturer->options.layout,
		.by_version = capturer->options.layouts,
		.count = capturer->options.layout_count,
	};

	if (!layouts.count && !(layouts.given && layouts.given->count))
		return NULL;
	return stall_memory_locks_create(&layouts, &capturer->memory);
}

struct stall_error *stall_capturer_create(const struct stall_capturer_options *options,
					  struct stall_capturer **ret)
{
	_cleanup_(stall_capturer_destroyp) struct stall_capturer *capturer =
		calloc(1, sizeof(*capturer));
	struct stall_error *err;

	if (!capturer)
		return &stall_enomem;
	capturer->options = *options;
	stall_json_init(&capturer->sessions);
	stall_host_init(&capturer->host);
	err = stall_capturer_set_targets(capturer, options->pids, options->pid_count);
	if (err)
		return err;
	struct stall_snapshot_options wanted = options->snapshot;
	wanted.pids = options->pids;
	wanted.pid_count = options->pid_count;
	err = stall_backend_choose(options->backend, options->allow_stop, &wanted,
				   &capturer->backend, &capturer->reason);
	if (err)
		return err;
	err = stall_arena_init(&capturer->arena, arena_size(&options->snapshot));
	if (!err)
		err = stall_read_child_share(&capturer->arena);
	if (err)
		return err;
	stall_read_child_set_patience(options->snapshot.deadline_ms / 4);
	// Make the child early: it then shares little of our memory, and none of the target's data.
	err = stall_worker_create(&capturer->arena, &options->worker, &capturer->worker);
	if (err)
		return err;
	err = create_memory(capturer);
	if (err)
		return err;
	if (options->snapshot.kernel_stacks) {
		err = stall_kernel_symbols_create(&capturer->kernel_symbols);
		if (err)
			return err;
	}
	err = capturer->backend->open(&options->snapshot, &capturer->state);
	if (err)
		return err;
	*ret = no_cleanup_ptr(capturer);
	return NULL;
}

static void snapshot_destroyp(struct stall_snapshot **snapshot)
{
	stall_snapshot_destroy(*snapshot);
}

// Each capture allocates megabytes for thousands of threads. In a burst they come from memory that
// was used before: fresh pages take a quarter of the time of a later capture.
static void keep_memory(bool keep)
{
	mallopt(M_MMAP_THRESHOLD, keep ? BURST_HEAP : HEAP_THRESHOLD);
	mallopt(M_TRIM_THRESHOLD, keep ? BURST_HEAP : HEAP_THRESHOLD);
	if (!keep)
		malloc_trim(0);
}

bool stall_capturer_stops_threads(const struct stall_capturer *capturer)
{
	return capturer->backend->stops_threads;
}

void stall_capturer_burst_end(struct stall_capturer *capturer)
{
	if (capturer->in_burst)
		keep_memory(false);
	capturer->in_burst = false;
	stall_locks_deinit(&capturer->locks);
	if (capturer->sampler)
		stall_sampler_stop(capturer->sampler);
	capturer->sampling = false;
	free(capturer->not_sampled);
	capturer->not_sampled = NULL;
	if (capturer->previous)
		stall_snapshot_forget_threads(capturer->previous);
}

struct stall_error *stall_capturer_burst_begin(struct stall_capturer *capturer)
{
	stall_capturer_burst_end(capturer);
	capturer->in_burst = true;
	keep_memory(true);
	if (!capturer->backend->follows)
		return NULL;
	struct stall_error *err = NULL;
	if (!capturer->sampler)
		err = stall_sampler_create(capturer->options.snapshot.max_stack,
					   &capturer->sampler);
	if (!err)
		err = stall_sampler_start(capturer->sampler, capturer->pids, capturer->pid_count);
	capturer->sampling = !err;
	if (!err)
		return NULL;
	// What runs between the captures is not known then: the captures themselves are as good.
	capturer->not_sampled = strdup(err->message);
	stall_error_destroy(err);
	return capturer->not_sampled ? NULL : &stall_enomem;
}

static struct stall_error *take_samples(struct stall_capturer *capturer,
					struct stall_snapshot *snapshot)
{
	if (capturer->sampling)
		return stall_sampler_take(capturer->sampler, snapshot);
	if (!capturer->not_sampled)
		return NULL;
	struct stall_error *err =
		stall_snapshot_note(snapshot, "running-unsampled", "%s", capturer->not_sampled);
	free(capturer->not_sampled);
	capturer->not_sampled = NULL;
	return err;
}

#define MAX_SESSION_LINES (64 << 20)

// Right after the stacks: the connections change, too. Those of PostgreSQL need no layout.
static struct stall_error *take_sessions(struct stall_capturer *capturer,
					 const struct stall_snapshot *snapshot)
{
	const struct stall_layout *layout = capturer->options.layout;
	_cleanup_(stall_sessions_deinit) struct stall_sessions sessions = {};

	bool wanted = layout && layout->count;
	stall_postgres_waits_deinit(&capturer->server_waits);
	struct stall_error *err = wanted ? stall_sessions_read(snapshot, layout, &sessions) : NULL;
	if (!err)
		err = stall_postgres_read(snapshot, capturer->worker, layout, &sessions,
					  &capturer->server_waits);
	if (err)
		return err;
	if ((!wanted && !capturer->server_waits.servers) ||
	    capturer->sessions.size > MAX_SESSION_LINES)
		return NULL;
	stall_sessions_write(&sessions, snapshot, &capturer->sessions);
	return capturer->sessions.failed ? &stall_enomem : NULL;
}

struct stall_error *stall_capturer_sessions(struct stall_capturer *capturer, char **ret,
					    size_t *ret_size)
{
	if (capturer->sessions.failed)
		return &stall_enomem;
	*ret = capturer->sessions.data;
	*ret_size = capturer->sessions.size;
	stall_json_init(&capturer->sessions);
	return NULL;
}

void stall_capturer_set_layout(struct stall_capturer *capturer, const struct stall_layout *layout)
{
	capturer->options.layout = layout;
}

// NULL: not possible, because a process changed or there is no capture before.
static struct stall_snapshot *follow(const struct stall_capturer *capturer,
				     const struct stall_backend *backend)
{
	struct stall_snapshot *before = capturer->previous, *snapshot = NULL;

	if (!capturer->in_burst || !backend->follows || !before || !before->thread_count ||
	    !before->process_count)
		return NULL;
	_cleanup_error_ struct stall_error *err = stall_snapshot_follow(before, &snapshot);
	return err ? NULL : snapshot;
}

static struct stall_error *create_snapshot(struct stall_capturer *capturer,
					   const struct stall_backend *backend, void *state,
					   struct stall_snapshot **ret)
{
	*ret = follow(capturer, backend);
	if (*ret)
		return NULL;
	const struct stall_maps_source source = {backend->create_maps, state};
	struct stall_error *err =
		backend->create_maps
			? stall_snapshot_create_from(&capturer->arena, capturer->pids,
						     capturer->pid_count, capturer->previous,
						     &source, ret)
			: stall_snapshot_create(&capturer->arena, capturer->pids,
						capturer->pid_count, capturer->previous, ret);
	if (err)
		return err;
	stall_snapshot_destroy(capturer->previous);
	capturer->previous = NULL;
	return NULL;
}

// Symbols that could not be read leave the capture as it is without a layout.
static struct stall_error *prepare_memory(struct stall_capturer *capturer,
					  struct stall_snapshot *snapshot)
{
	if (!capturer->memory)
		return NULL;
	struct stall_error *err =
		stall_memory_locks_prepare(capturer->memory, snapshot, capturer->worker);
	if (!err || err->code == STALL_ERROR_NO_MEMORY)
		return err;
	struct stall_error *failed =
		stall_snapshot_note(snapshot, "lock-owners", "%s", err->message);
	stall_error_destroy(err);
	return failed;
}

static struct stall_error *read_memory(struct stall_capturer *capturer,
				       const struct stall_snapshot *snapshot)
{
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (!capturer->memory)
		return NULL;
	struct stall_error *err = stall_memory_locks_read(capturer->memory, snapshot);
	capturer->memory_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	return err;
}

static struct stall_error *take(struct stall_capturer *capturer,
				const struct stall_backend *backend, void *state)
{
	_cleanup_(snapshot_destroyp) struct stall_snapshot *snapshot = NULL;

	stall_snapshot_destroy(capturer->taken);
	capturer->taken = NULL;
	capturer->started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	stall_arena_reset(&capturer->arena, ARENA_KEEP);
	struct stall_error *err = create_snapshot(capturer, backend, state, &snapshot);
	if (err)
		return err;
	snapshot->backend = backend->name;
	snapshot->backend_reason = strdup(capturer->reason);
	snapshot->wall_ns = stall_clock_ns(CLOCK_REALTIME);
	err = prepare_memory(capturer, snapshot);
	if (err)
		return err;
	capturer->attach_ns = stall_clock_ns(CLOCK_MONOTONIC) - capturer->started_ns;
	err = backend->capture(state, snapshot, &capturer->options.snapshot);
	if (!err)
		err = read_memory(capturer, snapshot);
	if (!err)
		err = take_samples(capturer, snapshot);
	if (err)
		return err;
	err = take_sessions(capturer, snapshot);
	if (err)
		return err;
	stall_blocked_files_deinit(&capturer->blocked);
	stall_blocked_files_read(snapshot, &capturer->blocked);
	capturer->taken = no_cleanup_ptr(snapshot);
	capturer->taken_by = backend;
	capturer->taken_state = state;
	return NULL;
}

struct stall_error *stall_capturer_take(struct stall_capturer *capturer)
{
	struct stall_error *err = take(capturer, capturer->backend, capturer->state);

	if (!err && capturer->own)
		stall_own_threads_mark(capturer->own, capturer->taken);
	return err;
}

void stall_capturer_set_own(struct stall_capturer *capturer, const struct stall_own_threads *own)
{
	capturer->own = own;
}

struct stall_error *stall_capturer_finish(struct stall_capturer *capturer,
					  const struct stall_trigger *trigger,
					  struct stall_output *output, bool *ret_partial)
{
	const struct stall_finish finish = {
		.snapshot = capturer->taken,
		.backend = capturer->taken_by,
		.backend_state = capturer->taken_state,
		.worker = capturer->worker,
		.kernel_symbols = capturer->kernel_symbols,
		.strings = capturer->options.strings,
		.string_count = capturer->options.string_count,
		.memory = capturer->memory,
		.memory_ns = capturer->memory_ns,
		.host = &capturer->host,
		.trigger = trigger,
		.started_ns = capturer->started_ns,
		.attach_ns = capturer->attach_ns,
		.locks = capturer->in_burst ? &capturer->locks : NULL,
		.server_waits = &capturer->server_waits,
		.blocked = &capturer->blocked,
	};
	struct stall_error *err = stall_finish(&finish, output, ret_partial);

	stall_snapshot_destroy(capturer->previous);
	capturer->previous = no_cleanup_ptr(capturer->taken);
	capturer->previous->before = NULL;
	if (err || !capturer->in_burst)
		stall_snapshot_forget_threads(capturer->previous);
	stall_arena_reset(&capturer->arena, ARENA_KEEP);
	return err;
}

struct stall_error *stall_capturer_capture(struct stall_capturer *capturer,
					   struct stall_output *output, bool *ret_partial)
{
	struct stall_error *err = stall_capturer_take(capturer);

	return err ? err : stall_capturer_finish(capturer, NULL, output, ret_partial);
}

static struct stall_error *warm(struct stall_capturer *capturer)
{
	_cleanup_(stall_output_destroyp) struct stall_output *nowhere = NULL;
	bool partial;

	struct stall_error *err = stall_output_create_null(&nowhere);
	if (err)
		return err;
	if (!capturer->backend->stops_threads)
		return stall_capturer_capture(capturer, nowhere, &partial);
	void *state = NULL;
	err = stall_backend_proc.open(&capturer->options.snapshot, &state);
	if (err)
		return err;
	err = take(capturer, &stall_backend_proc, state);
	if (!err)
		err = stall_capturer_finish(capturer, NULL, nowhere, &partial);
	if (state)
		stall_backend_proc.close(state);
	return err;
}

struct stall_error *stall_capturer_warm(struct stall_capturer *capturer)
{
	const struct stall_layout *layout = capturer->options.layout;

	// Nobody would take its sessions: those of PostgreSQL are read without a layout.
	size_t size = capturer->sessions.size;
	capturer->options.layout = NULL;
	struct stall_error *err = warm(capturer);
	capturer->options.layout = layout;
	if (!capturer->sessions.failed)
		capturer->sessions.size = size;
	return err;
}
