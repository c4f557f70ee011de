// SPDX-License-Identifier: Apache-2.0
// Paths of the files that threads wait for.
#ifndef STALL_WAIT_FILES_H
#define STALL_WAIT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/error.h"
#include "ebpf/waits.h"
#include "snapshot/target.h"

// What a database server keeps in a file, by the file's name.
enum stall_file_class {
	STALL_FILE_REDO,
	STALL_FILE_DOUBLEWRITE,
	STALL_FILE_DATA,
	STALL_FILE_BINLOG,
	STALL_FILE_UNDO,
	STALL_FILE_TEMPORARY,
	STALL_FILE_RELAY,
	STALL_FILE_OTHER,
	STALL_FILE_CLASSES,
};

const char *stall_file_class_name(enum stall_file_class class);

// MySQL and MariaDB 5.1 and later, RocksDB, PostgreSQL. `deleted`: unlinked while it is in use.
enum stall_file_class stall_file_class(const char *path, bool deleted);

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

// The path to which a link of /proc/PID leads ("fd/3"), or one with an absolute name, as the target
// sees it. False: there is no such link (any more).
bool stall_wait_file_link(const struct stall_target *target, const char *link, char *ret,
			  size_t size);
// What is open at a descriptor: its path, and whether it was unlinked, which the path then no longer
// says. False: there is no such descriptor.
bool stall_wait_file_at(const struct stall_target *target, int fd, char *ret_path, size_t size,
			struct statx *ret_status, bool *ret_deleted);
// stat(2) that asks no server of a network: it may not answer.
bool stall_wait_file_stat(int folder, const char *path, int flags, struct statx *ret);
// Removes what the kernel appends to the path of a file that was unlinked.
bool stall_wait_file_cut_deleted(char *path);

// Whether stat(2) and the kernel mean the same file.
bool stall_wait_file_is(const struct stall_wait_key *key, uint64_t st_dev, uint64_t st_ino);

#endif
