// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_processes.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "watch/watch_slots.h"
#include "watch/watch_state.h"
#include "watch/watch_stats.h"

#define AWAIT_NS                                                                                   \
	UINT64_C(100000000) // from one attempt to open the rings of those awaited to the next

struct stall_error *stall_watch_poll_fd(struct stall_watch *watch, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (fd >= 0 && epoll_ctl(watch->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		return stall_error_os(errno, "epoll_ctl");
	return NULL;
}

struct stall_error *stall_watch_probe_server(struct stall_watch *watch,
					     struct stall_wait_process *process)
{
	return watch->source.calls->probe_server(watch->source.state, watch->worker,
						 process->snapshot);
}

struct stall_error *stall_watch_end(struct stall_watch *watch, struct stall_wait_process *process)
{
	int pidfd = stall_watch_target(process)->pidfd;

	if (pidfd >= 0)
		epoll_ctl(watch->epoll, EPOLL_CTL_DEL, pidfd, NULL);
	struct stall_error *err = stall_watch_take_stats(watch);
	watch->source.calls->remove(watch->source.state, process->pid);
	stall_wait_process_end(&watch->processes, process);
	return err;
}

static struct stall_error *add(struct stall_watch *watch, pid_t pid)
{
	struct stall_error *err = stall_wait_processes_add(&watch->processes, &watch->arena, pid);

	if (err)
		return err;
	struct stall_wait_process *process = stall_wait_processes_find(&watch->processes, pid);
	err = stall_watch_poll_fd(watch, stall_watch_target(process)->pidfd);
	if (!err)
		err = stall_watch_probe_server(watch, process);
	if (!err)
		err = watch->source.calls->add(watch->source.state, pid);
	if (!err)
		err = stall_watch_slots_grow(watch);
	if (err) {
		struct stall_error *failed = stall_watch_end(watch, process);
		stall_error_destroy(failed);
		watch->processes.count--;
		free(watch->processes.processes[watch->processes.count].exe);
	}
	return err;
}

// A process that is added to a running watch may not have its ring yet: a thread makes it with its
// first record. *err is taken over where the ring is awaited.
static bool await_process(struct stall_watch *watch, pid_t pid, struct stall_error **err)
{
	if (!*err || (*err)->code != STALL_ERROR_UNSUPPORTED || !watch->started_ns ||
	    !watch->source.calls->has_objects || watch->awaited_count == STALL_WATCH_AWAITED)
		return false;
	stall_error_destroy(*err);
	*err = NULL;
	watch->awaited[watch->awaited_count++] = pid;
	return true;
}

struct stall_error *stall_watch_add(struct stall_watch *watch, pid_t pid)
{
	struct stall_error *err = add(watch, pid);

	return await_process(watch, pid, &err) ? NULL : err;
}

struct stall_error *stall_watch_open_awaited(struct stall_watch *watch)
{
	size_t count = watch->awaited_count;

	if (!count || watch->received_ns - watch->awaited_ns < AWAIT_NS)
		return NULL;
	watch->awaited_ns = watch->received_ns;
	watch->awaited_count = 0;
	for (size_t i = 0; i < count; i++) {
		pid_t pid = watch->awaited[i];
		struct stall_error *err = add(watch, pid);

		if (!err || await_process(watch, pid, &err))
			continue;
		if (err->code == STALL_ERROR_NO_MEMORY)
			return err;
		stall_error_destroy(err);
		watch->gone = pid;
	}
	return NULL;
}

size_t stall_watch_alive(const struct stall_watch *watch)
{
	return watch->processes.alive + watch->awaited_count;
}

pid_t stall_watch_take_ended(struct stall_watch *watch)
{
	pid_t gone = watch->gone;

	watch->gone = 0;
	if (gone)
		return gone;
	for (size_t i = 0; i < watch->processes.count; i++) {
		struct stall_wait_process *process = &watch->processes.processes[i];

		if (!process->ended || process->end_reported)
			continue;
		process->end_reported = true;
		return process->pid;
	}
	return 0;
}

struct stall_error *stall_watch_check_processes(struct stall_watch *watch)
{
	for (size_t i = 0; i < watch->processes.count; i++) {
		struct stall_wait_process *process = &watch->processes.processes[i];

		if (process->ended)
			continue;
		struct stall_error *gone = stall_target_check(stall_watch_target(process));
		if (!gone)
			continue;
		stall_error_destroy(gone);
		struct stall_error *err = stall_watch_end(watch, process);
		if (err)
			return err;
	}
	return NULL;
}
