// SPDX-License-Identifier: Apache-2.0
// What a thread that a uprobe marked waits for.
#ifndef STALL_SERVER_WAIT_H
#define STALL_SERVER_WAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "snapshot/target.h"
#include "waits/server_functions.h"

struct stall_server_wait {
	const struct stall_server_function *function;
	enum stall_wait_role role;
	uint64_t lock; // address of the lock object, 0 unknown
	// One text for all that wait for the same: "latch created at srv0srv.c:1020", "row 2 of
	// page 4 of test.t1 (PRIMARY)", "test.t1"; "": nothing is known.
	char text[160];
};

// Whether the thread is still in the call that the uprobe saw: its stack pointer is below the call's
// frame, and the return address still stands there (8 bytes at server->sp of its memory).
bool stall_server_wait_holds(const struct stall_wait_server *server, uint64_t stack_pointer,
			     uint64_t stacked_return_address);
// The same from the copy of a stack, e.g. that of a record, and surer: the frame above the call must
// be what it was.
bool stall_server_wait_in_copy(const struct stall_wait_server *server, uint64_t stack_address,
			       const uint8_t *stack, size_t stack_size);

// Reads a little of the target's memory; what it finds there is checked and never trusted. Row and
// metadata locks are known only while the thread waits. False: `server` is of no function that is
// known. `target` may be NULL: then nothing is read.
bool stall_server_wait_describe(const struct stall_wait_server *server,
				const struct stall_target *target, struct stall_server_wait *ret);

#endif
