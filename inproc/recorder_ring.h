/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this process has a ring. It is made when the process creates its first thread; before that,
 * when it is first needed. */
#ifndef STALL_RECORDER_RING_H
#define STALL_RECORDER_RING_H

#include <stdbool.h>

#include "inproc/recorder_memory.h"

extern struct recorder_ring *recorder_ready_ring __attribute__((visibility("hidden")));
/* NULL: there is none (yet). */
static inline struct recorder_ring *recorder_ring(void)
{
	return __atomic_load_n(&recorder_ready_ring, __ATOMIC_ACQUIRE);
}
/* Makes it where there is none and the process has one thread. */
struct recorder_ring *recorder_ring_needed(void);
/* Makes it where there is none; the calling thread is about to create another one. */
struct recorder_ring *recorder_ring_before_threads(void);
/* The ring could not be made; there is no second attempt. */
bool recorder_ring_failed(void);
/* After a fork(2): it is the parent's. `in_write`: this thread may still write into it. */
void recorder_ring_forget(bool in_write);

#endif
