// SPDX-License-Identifier: Apache-2.0
// Whose connection each thread is, and what it runs, from the server's memory: no SQL is needed. The
// layout of the build was measured before (docs/calibration.md); without it nothing is read.
#ifndef STALL_SESSIONS_H
#define STALL_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/layout.h"
#include "snapshot/snapshot.h"

#define STALL_SESSION_NAME 128	     // bytes of a name, with its end
#define STALL_SESSION_STATEMENT 4096 // bytes of a statement that are read

struct stall_session {
	uint32_t thread; // index into the snapshot's threads
	uint64_t connection;
	// Ended by a zero, printable; "" unknown or none.
	char user[STALL_SESSION_NAME], host[STALL_SESSION_NAME], database[STALL_SESSION_NAME],
		state[STALL_SESSION_NAME];
	const char *command_name; // static; NULL: `command`
	int command;		  // number in the protocol; -1 unknown
	int transaction;	  // 1 open, 0 none, -1 unknown
	uint64_t transaction_id;  // 0 unknown, or it has none of its own
	uint64_t age_ns;	  // since its statement began; UINT64_MAX unknown
	const char *statement;	  // in the snapshot's arena, any bytes; NULL none or unknown
	size_t statement_size;
	bool cut;  // the statement is longer
	bool last; // the connection is idle: it is the statement before
	// PostgreSQL alone:
	char application[STALL_SESSION_NAME]; // "" unknown or none
	const char *wait_class;		      // static, "Lock"; NULL: it does not wait, or unknown
	uint32_t wait_event;		      // number in its class
};

struct stall_sessions {
	struct stall_session *sessions; // by thread
	size_t count;
	size_t rejected; // objects that did not look like a connection, or changed all the time
	uint64_t read_ns;
};

// Reads those of all threads that ran since the capture before. Memory that cannot be read, a pointer
// that is none, a text that changes meanwhile: the field is unknown, never wrong.
struct stall_error *stall_sessions_read(const struct stall_snapshot *snapshot,
					const struct stall_layout *layout,
					struct stall_sessions *ret);
void stall_sessions_deinit(struct stall_sessions *sessions);

// Appends a line {"type":"sessions",…} (docs/probe.md).
void stall_sessions_write(const struct stall_sessions *sessions,
			  const struct stall_snapshot *snapshot, struct stall_json *json);

#endif
