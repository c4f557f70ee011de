// SPDX-License-Identifier: Apache-2.0
// The backend without privileges: the threads have recorded themselves in a ring, and
// /proc/PID/task lists those that still exist. It neither traces the process nor reads its memory.
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "rings/ring_find.h"
#include "rings/ring_snapshot.h"
#include "rings/ring_words.h"
#include "snapshot/backend.h"
#include "snapshot/proc_copy.h"
#include "snapshot/proc_thread.h"

// The rings of the processes of the snapshot that is being taken.
struct inproc {
	const char *path; // --ring, or NULL
	struct process_ring {
		pid_t pid;
		struct stall_ring *ring;
	} * rings;
	size_t count, capacity;
};

static struct stall_error *inproc_check(const struct stall_snapshot_options *options)
{
	struct stall_error *err = NULL;

	if (options->pid_count > 1 && options->ring)
		return stall_error_create(STALL_ERROR_USAGE, "--ring is the ring of one --pid");
	if (!options->pid_count)
		return stall_ring_find_any();
	for (size_t i = 0; !err && i < options->pid_count; i++) {
		_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
		err = stall_ring_open_process(options->pids[i], options->ring, false, &ring);
	}
	return err;
}

static struct stall_error *inproc_open(const struct stall_snapshot_options *options, void **ret)
{
	struct inproc *inproc = calloc(1, sizeof(*inproc));

	if (!inproc)
		return &stall_enomem;
	inproc->path = options->ring;
	*ret = inproc;
	return NULL;
}

static void close_rings(struct inproc *inproc)
{
	for (size_t i = 0; i < inproc->count; i++)
		stall_ring_close(inproc->rings[i].ring);
	inproc->count = 0;
}

static void inproc_close(void *state)
{
	struct inproc *inproc = state;

	close_rings(inproc);
	free(inproc->rings);
	free(inproc);
}

// Opened again for each snapshot: a process that has executed another program has another ring.
static struct stall_error *add_ring(struct inproc *inproc, pid_t pid, struct stall_ring **ret)
{
	struct stall_ring *ring;

	if (!stall_array_reserve(&inproc->rings, inproc->count, 1, &inproc->capacity))
		return &stall_enomem;
	struct stall_error *err = stall_ring_open_process(pid, inproc->path, false, &ring);
	if (err)
		return err;
	inproc->rings[inproc->count++] = (struct process_ring){pid, ring};
	*ret = ring;
	return NULL;
}

static struct stall_error *inproc_maps(void *state, const struct stall_target *target,
				       struct stall_maps *previous, struct stall_open_files *files,
				       struct stall_maps **ret)
{
	struct stall_ring *ring;
	struct stall_error *err = add_ring(state, target->pid, &ring);

	return err ? err : stall_ring_maps_create(ring, target, -1, previous, files, ret);
}

static struct stall_ring *find_ring(const struct inproc *inproc, pid_t pid)
{
	for (size_t i = inproc->count; i-- > 0;) {
		if (inproc->rings[i].pid == pid)
			return inproc->rings[i].ring;
	}
	return NULL;
}

static struct stall_error *read_status(struct stall_snapshot *snapshot, bool *gone)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_thread *thread = &snapshot->threads[i];
		struct stall_error *err =
			stall_proc_status_read(&snapshot->processes[thread->process].target,
					       thread->tid, thread);

		gone[i] = err && err->code == STALL_ERROR_NO_PROCESS;
		if (gone[i])
			stall_error_destroy(err);
		else if (err)
			return err;
		thread->passes = 1;
		if (thread->state == 'R')
			thread->label = STALL_RUNNING;
	}
	return NULL;
}

static struct stall_error *add_threads(struct stall_snapshot *snapshot,
				       const struct stall_snapshot_options *options)
{
	struct stall_error *err = stall_proc_list_threads(snapshot, options);

	if (err)
		return err;
	_cleanup_free_ bool *gone = calloc(snapshot->thread_count + 1, sizeof(*gone));
	if (!gone)
		return &stall_enomem;
	err = read_status(snapshot, gone);
	if (!err)
		stall_proc_drop_gone(snapshot, gone);
	return err;
}

static void fill_threads(struct stall_thread *threads, size_t count,
			 const struct stall_ring_threads *recorded, uint64_t now_ns)
{
	for (size_t i = 0; i < count; i++) {
		const struct stall_ring_thread *from =
			stall_ring_threads_find(recorded, threads[i].ns_tid);

		if (from)
			stall_ring_thread_fill(from, now_ns, &threads[i]);
	}
}

static struct stall_error *fill_process(struct stall_snapshot *snapshot, uint32_t process,
					const struct stall_ring *ring,
					const struct stall_ring_content *content, uint64_t now_ns)
{
	struct stall_error *err = stall_ring_name_process(ring, &snapshot->processes[process]);

	if (!err)
		err = stall_ring_words_add(snapshot, process, &content->threads,
					   &content->releases);
	if (!err)
		err = stall_ring_releases_add(snapshot, process, &content->releases, now_ns);
	return err ? err : stall_ring_note(snapshot, process, ring, content);
}

static struct stall_error *read_rings(const struct inproc *inproc, struct stall_snapshot *snapshot,
				      const struct stall_snapshot_options *options,
				      struct stall_ring_content *contents)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < snapshot->process_count; i++)
		err = stall_ring_content_init(&contents[i],
					      find_ring(inproc, snapshot->processes[i].target.pid),
					      snapshot->arena, options->max_stack);
	return err;
}

static struct stall_error *take(const struct inproc *inproc, struct stall_snapshot *snapshot,
				const struct stall_snapshot_options *options,
				struct stall_ring_content *contents)
{
	struct stall_error *err = read_rings(inproc, snapshot, options, contents);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	size_t first = 0;

	// A thread that is listed afterwards was in its recorded wait at the moment of the copy.
	if (!err)
		err = add_threads(snapshot, options);
	for (uint32_t i = 0; !err && i < snapshot->process_count; i++) {
		fill_threads(&snapshot->threads[first], snapshot->processes[i].thread_count,
			     &contents[i].threads, now_ns);
		first += snapshot->processes[i].thread_count;
		err = fill_process(snapshot, i,
				   find_ring(inproc, snapshot->processes[i].target.pid),
				   &contents[i], now_ns);
	}
	for (size_t i = 0; !err && i < snapshot->process_count; i++)
		err = stall_target_check(&snapshot->processes[i].target);
	return err;
}

static struct stall_error *inproc_capture(void *state, struct stall_snapshot *snapshot,
					  const struct stall_snapshot_options *options)
{
	struct stall_ring_content *contents = calloc(snapshot->process_count, sizeof(*contents));
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (!contents)
		return &stall_enomem;
	stall_ring_snapshot_init(snapshot);
	struct stall_error *err = take(state, snapshot, options, contents);
	for (size_t i = 0; i < snapshot->process_count; i++)
		stall_ring_content_deinit(&contents[i]);
	free(contents);
	close_rings(state);
	snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	return err;
}

const struct stall_backend stall_backend_inproc = {
	.name = "inproc",
	.feature = "inproc",
	.check = inproc_check,
	.open = inproc_open,
	.create_maps = inproc_maps,
	.capture = inproc_capture,
	.close = inproc_close,
};
