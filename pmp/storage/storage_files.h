// SPDX-License-Identifier: Apache-2.0
// The names of the files that a process writes: as the process sees them, and now.
#ifndef STALL_STORAGE_FILES_H
#define STALL_STORAGE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ebpf/waits.h"
#include "proc/target.h"

struct stall_storage_file {
	struct stall_wait_file *record; // NULL: the kernel has not reported it yet
	char *path;			// NULL: unknown
	bool deleted; // it has no name any more, or got another one after it was closed
	// What stat(2) says of it, which may differ from the kernel's own numbers.
	bool found;
	uint64_t dev, ino;
	int fd; // at which it was last open; -1: unknown
	uint32_t searches;
	bool gone; // it is neither open nor at its path
};

// By the index of their stats.
struct stall_storage_files {
	struct stall_storage_file *files;
	size_t count;
};

struct stall_error *stall_storage_files_init(struct stall_storage_files *files, size_t count);
void stall_storage_files_deinit(struct stall_storage_files *files);

// A record of the kernel; the file is open in a moment like this one.
struct stall_error *stall_storage_files_take(struct stall_storage_files *files, size_t index,
					     const struct stall_target *target,
					     const struct stall_wait_file *record);
// Finds the present names of all files of the process.
struct stall_error *stall_storage_files_update(struct stall_storage_files *files,
					       const struct stall_target *target);

#endif
