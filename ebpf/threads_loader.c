// SPDX-License-Identifier: Apache-2.0
#include "ebpf/threads_loader.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "ebpf/bpf_error.h"
#include "ebpf/pid_set.h"
#include "threads.skel.h"

#define INITIAL_PIDNS 0xEFFFFFFCU // PROC_PID_INIT_INO, include/linux/proc_ns.h

struct stall_bpf_threads {
	struct threads *skeleton;
	struct bpf_link *whole;	  // all tasks of the system, filtered by the program
	struct bpf_link *limited; // to the one process; NULL: not possible, or several targets
	struct stall_pid_set tgids;
	bool no_limit;	// the kernel refused to limit it
	bool no_single; // or to have it over one thread
	pid_t chosen[STALL_BPF_MAX_CHOSEN];
	size_t chosen_count;
};

const struct stall_bpf_thread *stall_bpf_records_next(const struct stall_bpf_records *records,
						      size_t *offset)
{
	const struct stall_bpf_thread *thread = (void *)(records->data + *offset);
	size_t left = records->size - *offset;

	if (left < sizeof(*thread) || thread->magic != STALL_BPF_MAGIC ||
	    thread->kernel_frame_count > STALL_BPF_KERNEL_FRAMES)
		return NULL;
	size_t size = sizeof(*thread) + thread->kernel_frame_count * sizeof(uint64_t);
	if (left < size)
		return NULL;
	*offset += size;
	return thread;
}

static int load(uint32_t pidns, struct threads **ret)
{
	struct threads *skeleton = threads__open();

	if (!skeleton)
		return errno ? errno : ENOMEM;
	skeleton->rodata->reader_pidns = pidns;
	skeleton->rodata->reader_is_initial = pidns == INITIAL_PIDNS;
	int rc = threads__load(skeleton);
	if (rc) {
		threads__destroy(skeleton);
		return -rc;
	}
	*ret = skeleton;
	return 0;
}

static struct stall_error *load_skeleton(struct threads **ret)
{
	struct stall_bpf_log log;
	unsigned int pidns;
	int rc;
	struct stall_error *err = stall_bpf_pid_namespace(&pidns);

	if (err)
		return err;
	stall_bpf_log_begin(&log);
	rc = load(pidns, ret);
	stall_bpf_log_end(&log);
	return rc ? stall_bpf_load_error(rc, "the BPF task iterator", log.text) : NULL;
}

static struct bpf_link *attach(struct stall_bpf_threads *threads, pid_t pid)
{
	return stall_task_iterator_attach(threads->skeleton->progs.stall_threads, pid);
}

struct stall_error *stall_bpf_threads_create(struct stall_bpf_threads **ret)
{
	struct stall_bpf_threads *threads = calloc(1, sizeof(*threads));

	if (!threads)
		return &stall_enomem;
	struct stall_error *err = load_skeleton(&threads->skeleton);
	if (!err) {
		threads->whole = attach(threads, 0);
		if (!threads->whole)
			err = stall_error_os(errno, "cannot attach the BPF task iterator");
	}
	if (err) {
		stall_bpf_threads_destroy(threads);
		return err;
	}
	*ret = threads;
	return NULL;
}

void stall_bpf_threads_destroy(struct stall_bpf_threads *threads)
{
	if (!threads)
		return;
	bpf_link__destroy(threads->limited);
	bpf_link__destroy(threads->whole);
	threads__destroy(threads->skeleton);
	stall_pid_set_deinit(&threads->tgids);
	free(threads);
}

bool stall_bpf_threads_is_limited(const struct stall_bpf_threads *threads)
{
	return threads->limited != NULL;
}

