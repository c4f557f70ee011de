// SPDX-License-Identifier: Apache-2.0
// The ELF files below directories, by build-id.
#ifndef STALL_FILE_INDEX_H
#define STALL_FILE_INDEX_H

#include <stddef.h>

#include "base/error.h"
#include "unwind/search_dirs.h"

struct stall_indexed_file {
	char *build_id; // hex
	char *name;	// below dirs->dirs[dir]
	size_t dir;
};

struct stall_file_index {
	struct stall_indexed_file *files;
	size_t count, capacity;
	size_t seen; // directory entries, against the limit
};

// Adds the files below the directory: bounded in depth and number, without following links to
// directories.
struct stall_error *stall_file_index_add(struct stall_file_index *index,
					 const struct stall_search_dirs *dirs, size_t dir);
void stall_file_index_deinit(struct stall_file_index *index);

#endif
