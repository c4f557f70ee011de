// SPDX-License-Identifier: Apache-2.0
// A capture of a core file, read in a child without privileges.
#ifndef STALL_CORE_CAPTURE_H
#define STALL_CORE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/output.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_core_capture_options {
	const char *core;
	const char *exe;     // NULL: by the path in the core file
	const char *sysroot; // NULL: "/"
	struct stall_snapshot_options snapshot;
	struct stall_worker_options worker;
	const char *const *strings;
	size_t string_count;
};

// *ret_partial: a note in the capture says what is missing.
struct stall_error *stall_core_capture(const struct stall_core_capture_options *options,
				       struct stall_output *output, bool *ret_partial);

#endif
