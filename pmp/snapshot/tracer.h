// SPDX-License-Identifier: Apache-2.0
// The part of the ptrace backend that runs in a disposable child: stops one thread after the other
// and lets each go before it stops the next. It writes nothing to the target. When it is killed,
// the kernel lets go of whatever it held.
#ifndef STALL_TRACER_H
#define STALL_TRACER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

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

// In memory that is shared with the parent, which believes nothing but what is in it.
struct stall_trace {
	_Atomic size_t next;	   // slot that is worked at
	_Atomic size_t arena_used; // what the child has taken of the arena
	_Atomic size_t full;	   // threads for whose stacks it had no room
	size_t count;
	struct stall_trace_slot slots[]; // one per thread of the snapshot
};

// Works on trace->next and the following slots. Returns early, to be run again in a new child,
// when a thread is late: with its tracer gone that thread is never stopped.
void stall_tracer_run(const struct stall_snapshot *snapshot,
		      const struct stall_snapshot_options *options, struct stall_trace *trace);

#endif
