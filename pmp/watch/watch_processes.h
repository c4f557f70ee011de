// SPDX-License-Identifier: Apache-2.0
// The processes of a watch: they come, execute other programs, and end.
#ifndef STALL_WATCH_PROCESSES_H
#define STALL_WATCH_PROCESSES_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "waits/wait_process.h"

struct stall_watch;

// Adds a process, e.g. the server after its restart; totals continue. A process without a ring is
// watched as soon as it has one.
struct stall_error *stall_watch_add(struct stall_watch *watch, pid_t pid);
// Processes that are left; 0: all have ended.
size_t stall_watch_alive(const struct stall_watch *watch);
// A process that has ended since the last call; 0: none.
pid_t stall_watch_take_ended(struct stall_watch *watch);

// Has the watch's epoll wake up for it, too; -1: for none.
struct stall_error *stall_watch_poll_fd(struct stall_watch *watch, int fd);
// The process has ended.
struct stall_error *stall_watch_end(struct stall_watch *watch, struct stall_wait_process *process);
// It executes this program, now or from now on.
struct stall_error *stall_watch_probe_server(struct stall_watch *watch,
					     struct stall_wait_process *process);
// Ends processes whose end no record has reported.
struct stall_error *stall_watch_check_processes(struct stall_watch *watch);
// Opens the rings of processes that were too young to have one. Tries only at intervals.
struct stall_error *stall_watch_open_awaited(struct stall_watch *watch);

#endif
