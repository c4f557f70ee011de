/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mapped ring and its memory. Pages that are not there must not be touched.
 *
 * Memory is made only where no other thread can be kept waiting by it: while the process has one
 * thread, and where it creates a thread (recorder_ready_slots()). Everything else only asks what is
 * there.
 */
#ifndef STALL_RECORDER_MEMORY_H
#define STALL_RECORDER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/raw_call.h"
#include "inproc/recorder_state.h"
#include "inproc/ring.h"

/* Its layout is kept here: the header in the file may be changed by others at any time. */
struct recorder_ring {
	struct stall_ring_header *header;
	struct stall_ring_header layout; /* the constant part */
	uint32_t generation;		 /* of this process: forks */
	bool is_whole;			 /* all of its memory is there */
	char path[256];
};

static inline void *recorder_ring_at(const struct recorder_ring *ring, uint64_t offset)
{
	return (uint8_t *)ring->header + offset;
}
/* Counts what was not recorded. */
void recorder_ring_lost(struct recorder_ring *ring, enum stall_wait_lost cause);

/* False: there is none. While the process has one thread, it is made. */
bool recorder_ring_has(struct recorder_ring *ring, uint64_t offset, uint64_t size);
/* The same where threads can wait for a moment. */
bool recorder_ring_make(struct recorder_ring *ring, uint64_t offset, uint64_t size);
/* Does not make it: memory that is not there yet was never written to and is all 0. */
bool recorder_ring_has_already(const struct recorder_ring *ring, uint64_t offset, uint64_t size);

/* Where the process creates a thread: so many slots, with their stacks, have their memory, and so
 * has everything that is not of one slot. *ret_more: there were fewer before. */
void recorder_ready_slots(struct recorder_ring *ring, uint32_t count, bool *ret_more);
/* So many slots may be taken. */
uint32_t recorder_slots_ready(const struct recorder_ring *ring);

/* False in a child of vfork(2), or of a fork that was not noticed: it shares our memory, and is
 * another process. */
bool recorder_is_own_process(void);
/* After a fork(2): this is another process, whose ring has no memory yet. */
void recorder_memory_forget(void);

#define RECORDER_POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, Linux 5.14 */

#endif
