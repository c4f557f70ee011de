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

#endif
