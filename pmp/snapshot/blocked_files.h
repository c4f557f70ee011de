// SPDX-License-Identifier: Apache-2.0
// The files in whose system calls threads are blocked (state D), and where these are mounted. Only
// /proc is read: no file is touched, as its file system may be the one that does not answer.
#ifndef STALL_BLOCKED_FILES_H
#define STALL_BLOCKED_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stall_snapshot;

#define STALL_MAX_BLOCKED_FILES 64

struct stall_blocked_file {
	uint32_t thread; // index into stall_snapshot.threads
	int mount_id;	 // in the process's namespace; -1: not known
	char *path;	 // as the process sees it
	// NULL: not known. The mount point is one of ours, for commands of this host.
	char *mount, *device, *type;
};

struct stall_blocked_files {
	struct stall_blocked_file files[STALL_MAX_BLOCKED_FILES]; // by thread
	size_t count;
};

// Of live processes. A thread that has left its call meanwhile has none, and where /proc cannot be
// read there is none either.
void stall_blocked_files_read(const struct stall_snapshot *snapshot,
			      struct stall_blocked_files *ret);
void stall_blocked_files_deinit(struct stall_blocked_files *files);

// NULL: this thread has none.
const struct stall_blocked_file *stall_blocked_file_of(const struct stall_blocked_files *files,
						       uint32_t thread);

#endif
