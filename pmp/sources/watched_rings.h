// SPDX-License-Identifier: Apache-2.0
// The rings of the watched processes.
#ifndef STALL_WATCHED_RINGS_H
#define STALL_WATCHED_RINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"
#include "sources/ring_counts.h"
#include "sources/ring_scan.h"
#include "waits/wait_source.h"

// The reported problems of a ring.
struct stall_ring_trouble {
	bool off, cut, read_only;
	uint32_t maps_failed;
};

// The ring of a process.
struct stall_watched_ring {
	struct stall_ring *ring;
	bool added, replaced;
	bool left; // by a process that executes another program: nothing happens in it any more
	pid_t pid;
	struct stall_ring_counts *counts;
	struct stall_ring_scan scan;
	uint64_t cursor, overwritten;
	uint64_t lost_before[STALL_LOST_CAUSES];
	// Thresholds that were written, and those before.
	uint64_t set_ns[STALL_WAIT_KINDS], old_ns[STALL_WAIT_KINDS];
	uint32_t set;		 // bit of each
	uint64_t folder_changed; // mtime in ns
	struct stall_ring_trouble trouble;
	char why_off[160], why_read_only[240];
};

struct stall_watched_rings {
	struct stall_wait_source_options options;
	struct stall_watched_ring *rings; // in the order of their slots
	size_t count;
	struct stall_ring_ghosts ghosts;
	uint64_t lost[STALL_LOST_CAUSES]; // of those that have ended
	uint64_t checked_ns;
	uint64_t recorded_ns; // when the last record came
	uint8_t *stack;	      // room for a record's
	size_t stack_room;
};

// NULL: it has none that is open.
struct stall_watched_ring *stall_watched_ring_find(const struct stall_watched_rings *source,
						   pid_t pid);
struct stall_watched_ring *stall_watched_ring_of_slot(const struct stall_watched_rings *source,
						      size_t slot);

// False: the ring cannot be written. The former value is restored when the ring is dropped, unless
// another process has set one since.
bool stall_watched_ring_set_threshold(struct stall_watched_ring *ringed, enum stall_wait_kind kind,
				      uint64_t ns);

// Opens the ring of a process, and gives its slots numbers; begins to count and to scan.
struct stall_error *stall_watched_ring_open(struct stall_watched_rings *source, pid_t pid,
					    struct stall_watched_ring **ret);
struct stall_error *stall_watched_ring_begin(struct stall_watched_rings *source,
					     struct stall_watched_ring *ringed);
void stall_watched_ring_drop(struct stall_watched_rings *source, struct stall_watched_ring *ringed);
// Sets ringed->left where the process executes another program, and ringed->replaced where that has a
// ring of its own.
void stall_watched_ring_check(const struct stall_watched_rings *source,
			      struct stall_watched_ring *ringed);
struct stall_error *stall_watched_ring_replace(struct stall_watched_rings *source,
					       struct stall_watched_ring **ringed);

// Its losses since the watching began.
void stall_watched_ring_add_lost(const struct stall_watched_ring *ringed,
				 uint64_t lost[STALL_LOST_CAUSES]);

#endif
