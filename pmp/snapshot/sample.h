// SPDX-License-Identifier: Apache-2.0
// Threads that are on a CPU: a timer of the thread's own CPU time interrupts it once where it runs
// and the kernel copies its registers and stack right there. It is not stopped.
#ifndef STALL_SAMPLE_H
#define STALL_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

#define STALL_MAX_SAMPLED 64 // at once: each takes a file descriptor and a buffer of 128 KiB

struct stall_sample {
	struct stall_thread *thread; // in: tid; out, where taken: registers, stack, kernel frames
	bool taken;
};

// Waits at most timeout_us for all of them. A thread that leaves its CPU meanwhile, or ends, is not
// taken. Fails where none could be sampled because perf events are refused.
struct stall_error *stall_sample_threads(const struct stall_snapshot *snapshot,
					 struct stall_sample *samples, size_t count,
					 size_t max_stack, unsigned int timeout_us);

#endif
