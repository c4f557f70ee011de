// SPDX-License-Identifier: Apache-2.0
// What a thread's connection is and runs.
#ifndef STALL_SESSION_H
#define STALL_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
	uint64_t age_ns;	  // since its statement began, or it is idle; UINT64_MAX unknown
	const char *statement;	  // in the snapshot's arena, any bytes; NULL none or unknown
	size_t statement_size;
	bool cut;  // the statement is longer
	bool last; // the connection is idle: it is the statement before
	// PostgreSQL alone:
	char application[STALL_SESSION_NAME]; // "" unknown or none
	const char *wait_class;		      // static, "Lock"; NULL: it does not wait, or unknown
	uint32_t wait_event;		      // number in its class
};

#endif
