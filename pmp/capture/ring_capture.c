// SPDX-License-Identifier: Apache-2.0
#include "capture/ring_capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "capture/saved_capture.h"
#include "lock/lock_layout.h"
#include "proc/path_open.h"
#include "rings/ring_find.h"
#include "rings/ring_snapshot.h"
#include "rings/ring_words.h"
#include "snapshot/proc_thread.h"

struct inputs {
	const struct stall_ring_capture_options *options;
	int ring_fd, sysroot;
	bool live;
	struct stall_ring *ring; // of the child
};

// Only the header is read here: the child could not find out whether the process is alive.
static struct stall_error *open_inputs(void *arg)
{
	struct inputs *inputs = arg;
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	struct stall_error *err =
		stall_saved_open(inputs->options->ring, STALL_PATH_READ | STALL_PATH_NOFOLLOW,
				 &inputs->ring_fd);

	int fd = err ? -1 : fcntl(inputs->ring_fd, F_DUPFD_CLOEXEC, 3);
	if (!err)
		err = fd < 0 ? stall_error_os(errno, "%s", inputs->options->ring)
			     : stall_ring_open_fd(fd, inputs->options->ring, &ring);
	if (!err)
		inputs->live =
			stall_ring_is_live(stall_ring_header(ring), stall_ring_header(ring)->pid);
	return err;
}

static uint64_t newest(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static struct stall_error *fill_process(struct stall_snapshot *snapshot,
					const struct inputs *inputs)
{
	const struct stall_ring_header *header = stall_ring_header(inputs->ring);
	struct stall_process *process = calloc(1, sizeof(*process));

	if (!process)
		return &stall_enomem;
	snapshot->processes = process;
	snapshot->process_count = 1;
	process->target = STALL_TARGET_NONE;
	process->target.pid = process->target.reader = header->pid;
	process->target.start_time = header->start_time;
	struct stall_error *err = stall_ring_name_process(inputs->ring, process);
	return err ? err
		   : stall_ring_maps_create(inputs->ring, NULL, inputs->sysroot, NULL, NULL,
					    &process->maps);
}

static struct stall_error *note_modules(struct stall_snapshot *snapshot)
{
	const struct stall_maps *maps = snapshot->processes[0].maps;
	struct stall_error *err = NULL;

	if (!maps->module_count)
		err = stall_snapshot_note(snapshot, "inproc-maps",
					  "the ring does not say which files were mapped: frames "
					  "stay without names");
	for (size_t i = 0; !err && i < maps->module_count; i++) {
		const struct stall_module *module = &maps->modules[i];

		if (module->error && !module->shared)
			err = stall_snapshot_note(snapshot, "module-unreadable",
						  "%s: %s; give the right files with --sysroot",
						  module->path, module->error);
	}
	return err;
}

static struct stall_error *fill_threads(struct stall_snapshot *snapshot,
					const struct stall_ring_threads *threads,
					size_t max_threads, uint64_t now_ns)
{
	struct stall_process *process = &snapshot->processes[0];
	size_t count = threads->count < max_threads ? threads->count : max_threads;

	// With room for the owners of all locks.
	snapshot->threads = calloc(count + snapshot->futex_count + 1, sizeof(*snapshot->threads));
	if (!snapshot->threads)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++) {
		const struct stall_wait_slot *slot = &threads->threads[i].slot;
		struct stall_thread *thread = &snapshot->threads[i];

		*thread = (struct stall_thread){
			.tid = slot->tid,
			.ns_tid = slot->tid,
			.passes = 1,
			.state = slot->seq & 1 ? 'S' : '?',
			.label = STALL_RACED,
		};
		memcpy(thread->comm, slot->comm, sizeof(thread->comm));
		stall_ring_thread_fill(&threads->threads[i], now_ns, thread);
	}
	snapshot->thread_count = process->thread_count = count;
	process->threads_lost = threads->count - count;
	return NULL;
}

static const struct stall_futex *find_futex(const struct stall_snapshot *snapshot, uint64_t object)
{
	size_t low = 0, high = snapshot->futex_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (snapshot->futexes[middle].address < object)
			low = middle + 1;
		else
			high = middle;
	}
	return low < snapshot->futex_count && snapshot->futexes[low].address == object
		       ? &snapshot->futexes[low]
		       : NULL;
}

static int compare_threads(const void *a, const void *b)
{
	const struct stall_thread *x = a, *y = b;

	return (x->tid > y->tid) - (x->tid < y->tid);
}

