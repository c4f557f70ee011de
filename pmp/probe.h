// SPDX-License-Identifier: Apache-2.0
// One capture, from the choice of a backend to the written records; what can be kept between
// captures of the same processes is kept.
#ifndef STALL_PROBE_H
#define STALL_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "error.h"
#include "output.h"
#include "snapshot.h"
#include "trigger.h"
#include "worker.h"

struct stall_probe_options {
	const pid_t *pids;
	size_t pid_count;
	const char *backend; // "auto" or a name
	bool allow_stop;
	struct stall_snapshot_options snapshot;
	struct stall_worker_options worker;
	const char *const *strings; // names of global variables to read
	size_t string_count;
};

struct stall_probe;

// Chooses and loads the backend, starts the worker.
struct stall_error *stall_probe_create(const struct stall_probe_options *options,
				       struct stall_probe **ret);
void stall_probe_destroy(struct stall_probe *probe);

// Fills the caches by a capture that nobody sees and that stops no thread.
struct stall_error *stall_probe_warm(struct stall_probe *probe);

// *ret_partial: a note in the capture says what is missing.
struct stall_error *stall_probe_capture(struct stall_probe *probe, struct stall_output *output,
					bool *ret_partial);

// The two halves of a capture: the raw copies, which cannot wait, and all the rest. Every take is
// finished before the next. `trigger` NULL: somebody asked for it.
struct stall_error *stall_probe_take(struct stall_probe *probe);
struct stall_error *stall_probe_finish(struct stall_probe *probe,
				       const struct stall_trigger *trigger,
				       struct stall_output *output, bool *ret_partial);

// Other processes from now on; what is known of their files stays known.
struct stall_error *stall_probe_set_targets(struct stall_probe *probe, const pid_t *pids,
					    size_t count);

// For _cleanup_().
static inline void stall_probe_destroyp(struct stall_probe **probe)
{
	stall_probe_destroy(*probe);
}

#endif
