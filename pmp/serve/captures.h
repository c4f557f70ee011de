// SPDX-License-Identifier: Apache-2.0
// The captures of a serving probe: those on request, and those that waits take.
#ifndef STALL_CAPTURES_H
#define STALL_CAPTURES_H

#include "serve/server.h"

// To a file, or to the answers where `path` is NULL.
struct stall_error *stall_captures_snap(struct stall_server *server, const char *path);

// Copies all stacks at once, for a wait; the name of its lock may be known before the capture is
// finished.
struct stall_error *stall_captures_begin(struct stall_server *server,
					 const struct stall_trigger *trigger, uint64_t wait);
struct stall_error *stall_captures_finish(struct stall_server *server, const char *name,
					  uint64_t address);

// A burst into a file goes on while other work is done. Each capture with a file that a wait takes
// is the first of one, where the options want that.
struct stall_error *stall_captures_burst(struct stall_server *server, const char *path);
// Takes the capture that is due.
struct stall_error *stall_captures_run(struct stall_server *server);
// The sooner of a timeout of poll(2), -1: never, and the next capture of a burst.
int stall_captures_sooner_ms(const struct stall_server *server, int timeout_ms);
// Before anything else is done with the capturer: the burst ends with what it has.
struct stall_error *stall_captures_end_burst(struct stall_server *server);
void stall_captures_deinit(struct stall_server *server);

#endif
