/* SPDX-License-Identifier: Apache-2.0 */
/* The mapped ring and its memory. Pages that are not populated must not be touched. */
#ifndef STALL_RECORDER_MEMORY_H
#define STALL_RECORDER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/raw_call.h"
#include "inproc/ring.h"

/* Its layout is kept here: the header in the file may be changed by others at any time. */
struct recorder_ring {
	struct stall_ring_header *header;
	struct stall_ring_header layout; /* the constant part */
	uint32_t generation;		 /* of this process: forks */
	bool is_whole;			 /* all of its memory is there */
	char path[256];
	uint32_t slots_used; /* of this process: all slots with an owner are below */
};

static inline void *recorder_ring_at(const struct recorder_ring *ring, uint64_t offset)
{
	return (uint8_t *)ring->header + offset;
}
/* Counts what was not recorded. */
void recorder_ring_lost(struct recorder_ring *ring, enum stall_wait_lost cause);

/* False: there is no such memory. Except for slots, memory beyond the share of that many threads is
 * refused. Memory that is not there must not be touched. */
bool recorder_ring_has(struct recorder_ring *ring, uint64_t offset, uint64_t size);
/* Does not populate it: memory that is not there yet was never written to and is all 0. */
bool recorder_ring_has_already(const struct recorder_ring *ring, uint64_t offset, uint64_t size);
/* How many bytes of its stack a slot may fill, so that all slots get some. */
uint32_t recorder_stack_share(const struct recorder_ring *ring);
/* The slot is in no wait: frees its memory where memory is scarce. */
void recorder_stack_release(struct recorder_ring *ring, uint32_t slot);
/* False in a child of vfork(2), or of a fork that was not noticed: it shares our memory, and is
 * another process. */
bool recorder_is_own_process(void);

/* After a fork(2): this is another process, whose ring has no memory yet. */
void recorder_memory_forget(void);

#define RECORDER_POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, Linux 5.14 */

#endif