struct stall_error *stall_bpf_threads_set_targets(struct stall_bpf_threads *threads,
						  const pid_t *tgids, size_t count)
{
	if (count > STALL_BPF_MAX_PROCESSES)
		return stall_error_create(STALL_ERROR_LIMIT,
					  "more than %d processes in one capture",
					  STALL_BPF_MAX_PROCESSES);
	if (count == threads->tgids.count &&
	    !memcmp(tgids, threads->tgids.pids, count * sizeof(*tgids)))
		return NULL;
	bpf_link__destroy(threads->limited);
	threads->limited = NULL;
	struct stall_error *err =
		stall_pid_set_fill(&threads->tgids, bpf_map__fd(threads->skeleton->maps.targets),
				   tgids, count);
	if (err)
		return err;
	// Only one walk over all tasks sees several processes at one moment.
	if (count == 1 && !threads->no_limit) {
		threads->limited = attach(threads, tgids[0]);
		threads->no_limit = !threads->limited;
	}
	return NULL;
}

static struct stall_error *set_chosen(struct stall_bpf_threads *threads,
				      const struct stall_bpf_run *run)
{
	int fd = bpf_map__fd(threads->skeleton->maps.chosen);
	uint8_t one = 1;

	threads->skeleton->bss->chosen_only = run->tids != NULL;
	if (!run->tids || (run->tid_count == threads->chosen_count &&
			   !memcmp(run->tids, threads->chosen, run->tid_count * sizeof(pid_t))))
		return NULL;
	for (size_t i = 0; i < threads->chosen_count; i++)
		bpf_map_delete_elem(fd, &threads->chosen[i]);
	threads->chosen_count = 0;
	for (size_t i = 0; i < run->tid_count && i < STALL_BPF_MAX_CHOSEN; i++) {
		if (bpf_map_update_elem(fd, &run->tids[i], &one, BPF_ANY) < 0)
			return stall_error_os(errno, "cannot choose thread %d in the BPF map",
					      run->tids[i]);
		threads->chosen[threads->chosen_count++] = run->tids[i];
	}
	return NULL;
}

// One by one: the walk over a process takes longer than this for its first threads.
#define MAX_SINGLE 8

static bool is_single(const struct stall_bpf_threads *threads, const struct stall_bpf_run *run)
{
	return run->tids && run->tid_count <= MAX_SINGLE && threads->limited && !threads->no_single;
}

// False: the kernel has no iterator over one thread.
static bool run_single(struct stall_bpf_threads *threads, const struct stall_bpf_run *run,
		       struct stall_bpf_records *records, struct stall_error **ret)
{
	records->size = 0;
	records->cut = false;
	for (size_t i = 0; !*ret && i < run->tid_count; i++) {
		struct bpf_link *link =
			stall_task_iterator_attach_thread(threads->skeleton->progs.stall_threads,
							  run->tids[i]);

		if (!link && errno == ESRCH) // it has ended: no record
			continue;
		if (!link) {
			threads->no_single = true;
			return false;
		}
		*ret = stall_task_iterator_add(link, run->max_bytes, records);
		bpf_link__destroy(link);
	}
	return true;
}

struct stall_error *stall_bpf_threads_run(struct stall_bpf_threads *threads,
					  const struct stall_bpf_run *run,
					  struct stall_bpf_records *records)
{
	struct threads__bss *bss = threads->skeleton->bss;
	struct stall_error *err = set_chosen(threads, run);

	if (err)
		return err;
	bss->with_kernel_stacks = run->kernel_stacks;
	bss->saw_last = 0;
	memset(&bss->common, 0, sizeof(bss->common));
	// A kernel that limits nothing runs over all: the program keeps to the chosen ones anyway.
	if (is_single(threads, run) && run_single(threads, run, records, &err))
		return err;
	if (!threads->limited)
		return stall_task_iterator_run(threads->whole, run->max_bytes, records);
	err = stall_task_iterator_run(threads->limited, run->max_bytes, records);
	// Limited to a process, the kernel walks from thread to thread by number and stops early
	// when the current one ends meanwhile (task_group_seq_get_next, kernel/bpf/task_iter.c).
	// The walk over all tasks does not.
	if (!err && !records->cut && !*(volatile __u32 *)&bss->saw_last)
		err = stall_task_iterator_run(threads->whole, run->max_bytes, records);
	return err;
}
