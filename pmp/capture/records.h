// SPDX-License-Identifier: Apache-2.0
// The records `lock` and `trigger`, and parts of the first one, of docs/capture-format.md.
#ifndef STALL_RECORDS_H
#define STALL_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/host.h"
#include "base/json_writer.h"
#include "lock/lock.h"

// Write members of the first record.
void stall_host_write(struct stall_json *json, const struct stall_host *host);
void stall_time_write(struct stall_json *json, uint64_t wall_ns);

void stall_note_write(struct stall_json *json, const char *code, const char *message);

// Writes the members of the record.
void stall_lock_record_write(const struct stall_lock *lock, size_t id, struct stall_json *json);

// The reason for a capture that was not requested.
// It outlives the watch that reported the wait, and owns its strings; constants are of the program.
#define STALL_TRIGGER_NAME 4096
struct stall_trigger {
	const char *reason; // "threshold", "convoy"
	const char *kind;   // of the wait, as in stallscope.waits/1
	uint64_t address;   // of the lock word, 0: a file
	pid_t pid, tid;
	uint64_t length_ns; // of the wait so far, when its record was received
	uint64_t threshold_ns;
	uint32_t waiters; // in a wait for the same lock or file
	// CLOCK_MONOTONIC: the threshold was passed; the record was received; all stacks were
	// copied.
	uint64_t crossed_ns, received_ns, copied_ns;
	uint64_t suppressed;	       // captures that were not taken since the previous one
	char name[STALL_TRIGGER_NAME]; // of the lock or file; "": not known
};

// Copies what there is room for. NULL: not known.
void stall_trigger_set_name(struct stall_trigger *trigger, const char *name);

// Writes the members of the record. A name that is not known may be that of a lock of the capture.
void stall_trigger_write(const struct stall_trigger *trigger, const struct stall_locks *locks,
			 struct stall_json *json);

#endif
