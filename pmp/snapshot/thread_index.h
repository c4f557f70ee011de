// SPDX-License-Identifier: Apache-2.0
// Finds threads of a snapshot by the numbers that the kernel reports them with.
#ifndef STALL_THREAD_INDEX_H
#define STALL_THREAD_INDEX_H

#include "ebpf/threads_loader.h"
#include "snapshot/snapshot.h"

#define STALL_NO_PROCESS UINT32_MAX
#define STALL_NO_THREAD SIZE_MAX

struct stall_thread_index {
	const struct stall_snapshot *snapshot;
	struct stall_process_number *processes; // sorted by tgid
};

struct stall_error *stall_thread_index_init(struct stall_thread_index *index,
					    const struct stall_snapshot *snapshot);
void stall_thread_index_deinit(struct stall_thread_index *index);

// The index into snapshot->processes, or STALL_NO_PROCESS.
uint32_t stall_thread_index_process(const struct stall_thread_index *index, pid_t tgid);
// The index into snapshot->threads, or STALL_NO_THREAD.
size_t stall_thread_index_find(const struct stall_thread_index *index, pid_t tgid, pid_t tid);

struct stall_found_thread {
	uint32_t process;
	const struct stall_bpf_thread *record;
};

// All living threads of a run, by process and tid, before there are snapshot->threads. A leader
// that has ended is listed as long as its process exists; ret_dead[process] counts other ended
// threads.
struct stall_error *stall_thread_index_sort(const struct stall_thread_index *index,
					    const struct stall_bpf_records *records,
					    struct stall_found_thread **ret, size_t *ret_count,
					    size_t *ret_dead);

#endif
