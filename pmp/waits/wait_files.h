// SPDX-License-Identifier: Apache-2.0
// Paths of the files that threads wait for.
#ifndef STALL_WAIT_FILES_H
#define STALL_WAIT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ebpf/waits.h"
#include "proc/target.h"

// The path of a file of the kernel's record, as the target sees it: by its descriptor where that is
// still the same file, else from the names in the record, which are the last few of the path
// (".../c/d"). *ret_deleted: it was unlinked. Free *ret.
struct stall_error *stall_wait_file_path(const struct stall_target *target,
					 const struct stall_wait_file *file, char **ret,
					 bool *ret_deleted);

// The same for a file of which only the key is known: searches the descriptors of the process. *ret
// is NULL where it is not among them.
struct stall_error *stall_wait_file_search(const struct stall_target *target,
					   const struct stall_wait_key *key, char **ret,
					   bool *ret_deleted);

// The path of a name that a program gave, which may be relative to its working directory. Free *ret.
struct stall_error *stall_wait_file_absolute(const char *cwd, const char *path, char **ret);

// From the names of a record alone.
struct stall_error *stall_wait_file_join(const struct stall_wait_file *file, char **ret);

// Whether stat(2) and the kernel mean the same file.
bool stall_wait_file_is(const struct stall_wait_key *key, uint64_t st_dev, uint64_t st_ino);

#endif
