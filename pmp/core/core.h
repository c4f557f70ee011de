// SPDX-License-Identifier: Apache-2.0
// A core file as a snapshot: the same structures as of a live process, so that the worker, the lock
// decoder and the writer need no changes.
#ifndef STALL_CORE_H
#define STALL_CORE_H

#include "base/arena.h"
#include "base/error.h"
#include "core/core_files.h"
#include "snapshot/snapshot.h"

struct stall_core_options {
	struct stall_core_files files;
	const char *exe;  // the path of files.exe_fd, for messages; may be NULL
	size_t max_stack; // as in stall_snapshot_options
	size_t max_threads;
};

// Reads an x86-64 ELF core file: a snapshot of one process, backend "core", every stack verified (a
// dumped thread does not run). Missing or inconsistent parts become notes. A core is hostile input:
// call it in a process that has dropped its privileges (sandbox/sandbox.h), after the worker was forked.
// Takes the descriptors over.
struct stall_error *stall_core_create(struct stall_arena *arena, int core_fd,
				      const struct stall_core_options *options,
				      struct stall_snapshot **ret);

#endif
