// SPDX-License-Identifier: Apache-2.0
// The backends of a server as it shows them in pg_stat_activity: its array of PgBackendStatus.
#ifndef STALL_POSTGRES_ENTRIES_H
#define STALL_POSTGRES_ENTRIES_H

#include "base/error.h"
#include "introspect/postgres_server.h"
#include "introspect/sessions.h"

// Appends the backends. None are appended where one of the entries is not what it should be.
struct stall_error *stall_postgres_read_entries(const struct stall_postgres_server *server,
						struct stall_sessions *sessions);

#endif
