// SPDX-License-Identifier: Apache-2.0
// A capture of an existing file: a core file, a ring. It is hostile, so it is read in a child
// without privileges.
#ifndef STALL_SAVED_CAPTURE_H
#define STALL_SAVED_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/output.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_saved_capture {
	const char *path; // for messages
	const char *what; // "core file"
	struct stall_worker_options worker;
	const char *const *strings;
	size_t string_count;
	// Called in the child: it opens the file, whose disk may not answer, and then has no right
	// to do so.
	struct stall_error *(*open)(void *arg);
	struct stall_error *(*create)(void *arg, struct stall_arena *arena,
				      struct stall_snapshot **ret);
	void *arg;
};

// *ret_partial: a note in the capture says what is missing.
struct stall_error *stall_saved_capture(const struct stall_saved_capture *saved,
					struct stall_output *output, bool *ret_partial);

// Opens an input for it; *ret is unchanged where `path` is NULL. `how` as of stall_path_open().
struct stall_error *stall_saved_open(const char *path, unsigned int how, int *ret);

#endif
