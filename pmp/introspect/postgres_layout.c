// SPDX-License-Identifier: Apache-2.0
#include "introspect/postgres_layout.h"

#include <stddef.h>
#include <string.h>

const char *const stall_postgres_symbols[STALL_PG_SYMBOLS] = {
	[STALL_PG_PID] = "MyProcPid",
	[STALL_PG_ENTRY] = "MyBEEntry",
	[STALL_PG_NUMBER] = "MyProcNumber",
	[STALL_PG_ID] = "MyBackendId",
	[STALL_PG_BACKENDS] = "MaxBackends",
	[STALL_PG_PROC] = "MyProc",
	[STALL_PG_PROCS] = "ProcGlobal",
	[STALL_PG_PORT] = "MyProcPort",
	[STALL_PG_QUERY] = "debug_query_string",
	[STALL_PG_QUERY_SIZE] = "pgstat_track_activity_query_size",
	[STALL_PG_SINCE_10] = "MyXactFlags",
	[STALL_PG_SINCE_11] = "wal_segment_size",
	[STALL_PG_SINCE_12] = "MyStartTimestamp",
	[STALL_PG_SINCE_13] = "MyBackendType",
	[STALL_PG_SINCE_14] = "my_wait_event_info",
	[STALL_PG_SINCE_15] = "wal_decode_buffer_size",
	[STALL_PG_SINCE_16] = "ReservedConnections",
	[STALL_PG_SINCE_17] = "MyProcNumber",
	[STALL_PG_SINCE_18] = "FastPathLockGroupsPerBackend",
};

static const char *const state_names[STALL_PG_STATES] = {
	[STALL_PG_UNDEFINED] = "",
	[STALL_PG_STARTING] = "starting",
	[STALL_PG_IDLE] = "idle",
	[STALL_PG_RUNNING] = "active",
	[STALL_PG_IDLE_IN_TRANSACTION] = "idle in transaction",
	[STALL_PG_FASTPATH] = "fastpath function call",
	[STALL_PG_ABORTED] = "idle in transaction (aborted)",
	[STALL_PG_DISABLED] = "disabled",
};

const char *stall_postgres_state_name(enum stall_postgres_state state)
{
	return state_names[state];
}

// Alike in all of a range of versions.
#define ENTRY_9                                                                                    \
	.entry_size = 320, .pid = 4, .type = STALL_PG_NONE, .proc_start = 8, .xact_start = 16,     \
	.activity_start = 24, .state_start = 32, .database = 40, .user = 44, .client = 48,         \
	.state = 208, .name = 216, .activity = 224, .query_id = STALL_PG_NONE
#define ENTRY_HEAD                                                                                 \
	.pid = 4, .type = 8, .proc_start = 16, .xact_start = 24, .activity_start = 32,             \
	.state_start = 40, .database = 48, .user = 52, .client = 56
#define ENTRY_10                                                                                   \
	ENTRY_HEAD, .entry_size = 328, .state = 216, .name = 224, .activity = 232,                 \
		    .query_id = STALL_PG_NONE
#define ENTRY_12                                                                                   \
	ENTRY_HEAD, .entry_size = 424, .state = 232, .name = 240, .activity = 248,                 \
		    .query_id = STALL_PG_NONE
#define ENTRY_14                                                                                   \
	ENTRY_HEAD, .entry_size = 432, .state = 232, .name = 240, .activity = 248, .query_id = 424
#define ENTRY_18                                                                                   \
	ENTRY_HEAD, .entry_size = 440, .state = 232, .name = 240, .activity = 248, .query_id = 424
#define PROC_10                                                                                    \
	.proc_pid = 52, .proc_database = 64, .wait_lock = 96, .wait_proc_lock = 104,               \
	.wait_mode = 112, .wait_start = STALL_PG_NONE, .proc_count = 16
#define PROC_14                                                                                    \
	.proc_size = 880, .proc_pid = 64, .proc_database = 80, .wait_lock = 112,                   \
	.wait_proc_lock = 120, .wait_mode = 128, .wait_start = 136, .wait_event = 712,             \
	.leader = 840, .proc_count = 32
#define PROC_17                                                                                    \
	.proc_pid = 60, .proc_database = 76, .wait_lock = 112, .wait_proc_lock = 120,              \
	.wait_mode = 128, .wait_start = 136, .wait_event = 712, .proc_count = 32
#define PORT_9 .port_database = 328, .port_user = 336

