// SPDX-License-Identifier: Apache-2.0
// One process, held so that a reused pid is never mistaken for it.
#ifndef STALL_TARGET_H
#define STALL_TARGET_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_target {
	pid_t pid;
	int pidfd;  // pidfd_open(2); -1 where the kernel has none (before 5.3)
	int procfd; // O_PATH directory /proc/READER; its files read as gone once that is
	// Its memory and maps are read through this thread: the leader, or where the leader has
	// ended before the others, one of them (then a stat file is that thread's).
	pid_t reader;
	uint64_t start_time; // /proc/PID/stat field 22, clock ticks since boot
};

struct stall_error *stall_target_init(struct stall_target *target, pid_t pid);
void stall_target_deinit(struct stall_target *target);

// NULL while the very process that was opened still runs (not a zombie, not another one).
struct stall_error *stall_target_check(const struct stall_target *target);

// TIDs from /proc/PID/task, sorted, at most `max` (STALL_ERROR_LIMIT above it). Free *ret.
struct stall_error *stall_target_tids(const struct stall_target *target, size_t max, pid_t **ret,
				      size_t *ret_count);

// The numbers of the files that the process has open: NULL with errno, and -1 at the end.
DIR *stall_target_open_files(const struct stall_target *target);
int stall_next_open_file(DIR *dir);

// The kernel shows paths of another process from our root, not from its own. Returns the path as the
// process sees it: without the root that stall_target_root returned, "" for none or for one that is not
// below ours (a container's).
void stall_target_root(const struct stall_target *target, char *ret, size_t size);
const char *stall_path_in_root(const char *path, const char *root);

#endif
