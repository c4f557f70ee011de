// SPDX-License-Identifier: Apache-2.0
// The open files of modules, by what /proc/PID/maps says of them: a server with a process for each
// connection has the same files in all of them.
#ifndef STALL_OPEN_FILES_H
#define STALL_OPEN_FILES_H

#include "base/error.h"
#include "base/hash_index.h"
#include "proc/module_file.h"

#define STALL_MAX_OPEN_FILES 4096

struct stall_open_files {
	struct stall_module **modules;
	size_t count, capacity;
	struct stall_hash_index by_number;
};
void stall_open_files_deinit(struct stall_open_files *files);

// Reads the numbers of the open file, if it is open.
void stall_module_identify(struct stall_module *module);

// Modules that share a descriptor with another are left out.
struct stall_error *stall_open_files_add(struct stall_open_files *files,
					 struct stall_module *module);
// One that has the same file, or the same error for it; NULL: there is none. `files` may be NULL. A
// module that is not open yet is only found where its numbers in maps are those of one file.
struct stall_module *stall_open_files_find(const struct stall_open_files *files,
					   const struct stall_module *module);

#endif
