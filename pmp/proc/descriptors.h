// SPDX-License-Identifier: Apache-2.0
// The files that a process has open.
#ifndef STALL_DESCRIPTORS_H
#define STALL_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "proc/path_status.h"
#include "proc/target_handle.h"

struct stall_descriptor {
	int fd;
	struct stall_path_status status;
	bool deleted;	  // it has no name any more
	const char *path; // as the process sees it
};

// Visits those that are files, at most `max`, until `visit` returns false. *ret_lost: those whose
// status could not be read (late ones too).
typedef bool (*stall_descriptor_fn)(void *arg, const struct stall_descriptor *descriptor);
struct stall_error *stall_descriptors_visit(const struct stall_target *target, size_t max,
					    stall_descriptor_fn visit, void *arg, size_t *ret_lost);

// One of them. False: there is none, or it is not a file. `descriptor->path` is in `path`.
bool stall_descriptor_read(const struct stall_target *target, int fd,
			   struct stall_descriptor *descriptor, char *path, size_t size);

#endif
