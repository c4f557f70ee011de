// SPDX-License-Identifier: Apache-2.0
// Whose connection each thread is, and what it runs, from the server's memory: no SQL is needed. The
// layout of the build was measured before (docs/calibration.md); without it nothing is read.
#ifndef STALL_SESSIONS_H
#define STALL_SESSIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/layout.h"
#include "introspect/session.h"
#include "snapshot/snapshot.h"

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
