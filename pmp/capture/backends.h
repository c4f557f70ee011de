// SPDX-License-Identifier: Apache-2.0
// The choice of a capture's backend.
#ifndef STALL_BACKENDS_H
#define STALL_BACKENDS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "snapshot/backend.h"

// STALL_BACKENDS, in its order.
extern const struct stall_backend *const stall_backends[];
extern const size_t stall_backend_count;

// `name` is "auto" or a backend's. Auto takes the first that works, never one that stops threads
// unless allow_stop, and a ring only where nothing else works; *ret_reason has the reason (free
// it).
struct stall_error *stall_backend_choose(const char *name, bool allow_stop,
					 const struct stall_snapshot_options *options,
					 const struct stall_backend **ret, char **ret_reason);

#endif
