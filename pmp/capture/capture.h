// SPDX-License-Identifier: Apache-2.0
// Writes one capture as docs/capture-format.md describes it.
#ifndef STALL_CAPTURE_H
#define STALL_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/host.h"
#include "base/output.h"
#include "capture/capture_stacks.h"
#include "capture/records.h"
#include "lock/lock.h"
#include "snapshot/blocked_files.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

// Text of a global variable of the target.
struct stall_capture_string {
	uint32_t process;
	const char *name;
	char *text;
};

struct stall_capture {
	const struct stall_snapshot *snapshot;
	const struct stall_unwound *unwound;
	const struct stall_locks *locks;
	const struct stall_locks *locks_before; // of the capture before in the burst, or NULL
	const struct stall_capture_stacks *stacks;
	const struct stall_blocked_files *blocked; // NULL: none
	const struct stall_host *host;
	const struct stall_capture_string *strings;
	size_t string_count;
	const struct stall_trigger *trigger; // NULL: a user or program requested it
	uint64_t started_ns;		     // CLOCK_MONOTONIC
	uint64_t attach_ns, unwind_ns, locks_ns;
	size_t max_table_bytes; // of its frames, and of its stacks; 0: STALL_MAX_TABLE_BYTES
};
// Readers refuse files of more than 512 MiB.
#define STALL_MAX_TABLE_BYTES ((size_t)128 << 20)

struct stall_error *stall_capture_write(const struct stall_capture *capture,
					struct stall_output *output);

#endif
