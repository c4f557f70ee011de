// SPDX-License-Identifier: Apache-2.0
// What each backend of a PostgreSQL runs, and which one it waits for, from the server's shared
// memory: no SQL is needed, and no calibration.
#ifndef STALL_POSTGRES_H
#define STALL_POSTGRES_H

#include <stdbool.h>

#include "base/error.h"
#include "base/layout.h"
#include "introspect/postgres_waits.h"
#include "introspect/sessions.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

// Whether a process can be one of PostgreSQL's, by the name of its program.
bool stall_postgres_is(const struct stall_process *process);

// Appends the backends among the processes of the snapshot. A server that does not keep its data where
// its version does gives none: they are counted as rejected. `layout` may be NULL.
struct stall_error *stall_postgres_read(const struct stall_snapshot *snapshot,
					struct stall_worker *worker,
					const struct stall_layout *layout,
					struct stall_sessions *sessions,
					struct stall_postgres_waits *ret);

#endif
