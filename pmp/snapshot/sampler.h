// SPDX-License-Identifier: Apache-2.0
// What processes run between two captures of a burst: a timer on each CPU looks about a thousand
// times a second which thread is there, and the kernel copies the registers and the stack of one of
// theirs. No thread is stopped.
#ifndef STALL_SAMPLER_H
#define STALL_SAMPLER_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

struct stall_sampler;

// Loads what chooses the samples: some milliseconds, for any number of bursts.
struct stall_error *stall_sampler_create(size_t max_stack, struct stall_sampler **ret);
void stall_sampler_destroy(struct stall_sampler *sampler);

// Begins to sample what these processes run, until it is stopped.
struct stall_error *stall_sampler_start(struct stall_sampler *sampler, const pid_t *tgids,
					size_t count);
void stall_sampler_stop(struct stall_sampler *sampler);

// Adds the samples since the last call (or the start) to a snapshot of the processes whose threads
// were captured.
struct stall_error *stall_sampler_take(struct stall_sampler *sampler,
				       struct stall_snapshot *snapshot);

#endif
