// SPDX-License-Identifier: Apache-2.0
// The undo record of a poke: a file of JSON lines. The first is the caller's, and on disk before
// anything is written to the target; what follows is one event a line, appended here.
#ifndef STALL_POKE_RECORD_H
#define STALL_POKE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum stall_poke_event {
	STALL_POKE_SUPERVISED, // by this process
	STALL_POKE_WRITTEN,
	STALL_POKE_NOT_WRITTEN, // why
	STALL_POKE_UNDONE,	// found: the state before
	STALL_POKE_REFUSED,	// an undo, why
	STALL_POKE_ENDED,	// the process has ended
};

// Opens a record of our own that nobody else can write to: regular, 0600, one name.
struct stall_error *stall_poke_record_open(const char *path, int *ret_fd);

// The same file again, for a process that has inherited `fd`: a lock belongs to what was opened.
int stall_poke_record_reopen(int fd);

// One process at a time changes the target for a record. With `patience_ms` over, false: the process that has
// it was stopped, or waits for a disk. The kernel gives it back when that process ends.
bool stall_poke_record_lock(int fd, unsigned int patience_ms);
void stall_poke_record_unlock(int fd);

// Nothing is left to undo: an event says that it was undone, was never written, or that the process
// has ended.
bool stall_poke_record_is_over(int fd);

// The line is on disk afterwards. `detail`: why, or the state that was found; NULL where there is
// none. `by`: who it is.
struct stall_error *stall_poke_record_add(int fd, enum stall_poke_event event, const char *by,
					  const char *detail);

#endif
