// SPDX-License-Identifier: Apache-2.0
// One process, held so that a reused pid is never mistaken for it. Only pmp/proc reads by it.
#ifndef STALL_TARGET_HANDLE_H
#define STALL_TARGET_HANDLE_H

#include <stdint.h>
#include <sys/types.h>

struct stall_target {
	pid_t pid;
	int pidfd;  // pidfd_open(2); -1 where the kernel has none (before 5.3)
	int procfd; // O_PATH directory /proc/READER; its files read as gone once that is
	// Its memory and maps are read through this thread: the leader, or where the leader has
	// ended before the others, one of them (then a stat file is that thread's).
	pid_t reader;
	uint64_t start_time; // /proc/PID/stat field 22, clock ticks since boot
};

#define STALL_TARGET_NONE ((struct stall_target){.pidfd = -1, .procfd = -1})

#endif
