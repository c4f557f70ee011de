// SPDX-License-Identifier: Apache-2.0
// Which backend waits for which, from the lock manager's tables in shared memory (storage/lock.h).
#ifndef STALL_POSTGRES_LOCKS_H
#define STALL_POSTGRES_LOCKS_H

#include "base/error.h"
#include "introspect/postgres_server.h"
#include "introspect/postgres_waits.h"

// Appends the waits of the server's backends.
struct stall_error *stall_postgres_read_locks(const struct stall_postgres_server *server,
					      struct stall_postgres_waits *waits);

#endif
