// SPDX-License-Identifier: Apache-2.0
// The processes of a serving probe, and their end.
#ifndef STALL_TARGETS_H
#define STALL_TARGETS_H

#include <poll.h>

#include "serve/server.h"

struct stall_error *stall_targets_init(struct stall_server *server, const pid_t *pids,
				       size_t count);
void stall_targets_deinit(struct stall_server *server);

// Adds a process in place of those that have ended: captures and the watch continue with it.
struct stall_error *stall_targets_take_up(struct stall_server *server, pid_t pid);

// STALL_ERROR_USAGE: it is none of them.
struct stall_error *stall_targets_check_pid(const struct stall_server *server, pid_t pid);

// For poll(2): a descriptor for each target, -1 for one whose end is known.
void stall_targets_poll(const struct stall_server *server, struct pollfd *fds);
// Call it when one of those is readable. Of several processes one may end (a connection of
// PostgreSQL's); the end of the last is reported, and is an error unless the server waits for another.
struct stall_error *stall_targets_check(struct stall_server *server);

#endif
