// SPDX-License-Identifier: Apache-2.0
// Threads of a server that serve the caller of this program: it is not to see itself.
#ifndef STALL_OWN_THREADS_H
#define STALL_OWN_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/waits.h"
#include "snapshot/snapshot.h"

struct stall_own_threads {
	struct stall_own_thread {
		pid_t pid; // in our pid namespace
		pid_t tid; // in its own
	} threads[STALL_MAX_IGNORED];
	size_t count;
};

// STALL_ERROR_LIMIT: there is no room.
struct stall_error *stall_own_threads_add(struct stall_own_threads *own, pid_t pid, pid_t tid);
void stall_own_threads_remove(struct stall_own_threads *own, pid_t pid, pid_t tid);
// All of a process that has ended.
void stall_own_threads_drop(struct stall_own_threads *own, pid_t pid);

// Sets `own` of these threads of a snapshot.
void stall_own_threads_mark(const struct stall_own_threads *own, struct stall_snapshot *snapshot);

#endif
