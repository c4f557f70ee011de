// SPDX-License-Identifier: Apache-2.0
// Fills a snapshot from a ring, of a live process or of one that has ended.
#ifndef STALL_RING_SNAPSHOT_H
#define STALL_RING_SNAPSHOT_H

#include "base/error.h"
#include "rings/ring_file.h"
#include "rings/ring_releases.h"
#include "rings/ring_threads.h"
#include "snapshot/snapshot.h"

struct stall_ring_content {
	struct stall_ring_threads threads;
	struct stall_ring_releases releases;
};

struct stall_error *stall_ring_content_init(struct stall_ring_content *content,
					    struct stall_ring *ring, struct stall_arena *arena,
					    size_t max_stack);
void stall_ring_content_deinit(struct stall_ring_content *content);

// Reads of memory outside the copies find nothing: the process may not be read.
void stall_ring_snapshot_init(struct stall_snapshot *snapshot);

// Sets the name of the process, where it is not known yet.
struct stall_error *stall_ring_name_process(const struct stall_ring *ring,
					    struct stall_process *process);

// Mappings from the text that is in the ring.
struct stall_error *stall_ring_maps_create(const struct stall_ring *ring,
					   const struct stall_target *target, int sysroot,
					   struct stall_maps *previous,
					   struct stall_open_files *files, struct stall_maps **ret);

// Notes what is missing.
struct stall_error *stall_ring_note(struct stall_snapshot *snapshot, uint32_t process,
				    const struct stall_ring *ring,
				    const struct stall_ring_content *content);

#endif
