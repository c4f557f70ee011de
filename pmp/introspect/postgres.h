// SPDX-License-Identifier: Apache-2.0
// What each backend of a PostgreSQL runs, and which one it waits for, from the server's shared
// memory: no SQL is needed, and no calibration.
#ifndef STALL_POSTGRES_H
#define STALL_POSTGRES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/layout.h"
#include "introspect/sessions.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

#define STALL_POSTGRES_NO_OWNER UINT32_MAX

enum stall_postgres_object {
	STALL_POSTGRES_TABLE, // a relation, or a part of it
	STALL_POSTGRES_ROW,   // or a transaction, for its rows
	STALL_POSTGRES_OTHER, // another object, a virtual transaction, an advisory lock
};

// A backend that waits for a lock of the lock manager, in two reads. `owner` holds it in a mode that conflicts, or
// is in front of it in the queue. Of several, it is one of them.
struct stall_postgres_wait {
	uint32_t thread; // both are indexes into the snapshot's threads
	uint32_t owner;	 // STALL_POSTGRES_NO_OWNER: unknown, or none of this snapshot's
	pid_t owner_raw; // as in memory; 0: unknown, or a prepared transaction
	uint64_t lock;	 // address of the lock in shared memory
	enum stall_postgres_object object;
	char name[STALL_SESSION_NAME];
	uint32_t mode; // that it waits for: 1 AccessShareLock to 8 AccessExclusiveLock
};

struct stall_postgres_waits {
	struct stall_postgres_wait *waits;
	size_t count;
};

// Whether a process can be one of PostgreSQL's, by the name of its program.
bool stall_postgres_is(const struct stall_process *process);

// Appends the backends among the processes of the snapshot. A server that does not keep its data where
// its version does gives none: they are counted as rejected. `layout` may be NULL.
struct stall_error *stall_postgres_read(const struct stall_snapshot *snapshot,
					struct stall_worker *worker,
					const struct stall_layout *layout,
					struct stall_sessions *sessions,
					struct stall_postgres_waits *ret);
void stall_postgres_waits_deinit(struct stall_postgres_waits *waits);

#endif
