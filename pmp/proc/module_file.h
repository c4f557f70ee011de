// SPDX-License-Identifier: Apache-2.0
// An ELF module of a process. Opens the very file that the process has mapped, even if its path now
// names another one.
#ifndef STALL_MODULE_FILE_H
#define STALL_MODULE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "proc/target_handle.h"

// A file mapped executable, or the vdso.
struct stall_module {
	char *path;	     // as the target sees it, without " (deleted)"; "[vdso]"
	uint64_t start, end; // of its executable mapping, lowest to highest
	uint64_t offset;     // file offset of the mapping at `start`
	uint64_t dev, ino;   // 0 for the vdso
	bool deleted;	     // the path was unlinked or replaced since it was mapped
	int fd;		     // open for reading, -1 where that failed (see `error`)
	bool local;	     // of the open file: on a file system of this host, which answers
	bool shared;	     // fd and error belong to another module of the same file, which can be
			     // one of another process of the snapshot
	char *error;	     // why fd is -1, or NULL
	uint64_t st_dev;     // of the open file, by fstat(2)
	uint64_t st_ino;
};

// Fills module->fd, or module->error. `start` and `end` are those of one mapping of the file, as in
// /proc/PID/maps. Fails only where memory is short.
struct stall_error *stall_module_open(const struct stall_target *target,
				      struct stall_module *module, uint64_t start, uint64_t end);

// The same without any right on the process; `target` is NULL when it has ended. Tries the path as
// we see it first, which is the right file where dev and ino are equal.
struct stall_error *stall_module_open_path(const struct stall_target *target,
					   struct stall_module *module, uint64_t start,
					   uint64_t end);

// By its path under a folder, as of a stall_path (-1: "/"), whatever file that is.
struct stall_error *stall_module_open_under(int folder, struct stall_module *module);

// A file's name may really end in " (deleted)": corrects path and deleted.
struct stall_error *stall_module_settle_path(const struct stall_target *target,
					     struct stall_module *module);

#endif
