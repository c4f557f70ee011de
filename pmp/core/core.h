// SPDX-License-Identifier: Apache-2.0
// A core file as a snapshot: the same structures as of a live process, so that the worker, the lock
// decoder and the writer need no changes.
#ifndef STALL_CORE_H
#define STALL_CORE_H

#include "base/arena.h"
#include "base/error.h"
#include "snapshot/snapshot.h"

struct stall_core_options {
	int exe_fd;	  // the dumped program, opened by the caller; -1: by its path
	const char *exe;  // its path, for messages; may be NULL
	int sysroot_fd;	  // directory in which the paths of binaries are resolved; -1: "/"
	size_t max_stack; // as in stall_snapshot_options
	size_t max_threads;
};

// Reads an x86-64 ELF core file: a snapshot of one process, backend "core", every stack verified (a
// dumped thread does not run). Missing or inconsistent parts become notes. A core is hostile input:
// call it in a process that has dropped its privileges (sandbox.h), after the worker was forked.
// `core_fd` is kept by the snapshot from success on.
struct stall_error *stall_core_create(struct stall_arena *arena, int core_fd,
				      const struct stall_core_options *options,
				      struct stall_snapshot **ret);

#endif
