// SPDX-License-Identifier: Apache-2.0
// Copies of blocked threads without any help of the kernel's but /proc: stack pointer and program
// counter from /proc/PID/task/TID/syscall before and after; the same twice, with no context switch
// in between, is exact.
#ifndef STALL_PROC_COPY_H
#define STALL_PROC_COPY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

// Threads that stall_proc_copy() did not finish: without room for their stacks in the arena; not
// read before the deadline; read, but with no time to copy their stacks or to check whether they
// ran meanwhile; not known to run 64-bit code.
struct stall_proc_left {
	size_t full, unseen, open, is_32bit;
};

// Fills and labels the threads of the snapshot with these indexes, in as many passes as the options
// allow until the deadline, which began at started_ns (CLOCK_MONOTONIC). gone[i]: threads[i] has
// ended, or was not read.
struct stall_error *stall_proc_copy(struct stall_snapshot *snapshot, const size_t *threads,
				    size_t count, const struct stall_snapshot_options *options,
				    uint64_t started_ns, bool *gone, struct stall_proc_left *ret);

// Notes what was left undone for the deadline, or because there was no room.
struct stall_error *stall_proc_note(struct stall_snapshot *snapshot,
				    const struct stall_snapshot_options *options,
				    const struct stall_proc_left *left);

// Which of these threads, that stall_proc_copy() has labelled verified or truncated, ran since:
// ret[i] is of threads[i].
struct stall_error *stall_proc_find_runs(const struct stall_snapshot *snapshot,
					 const uint32_t *threads, size_t count, bool *ret);

// Removes the threads from the snapshot for which gone[i] is set, and counts them as lost.
void stall_proc_drop_gone(struct stall_snapshot *snapshot, const bool *gone);

#endif
