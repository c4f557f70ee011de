// SPDX-License-Identifier: Apache-2.0
// A capture from a ring alone: of a server that has ended, or of one that runs but is not read.
#ifndef STALL_RING_CAPTURE_H
#define STALL_RING_CAPTURE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/output.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_ring_capture_options {
	const char *ring;
	const char *sysroot; // NULL: "/"; files are then compared with those that were mapped
	struct stall_snapshot_options snapshot;
	struct stall_worker_options worker;
};

// The moment of the capture is now where the process still runs, else the latest time in the ring.
// *ret_partial: a note in the capture says what is missing.
struct stall_error *stall_ring_capture(const struct stall_ring_capture_options *options,
				       struct stall_output *output, bool *ret_partial);

#endif
