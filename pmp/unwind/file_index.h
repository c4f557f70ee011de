// SPDX-License-Identifier: Apache-2.0
// The ELF files below directories, by build-id.
#ifndef STALL_FILE_INDEX_H
#define STALL_FILE_INDEX_H

#include <stddef.h>

#include "base/error.h"

struct stall_indexed_file {
	char *build_id; // hex
	char *path;
};

struct stall_file_index {
	struct stall_indexed_file *files;
	size_t count, capacity;
	size_t seen; // directory entries, against the limit
};

// Adds the files below the directory: bounded in depth and number, without following links to
// directories.
struct stall_error *stall_file_index_add(struct stall_file_index *index, const char *dir);
void stall_file_index_deinit(struct stall_file_index *index);

#endif
