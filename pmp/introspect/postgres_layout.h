// SPDX-License-Identifier: Apache-2.0
// Where versions 9.6 to 18 of PostgreSQL keep things, on x86-64: PgBackendStatus
// (src/include/utils/backend_status.h, before 14 src/include/pgstat.h), PGPROC and PROC_HDR
// (storage/proc.h), Port (libpq/libpq-be.h). What all of them have alike, LOCK and PROCLOCK
// (storage/lock.h), is in postgres_locks.c.
#ifndef STALL_POSTGRES_LAYOUT_H
#define STALL_POSTGRES_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layout.h"

// Variables of the main program.
enum stall_postgres_symbol {
	STALL_PG_PID,	 // MyProcPid
	STALL_PG_ENTRY,	 // MyBEEntry, exported since 14
	STALL_PG_NUMBER, // MyProcNumber, since 17
	STALL_PG_ID,	 // MyBackendId, before
	STALL_PG_BACKENDS,
	STALL_PG_PROC, // MyProc
	STALL_PG_PROCS,
	STALL_PG_PORT,
	STALL_PG_QUERY,
	STALL_PG_QUERY_SIZE,
	// Variables that are new in a version: they show which one it is.
	STALL_PG_SINCE_10,
	STALL_PG_SINCE_11,
	STALL_PG_SINCE_12,
	STALL_PG_SINCE_13,
	STALL_PG_SINCE_14,
	STALL_PG_SINCE_15,
	STALL_PG_SINCE_16,
	STALL_PG_SINCE_17,
	STALL_PG_SINCE_18,
	STALL_PG_SYMBOLS,
};
extern const char *const stall_postgres_symbols[STALL_PG_SYMBOLS];

// States in the order of version 9.6; later ones may begin with others.
enum stall_postgres_state {
	STALL_PG_UNDEFINED,
	STALL_PG_STARTING,
	STALL_PG_IDLE,
	STALL_PG_RUNNING,
	STALL_PG_IDLE_IN_TRANSACTION,
	STALL_PG_FASTPATH,
	STALL_PG_ABORTED,
	STALL_PG_DISABLED,
	STALL_PG_STATES,
};
// "idle in transaction", as pg_stat_activity has it; "" for STALL_PG_UNDEFINED.
const char *stall_postgres_state_name(enum stall_postgres_state state);

#define STALL_PG_NONE -1 // this version has it not

// Offsets and sizes.
struct stall_postgres_layout {
	int32_t version; // 906, 1000, 1100, ...
	// PgBackendStatus
	int32_t entry_size, change_count, pid, type, proc_start, xact_start, activity_start,
		state_start, database, user, client, state, name, activity, query_id;
	// PGPROC
	int32_t proc_size, proc_pid, proc_database, wait_lock, wait_proc_lock, wait_mode,
		wait_start, wait_event, leader;
	// PROC_HDR
	int32_t procs, proc_count;
	// Port
	int32_t port_database, port_user;
};

// `symbols`: their addresses, 0 where the program has them not. `layout` (may be NULL) has the last
// word: "PgBackendStatus.st_procpid", "PGPROC#size". False: it is no PostgreSQL that is known.
bool stall_postgres_layout_choose(const uint64_t symbols[STALL_PG_SYMBOLS],
				  const struct stall_layout *layout,
				  struct stall_postgres_layout *ret);

// False: no such state or type.
bool stall_postgres_state(const struct stall_postgres_layout *layout, uint32_t number,
			  enum stall_postgres_state *ret);
// "client backend"; NULL: no such type, or the version does not keep it.
const char *stall_postgres_type(const struct stall_postgres_layout *layout, uint32_t number);
bool stall_postgres_is_client(const char *type);

// "Lock"; NULL: it does not wait, or there is no such class.
const char *stall_postgres_wait_class(uint32_t event);

#endif
