// SPDX-License-Identifier: Apache-2.0
// From a raw snapshot to a written capture: unwinding, locks, names, records.
#ifndef STALL_FINISH_H
#define STALL_FINISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/host.h"
#include "base/output.h"
#include "capture/kernel_symbols.h"
#include "capture/records.h"
#include "introspect/postgres_waits.h"
#include "lock/lock.h"
#include "lock/memory_locks.h"
#include "snapshot/backend.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_finish {
	struct stall_snapshot *snapshot;
	const struct stall_backend *backend; // of the snapshot; NULL: a file
	void *backend_state;
	struct stall_worker *worker;
	struct stall_kernel_symbols *kernel_symbols; // NULL: not needed
	const char *const *strings;
	size_t string_count;
	const struct stall_memory_locks *memory; // as read for this snapshot; NULL: nothing
	uint64_t memory_ns;			 // that it took
	const struct stall_host *host;
	const struct stall_trigger *trigger; // NULL: a user or program requested it
	uint64_t started_ns;		     // CLOCK_MONOTONIC
	uint64_t attach_ns;
	// In a burst: those of the capture before, replaced by those of this one. NULL: no burst.
	struct stall_locks *locks;
	// Which backends of PostgreSQL wait for which; NULL: not known.
	const struct stall_postgres_waits *server_waits;
	const struct stall_blocked_files *blocked; // NULL: not known
};

// *ret_partial: a note in the capture says what is missing.
struct stall_error *stall_finish(const struct stall_finish *finish, struct stall_output *output,
				 bool *ret_partial);

#endif