// The newest first: it is that of the first `since` that the program has.
static const struct {
	enum stall_postgres_symbol since;
	struct stall_postgres_layout layout;
} versions[] = {
	{STALL_PG_SINCE_18,
	 {.version = 1800,
	  ENTRY_18,
	  PROC_17,
	  .proc_size = 832,
	  .leader = 792,
	  .port_database = 384,
	  .port_user = 392}},
	{STALL_PG_SINCE_17,
	 {.version = 1700,
	  ENTRY_14,
	  PROC_17,
	  .proc_size = 888,
	  .leader = 848,
	  .port_database = 320,
	  .port_user = 328}},
	{STALL_PG_SINCE_16, {.version = 1600, ENTRY_14, PROC_14, PORT_9}},
	{STALL_PG_SINCE_15, {.version = 1500, ENTRY_14, PROC_14, PORT_9}},
	{STALL_PG_SINCE_14, {.version = 1400, ENTRY_14, PROC_14, PORT_9}},
	{STALL_PG_SINCE_13,
	 {.version = 1300,
	  ENTRY_12,
	  PROC_10,
	  .proc_size = 856,
	  .wait_event = 684,
	  .leader = 816,
	  PORT_9}},
	{STALL_PG_SINCE_12,
	 {.version = 1200,
	  ENTRY_12,
	  PROC_10,
	  .proc_size = 848,
	  .wait_event = 676,
	  .leader = 808,
	  PORT_9}},
	{STALL_PG_SINCE_11,
	 {.version = 1100,
	  ENTRY_10,
	  PROC_10,
	  .proc_size = 848,
	  .wait_event = 676,
	  .leader = 808,
	  PORT_9}},
	{STALL_PG_SINCE_10,
	 {.version = 1000,
	  ENTRY_10,
	  PROC_10,
	  .proc_size = 816,
	  .wait_event = 676,
	  .leader = 776,
	  PORT_9}},
	// With the semaphores of System V, as it is built on Linux unless somebody wants others.
	{STALL_PG_PROC,
	 {.version = 906,
	  ENTRY_9,
	  PROC_10,
	  .proc_size = 824,
	  .wait_event = 676,
	  .leader = 784,
	  PORT_9}},
};

#define KEY(key, member)                                                                           \
	{                                                                                          \
		key, offsetof(struct stall_postgres_layout, member)                                \
	}
static const struct {
	const char *key;
	size_t member;
} keys[] = {
	KEY("PgBackendStatus#size", entry_size),
	KEY("PgBackendStatus.st_changecount", change_count),
	KEY("PgBackendStatus.st_procpid", pid),
	KEY("PgBackendStatus.st_backendType", type),
	KEY("PgBackendStatus.st_proc_start_timestamp", proc_start),
	KEY("PgBackendStatus.st_xact_start_timestamp", xact_start),
	KEY("PgBackendStatus.st_activity_start_timestamp", activity_start),
	KEY("PgBackendStatus.st_state_start_timestamp", state_start),
	KEY("PgBackendStatus.st_databaseid", database),
	KEY("PgBackendStatus.st_userid", user),
	KEY("PgBackendStatus.st_clientaddr", client),
	KEY("PgBackendStatus.st_state", state),
	KEY("PgBackendStatus.st_appname", name),
	KEY("PgBackendStatus.st_activity", activity),
	KEY("PgBackendStatus.st_activity_raw", activity),
	KEY("PgBackendStatus.st_query_id", query_id),
	KEY("PGPROC#size", proc_size),
	KEY("PGPROC.pid", proc_pid),
	KEY("PGPROC.databaseId", proc_database),
	KEY("PGPROC.waitLock", wait_lock),
	KEY("PGPROC.waitProcLock", wait_proc_lock),
	KEY("PGPROC.waitLockMode", wait_mode),
	KEY("PGPROC.waitStart", wait_start),
	KEY("PGPROC.wait_event_info", wait_event),
	KEY("PGPROC.lockGroupLeader", leader),
	KEY("PROC_HDR.allProcs", procs),
	KEY("PROC_HDR.allProcCount", proc_count),
	KEY("Port.database_name", port_database),
	KEY("Port.user_name", port_user),
};

#define MAX_MEMBER 4096 // offset or size
#define WIDEST 8	// member that is read, but for an address:
#define ADDRESS 32

// What is read of a structure lies in it.
static bool is_sound(const struct stall_postgres_layout *layout)
{
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		int32_t offset = *(const int32_t *)((const char *)layout + keys[i].member);
		bool of_entry = !strncmp(keys[i].key, "PgBackendStatus.", 16);
		bool of_proc = !strncmp(keys[i].key, "PGPROC.", 7);

		if ((of_entry && offset > layout->entry_size - WIDEST) ||
		    (of_proc && offset > layout->proc_size - WIDEST))
			return false;
	}
	return layout->entry_size >= WIDEST && layout->proc_size >= WIDEST &&
	       !(layout->entry_size & 7) && !(layout->proc_size & 7) &&
	       layout->client <= layout->entry_size - ADDRESS &&
	       layout->wait_proc_lock == layout->wait_lock + 8;
}

static bool take_keys(const struct stall_layout *layout, struct stall_postgres_layout *ret)
{
	int64_t value;

	for (size_t i = 0; layout && i < sizeof(keys) / sizeof(*keys); i++) {
		if (!stall_layout_get(layout, keys[i].key, &value))
			continue;
		if (value < 0 || value > MAX_MEMBER)
			return false;
		*(int32_t *)((char *)ret + keys[i].member) = (int32_t)value;
	}
	return is_sound(ret);
}

