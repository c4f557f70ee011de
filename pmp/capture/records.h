// SPDX-License-Identifier: Apache-2.0
// The records `lock` and `trigger` of docs/capture-format.md.
#ifndef STALL_RECORDS_H
#define STALL_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/json_writer.h"
#include "lock/lock.h"

// Writes the members of the record.
void stall_lock_record_write(const struct stall_lock *lock, size_t id, struct stall_json *json);

// The reason for a capture that was not requested.
struct stall_trigger {
	const char *reason; // "threshold", "convoy"
	const char *kind;   // of the wait, as in stallscope.waits/1
	const char *name;   // of the lock or file; NULL not known
	uint64_t address;   // of the lock word, 0: a file
	pid_t pid, tid;
	uint64_t length_ns; // of the wait so far, when its record was received
	uint64_t threshold_ns;
	uint32_t waiters; // in a wait for the same lock or file
	// CLOCK_MONOTONIC: the threshold was passed; the record was received; all stacks were
	// copied.
	uint64_t crossed_ns, received_ns, copied_ns;
	uint64_t suppressed; // captures that were not taken since the previous one
};

// Writes the members of the record. A name that is not known may be that of a lock of the capture.
void stall_trigger_write(const struct stall_trigger *trigger, const struct stall_locks *locks,
			 struct stall_json *json);

#endif
