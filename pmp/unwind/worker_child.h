// SPDX-License-Identifier: Apache-2.0
// The worker's side.
#ifndef STALL_WORKER_CHILD_H
#define STALL_WORKER_CHILD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "unwind/search_dirs.h"

struct stall_worker_child {
	const struct stall_arena *arena;
	uint8_t *region;
	size_t region_size;
	int socket, files; // for jobs, and for files that the parent opens
	pid_t parent;
	const struct stall_search_dirs *debug_dirs, *pack_dirs;
};

// In the forked child: drops its privileges and runs jobs until the socket closes.
_Noreturn void stall_worker_child_main(struct stall_worker_child *child);

#endif
