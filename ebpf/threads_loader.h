// SPDX-License-Identifier: Apache-2.0
// Loads threads.bpf.c and reads its records of the threads of some processes.
#ifndef STALL_THREADS_LOADER_H
#define STALL_THREADS_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/task_iterator.h"
#include "ebpf/threads.h"

static inline const uint64_t *stall_bpf_kernel_frames(const struct stall_bpf_thread *thread)
{
	return (const uint64_t *)(thread + 1);
}

// Returns the record at *offset and advances *offset to the next; NULL at the end.
const struct stall_bpf_thread *stall_bpf_records_next(const struct stall_bpf_records *records,
						      size_t *offset);

struct stall_bpf_threads;

// Loads the program; one object serves any number of captures.
struct stall_error *stall_bpf_threads_create(struct stall_bpf_threads **ret);
void stall_bpf_threads_destroy(struct stall_bpf_threads *threads);

// Sets the target processes. Cheap where they have not changed.
struct stall_error *stall_bpf_threads_set_targets(struct stall_bpf_threads *threads,
						  const pid_t *tgids, size_t count);

// Whether this kernel limits the iterator to one process (bpf_iter_link_info.task.pid).
bool stall_bpf_threads_is_limited(const struct stall_bpf_threads *threads);

struct stall_bpf_run {
	bool kernel_stacks;
	const pid_t *tids; // only these, at most STALL_BPF_MAX_CHOSEN; NULL: all
	size_t tid_count;
	size_t max_bytes; // of records
};
struct stall_error *stall_bpf_threads_run(struct stall_bpf_threads *threads,
					  const struct stall_bpf_run *run,
					  struct stall_bpf_records *records);

#endif
