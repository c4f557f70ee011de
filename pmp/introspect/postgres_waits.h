// SPDX-License-Identifier: Apache-2.0
// Which backend of a PostgreSQL waits for which.
#ifndef STALL_POSTGRES_WAITS_H
#define STALL_POSTGRES_WAITS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "introspect/sessions.h"

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
	size_t servers; // whose memory was read
};

static inline void stall_postgres_waits_deinit(struct stall_postgres_waits *waits)
{
	free(waits->waits);
	*waits = (struct stall_postgres_waits){};
}

#endif
