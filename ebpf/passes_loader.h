// SPDX-License-Identifier: Apache-2.0
// Passes of the threads of a process, which find waits while nothing is attached.
#ifndef STALL_PASSES_LOADER_H
#define STALL_PASSES_LOADER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/passes.h"
#include "ebpf/task_iterator.h"

struct stall_bpf_waits;

// What a pass saw of a process.
struct stall_bpf_pass {
	uint32_t threads;
	bool gone;   // there is no such process
	bool execed; // it executes another program than in the pass before
};

// One pass over a process that was added. Waits of threads that have not run since the pass before
// begin in their slots. While nothing is attached it also ends waits and frees slots of threads that
// have ended. `samples` (may be NULL): struct stall_pass_sample of each thread that has run since
// its last sample.
struct stall_error *stall_bpf_waits_pass(struct stall_bpf_waits *waits, pid_t pid,
					 struct stall_bpf_records *samples,
					 struct stall_bpf_pass *ret);
// What the latest pass saw of the thread with this slot; NULL: nothing.
const struct stall_pass *stall_bpf_waits_passed(const struct stall_bpf_waits *waits, size_t slot);

// Of waits_loader.c: a process that is not watched any more, and all.
void stall_passes_remove(struct stall_bpf_waits *waits, pid_t pid);
void stall_passes_deinit(struct stall_bpf_waits *waits);

#endif
