// SPDX-License-Identifier: Apache-2.0
// Folders in which debug files or packs are searched for. They are opened before a process gives up
// its rights, which asks its parent for the files in them (proc/path_broker.h).
#ifndef STALL_SEARCH_DIRS_H
#define STALL_SEARCH_DIRS_H

#include <stddef.h>

#include "base/error.h"

#define STALL_MAX_SEARCH_DIRS 8 // given by the caller

struct stall_search_dirs {
	struct {
		int root; // for the `folder` of a stall_path
		char *path;
	} dirs[STALL_MAX_SEARCH_DIRS + 1];
	size_t count;
	struct stall_error *distrusted; // why the first of those was left out, or NULL
};

// A folder that is missing is skipped; the system's comes last by itself.
struct stall_error *stall_search_dirs_init(struct stall_search_dirs *dirs, const char *const *paths,
					   size_t count, const char *system);
void stall_search_dirs_deinit(struct stall_search_dirs *dirs);

// A new error for a folder that was left out since others can change it; NULL: there is none.
struct stall_error *stall_search_dirs_distrust(const struct stall_search_dirs *dirs);

// A regular file of dirs->dirs[index] that nobody else can change; errors are those of
// stall_path_open().
struct stall_error *stall_search_dirs_open(const struct stall_search_dirs *dirs, size_t index,
					   const char *name, int *ret);

#endif