static void add_owner(struct stall_snapshot *snapshot, size_t first, pid_t tid)
{
	const struct stall_thread key = {.tid = tid};

	if (tid <= 0 || tid > STALL_MAX_TIDS ||
	    bsearch(&key, snapshot->threads, first, sizeof(key), compare_threads))
		return;
	for (size_t i = first; i < snapshot->thread_count; i++) {
		if (snapshot->threads[i].tid == tid)
			return;
	}
	snapshot->threads[snapshot->thread_count++] = (struct stall_thread){
		.tid = tid,
		.ns_tid = tid,
		.state = '?',
		.label = STALL_RACED,
	};
}

// A thread that has never waited has no slot, and a process that has ended has no list of threads:
// such a thread is only known by the locks that it held.
static void add_owners(struct stall_snapshot *snapshot)
{
	size_t count = snapshot->thread_count;
	uint64_t done = 0;

	for (size_t i = 0; i < count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];
		const struct stall_futex *futex =
			thread->object_kind ? find_futex(snapshot, thread->object) : NULL;

		if (!futex || thread->object == done)
			continue;
		done = thread->object;
		if (snapshot->thread_count - count < snapshot->futex_count)
			add_owner(snapshot, count,
				  stall_lock_decode_object(thread->object_kind, thread->object,
							   futex)
					  .owner);
	}
	qsort(snapshot->threads, snapshot->thread_count, sizeof(*snapshot->threads),
	      compare_threads);
	snapshot->processes[0].thread_count = snapshot->thread_count;
}

static struct stall_error *set_time(struct stall_snapshot *snapshot, const struct inputs *inputs,
				    const struct stall_ring_content *content, uint64_t *ret_now_ns)
{
	const struct stall_ring_header *header = stall_ring_header(inputs->ring);
	uint64_t latest = newest(header->created_ns,
				 newest(content->threads.newest_ns, content->releases.newest_ns));

	*ret_now_ns = inputs->live ? stall_clock_ns(CLOCK_MONOTONIC) : latest;
	snapshot->wall_ns = inputs->live ? stall_clock_ns(CLOCK_REALTIME)
					 : header->created_wall_ns + (latest - header->created_ns);
	snapshot->backend_reason =
		strdup(inputs->live ? "the ring of a process that runs"
				    : "the ring that a process left behind when it ended");
	return snapshot->backend_reason ? NULL : &stall_enomem;
}

static struct stall_error *fill(struct stall_snapshot *snapshot, struct inputs *inputs,
				const struct stall_ring_content *content)
{
	uint64_t now_ns;
	struct stall_error *err = set_time(snapshot, inputs, content, &now_ns);

	if (!err)
		err = fill_process(snapshot, inputs);
	if (!err)
		err = stall_ring_words_add(snapshot, 0, &content->threads, &content->releases);
	if (!err)
		err = fill_threads(snapshot, &content->threads,
				   inputs->options->snapshot.max_threads, now_ns);
	if (err)
		return err;
	add_owners(snapshot);
	err = stall_ring_releases_add(snapshot, 0, &content->releases, now_ns);
	if (!err)
		err = note_modules(snapshot);
	return err ? err : stall_ring_note(snapshot, 0, inputs->ring, content);
}

static struct stall_error *create(void *arg, struct stall_arena *arena, struct stall_snapshot **ret)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	struct inputs *inputs = arg;
	struct stall_ring_content content;
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	struct stall_error *err = stall_ring_open_fd(inputs->ring_fd, inputs->options->ring, &ring);
	if (err)
		return err;
	inputs->ring = ring;
	err = stall_ring_content_init(&content, ring, arena, inputs->options->snapshot.max_stack);
	if (err)
		return err;
	struct stall_snapshot *snapshot = calloc(1, sizeof(*snapshot));
	if (snapshot) {
		snapshot->arena = arena;
		snapshot->backend = "inproc";
		stall_ring_snapshot_init(snapshot);
		err = fill(snapshot, inputs, &content);
		snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	} else {
		err = &stall_enomem;
	}
	stall_ring_content_deinit(&content);
	if (err) {
		stall_snapshot_destroy(snapshot);
		return err;
	}
	*ret = snapshot;
	return NULL;
}

struct stall_error *stall_ring_capture(const struct stall_ring_capture_options *options,
				       struct stall_output *output, bool *ret_partial)
{
	struct inputs inputs = {
		.options = options,
		.ring_fd = -1,
		.sysroot = -1,
	};
	const struct stall_saved_capture saved = {
		.path = options->ring,
		.what = "ring",
		.worker = options->worker,
		.open = open_inputs,
		.create = create,
		.arg = &inputs,
	};
	struct stall_error *err =
		options->sysroot ? stall_path_add_root(options->sysroot, 0, &inputs.sysroot) : NULL;

	return err ? err : stall_saved_capture(&saved, output, ret_partial);
}
