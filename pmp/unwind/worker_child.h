// SPDX-License-Identifier: Apache-2.0
// The worker's side.
#ifndef STALL_WORKER_CHILD_H
#define STALL_WORKER_CHILD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"

struct stall_worker_child {
	const struct stall_arena *arena;
	uint8_t *region;
	size_t region_size;
	int socket;
	pid_t parent;
	const char *debug_dir; // may be NULL
	const char *const *pack_dirs;
	size_t pack_dir_count;
};

// In the forked child: drops its privileges and runs jobs until the socket closes.
_Noreturn void stall_worker_child_main(struct stall_worker_child *child);

#endif
