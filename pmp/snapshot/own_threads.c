// SPDX-License-Identifier: Apache-2.0
#include "snapshot/own_threads.h"

// `tid` 0: all.
static void drop(struct stall_own_threads *own, pid_t pid, pid_t tid)
{
	size_t left = 0;

	for (size_t i = 0; i < own->count; i++) {
		const struct stall_own_thread thread = own->threads[i];

		if (thread.pid != pid || (tid && thread.tid != tid))
			own->threads[left++] = thread;
	}
	own->count = left;
}

struct stall_error *stall_own_threads_add(struct stall_own_threads *own, pid_t pid, pid_t tid)
{
	drop(own, pid, tid);
	if (own->count == STALL_MAX_IGNORED)
		return stall_error_create(STALL_ERROR_LIMIT, "%d threads are ignored already",
					  STALL_MAX_IGNORED);
	own->threads[own->count++] = (struct stall_own_thread){pid, tid};
	return NULL;
}

void stall_own_threads_remove(struct stall_own_threads *own, pid_t pid, pid_t tid)
{
	drop(own, pid, tid);
}

void stall_own_threads_drop(struct stall_own_threads *own, pid_t pid)
{
	drop(own, pid, 0);
}

static bool has(const struct stall_own_threads *own, pid_t pid, pid_t tid)
{
	for (size_t i = 0; i < own->count; i++)
		if (own->threads[i].pid == pid && own->threads[i].tid == tid)
			return true;
	return false;
}

void stall_own_threads_mark(const struct stall_own_threads *own, struct stall_snapshot *snapshot)
{
	for (size_t i = 0; own->count && i < snapshot->thread_count; i++) {
		struct stall_thread *thread = &snapshot->threads[i];

		thread->own = has(own, snapshot->processes[thread->process].target.pid,
				  thread->ns_tid ? thread->ns_tid : thread->tid);
	}
}
