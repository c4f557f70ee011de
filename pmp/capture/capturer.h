// SPDX-License-Identifier: Apache-2.0
// One capture, from the choice of a backend to the written records. Caches are kept for later
// captures of the same processes.
#ifndef STALL_CAPTURER_H
#define STALL_CAPTURER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/layout.h"
#include "base/output.h"
#include "capture/records.h"
#include "snapshot/own_threads.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_capturer_options {
	const pid_t *pids;
	size_t pid_count;
	const char *backend; // "auto" or a name
	bool allow_stop;
	struct stall_snapshot_options snapshot;
	struct stall_worker_options worker;
	const char *const *strings; // names of global variables to read
	size_t string_count;
	const struct stall_layout *layout; // of the server; not owned
	const char *const *layouts;	   // of its versions: stall_memory_layouts
	size_t layout_count;
};

struct stall_capturer;

// Chooses and loads the backend, starts the worker.
struct stall_error *stall_capturer_create(const struct stall_capturer_options *options,
					  struct stall_capturer **ret);
void stall_capturer_destroy(struct stall_capturer *capturer);

// Fills the caches with a capture that is not written and stops no thread.
struct stall_error *stall_capturer_warm(struct stall_capturer *capturer);

// *ret_partial: a note in the capture says what is missing.
struct stall_error *stall_capturer_capture(struct stall_capturer *capturer,
					   struct stall_output *output, bool *ret_partial);

// The two halves of a capture: the raw copies, which are urgent, and the rest. Each `take` must be
// finished before the next. `trigger` NULL: a user or program requested it.
struct stall_error *stall_capturer_take(struct stall_capturer *capturer);
struct stall_error *stall_capturer_finish(struct stall_capturer *capturer,
					  const struct stall_trigger *trigger,
					  struct stall_output *output, bool *ret_partial);

// What the connections of the captures since the last call ran, read from the server's memory: lines
// of JSON (introspect/sessions.h), "" where the options have no layout. Free *ret.
struct stall_error *stall_capturer_sessions(struct stall_capturer *capturer, char **ret,
					    size_t *ret_size);
// The layout that later captures use; it is not owned.
void stall_capturer_set_layout(struct stall_capturer *capturer, const struct stall_layout *layout);

// Threads that are marked in later captures; it is not owned.
void stall_capturer_set_own(struct stall_capturer *capturer, const struct stall_own_threads *own);

// Captures between `begin` and `end` are those of a burst: each is written as what changed since the
// one before (docs/capture-format.md, "A burst"), with samples of what ran in between. Threads that
// did not run since are neither copied nor unwound again. A backend that cannot say what ran takes each
// capture whole.
struct stall_error *stall_capturer_burst_begin(struct stall_capturer *capturer);
void stall_capturer_burst_end(struct stall_capturer *capturer);

// Whether each capture stops threads.
bool stall_capturer_stops_threads(const struct stall_capturer *capturer);

// Switches to other processes; caches of their files are kept.
struct stall_error *stall_capturer_set_targets(struct stall_capturer *capturer, const pid_t *pids,
					       size_t count);

// For _cleanup_().
static inline void stall_capturer_destroyp(struct stall_capturer **capturer)
{
	stall_capturer_destroy(*capturer);
}

#endif
