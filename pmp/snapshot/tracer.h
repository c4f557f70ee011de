// SPDX-License-Identifier: Apache-2.0
// The part of the ptrace backend that runs in a disposable child: stops one thread after the other
// and releases each before it stops the next. It writes nothing to the target. When it is killed,
// the kernel releases its thread.
#ifndef STALL_TRACER_H
#define STALL_TRACER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "snapshot/call_mode.h"
#include "snapshot/snapshot.h"

enum stall_trace_outcome {
	STALL_TRACE_PENDING, // not reached
	STALL_TRACE_TAKEN,
	STALL_TRACE_LEFT,    // not stopped on purpose: it would see EINTR, or cannot stop now
	STALL_TRACE_REFUSED, // ptrace failed: errnum
	STALL_TRACE_LATE,    // did not stop in time
	STALL_TRACE_GONE,    // has ended
};

struct stall_trace_slot {
	_Atomic enum stall_trace_outcome outcome; // set last
	int errnum;
	struct stall_thread thread; // its stack is in the arena
};

// In memory that is shared with the parent, the child's only output.
struct stall_trace {
	_Atomic size_t next;	   // the current slot
	_Atomic size_t arena_used; // the part of the arena that the child has used
	_Atomic size_t full;	   // threads for whose stacks it had no room
	struct stall_call_places places;
	size_t count;
	struct stall_trace_slot slots[]; // one per thread of the snapshot
};

// Handles trace->next and the following slots. Returns early when a thread is late, to be run again
// in a new child: without its tracer that thread is never stopped.
void stall_tracer_run(const struct stall_snapshot *snapshot,
		      const struct stall_snapshot_options *options, struct stall_trace *trace);

#endif