bool stall_postgres_layout_choose(const uint64_t symbols[STALL_PG_SYMBOLS],
				  const struct stall_layout *layout,
				  struct stall_postgres_layout *ret)
{
	struct stall_postgres_layout chosen;

	if (!symbols[STALL_PG_PROC] || !symbols[STALL_PG_PROCS] || !symbols[STALL_PG_PID])
		return false;
	for (size_t i = 0; i < sizeof(versions) / sizeof(*versions); i++) {
		if (!symbols[versions[i].since])
			continue;
		chosen = versions[i].layout;
		if (!take_keys(layout, &chosen))
			return false;
		*ret = chosen;
		return true;
	}
	return false;
}

bool stall_postgres_state(const struct stall_postgres_layout *layout, uint32_t number,
			  enum stall_postgres_state *ret)
{
	// STATE_STARTING is new in 18, in front of the others.
	bool shifted = layout->version < 1800 && number;

	if (number >= STALL_PG_STATES - (uint32_t)shifted)
		return false;
	number += shifted;
	*ret = (enum stall_postgres_state)number;
	return true;
}

#define CLIENT "client backend"
#define LAUNCHER "autovacuum launcher"
#define AUTOVACUUM "autovacuum worker"
#define WORKER "background worker"
#define WRITER "background writer"
#define CHECKPOINTER "checkpointer"
#define STARTUP "startup"
#define RECEIVER "walreceiver"
#define SENDER "walsender"
#define WAL_WRITER "walwriter"
#define ARCHIVER "archiver"
#define COLLECTOR "stats collector"
#define LOGGER "logger"
#define STANDALONE "standalone backend"
#define SYNC "slotsync worker"
#define SUMMARIZER "walsummarizer"

// BackendType, as GetBackendTypeDesc() names it.
static const char *const types_10[] = {LAUNCHER,     AUTOVACUUM, CLIENT,   WORKER, WRITER,
				       CHECKPOINTER, STARTUP,	 RECEIVER, SENDER, WAL_WRITER};
static const char *const types_13[] = {NULL,	   LAUNCHER,	 AUTOVACUUM, CLIENT,   WORKER,
				       WRITER,	   CHECKPOINTER, STARTUP,    RECEIVER, SENDER,
				       WAL_WRITER, ARCHIVER,	 COLLECTOR,  LOGGER};
static const char *const types_15[] = {NULL,	   LAUNCHER,	 AUTOVACUUM, CLIENT,   WORKER,
				       WRITER,	   CHECKPOINTER, STARTUP,    RECEIVER, SENDER,
				       WAL_WRITER, ARCHIVER,	 LOGGER};
static const char *const types_16[] = {NULL,	ARCHIVER, LAUNCHER,	AUTOVACUUM, CLIENT,
				       WORKER,	WRITER,	  CHECKPOINTER, LOGGER,	    STANDALONE,
				       STARTUP, RECEIVER, SENDER,	WAL_WRITER};
static const char *const types_17[] = {NULL,	 CLIENT,     LAUNCHER,	   AUTOVACUUM,
				       WORKER,	 SENDER,     SYNC,	   STANDALONE,
				       ARCHIVER, WRITER,     CHECKPOINTER, STARTUP,
				       RECEIVER, SUMMARIZER, WAL_WRITER,   LOGGER};
static const char *const types_18[] = {NULL,	    CLIENT,	"dead-end client backend",
				       LAUNCHER,    AUTOVACUUM, WORKER,
				       SENDER,	    SYNC,	STANDALONE,
				       ARCHIVER,    WRITER,	CHECKPOINTER,
				       "io worker", STARTUP,	RECEIVER,
				       SUMMARIZER,  WAL_WRITER, LOGGER};

#define TYPES(since, list)                                                                         \
	{                                                                                          \
		since, list, sizeof(list) / sizeof(*(list))                                        \
	}
static const struct {
	int32_t since;
	const char *const *names;
	size_t count;
} types[] = {
	TYPES(1800, types_18), TYPES(1700, types_17), TYPES(1600, types_16),
	TYPES(1500, types_15), TYPES(1300, types_13), TYPES(1000, types_10),
};

const char *stall_postgres_type(const struct stall_postgres_layout *layout, uint32_t number)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (layout->version >= types[i].since)
			return number < types[i].count ? types[i].names[number] : NULL;
	return NULL;
}

bool stall_postgres_is_client(const char *type)
{
	return type && !strcmp(type, CLIENT);
}

// utils/wait_event.h
const char *stall_postgres_wait_class(uint32_t event)
{
	static const char *const classes[] = {
		[1] = "LWLock",
		[2] = "LWLock",
		[3] = "Lock",
		[4] = "BufferPin",
		[5] = "Activity",
		[6] = "Client",
		[7] = "Extension",
		[8] = "IPC",
		[9] = "Timeout",
		[10] = "IO",
		[11] = "InjectionPoint",
	};
	uint32_t number = event >> 24;

	return number < sizeof(classes) / sizeof(*classes) ? classes[number] : NULL;
}
