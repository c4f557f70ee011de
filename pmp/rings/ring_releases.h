// SPDX-License-Identifier: Apache-2.0
// Releases of locks that threads had waited long for: WAKER records of a ring.
#ifndef STALL_RING_RELEASES_H
#define STALL_RING_RELEASES_H

#include "base/error.h"
#include "rings/ring_file.h"
#include "snapshot/snapshot.h"

#define STALL_RELEASE_AGE_NS UINT64_C(10000000000) // older ones do not concern this stall
#define STALL_RELEASES_LOCK 16			   // read per lock
#define STALL_RELEASES 512			   // in total

struct stall_ring_release {
	struct stall_ring_record_copy record;
	uint8_t *stack; // in the arena
};

struct stall_ring_releases {
	struct stall_ring_release *releases; // the latest first
	size_t count;
	uint64_t newest_ns; // of all records
};

struct stall_error *stall_ring_releases_init(struct stall_ring_releases *releases,
					     struct stall_ring *ring, struct stall_arena *arena,
					     size_t max_stack);
void stall_ring_releases_deinit(struct stall_ring_releases *releases);

// When the object was released last, CLOCK_MONOTONIC; 0: not known.
uint64_t stall_ring_released_ns(const struct stall_ring_releases *releases, uint64_t object);

// Adds those that are not too old to the snapshot, whose threads must be complete.
struct stall_error *stall_ring_releases_add(struct stall_snapshot *snapshot, uint32_t process,
					    const struct stall_ring_releases *releases,
					    uint64_t now_ns);

#endif
