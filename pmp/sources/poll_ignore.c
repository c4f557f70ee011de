// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_ignore.h"

#include "base/cleanup.h"
#include "snapshot/proc_thread.h"

static bool has_number(const struct stall_poll_process *process, pid_t tid, pid_t wanted)
{
	struct stall_thread thread = {};
	_cleanup_error_ struct stall_error *err =
		stall_proc_status_read(&process->target, tid, &thread);

	return !err && thread.ns_tid == wanted;
}

// In most cases both numbers are the same.
static struct stall_poll_thread *find_thread(const struct stall_poll_process *process, pid_t tid)
{
	for (size_t i = 0; i < process->count; i++)
		if (process->threads[i]->tid == tid && has_number(process, tid, tid))
			return process->threads[i];
	for (size_t i = 0; i < process->count; i++)
		if (has_number(process, process->threads[i]->tid, tid))
			return process->threads[i];
	return NULL;
}

static struct stall_poll_thread *find(const struct stall_poller *poller, pid_t pid, pid_t tid)
{
	for (size_t i = 0; i < poller->process_count; i++)
		if (poller->processes[i]->target.pid == pid)
			return find_thread(poller->processes[i], tid);
	return NULL;
}

struct stall_error *stall_poller_ignore(struct stall_poller *poller, pid_t pid, pid_t tid, bool on)
{
	stall_poller_lock(poller);
	struct stall_poll_thread *thread = find(poller, pid, tid);
	if (!thread && on) { // it may be younger than the latest pass
		stall_poller_pass(poller);
		thread = find(poller, pid, tid);
	}
	if (thread)
		thread->ignored = on;
	stall_poller_unlock(poller);
	if (thread || !on)
		return NULL;
	return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has no thread %d", pid, tid);
}
