/* SPDX-License-Identifier: Apache-2.0 */
/* Threads begin and end: the moments in which the memory map may be waited for. */
#ifndef STALL_RECORDER_THREADS_H
#define STALL_RECORDER_THREADS_H

#include "inproc/recorder_slots.h"

/* pthread_create() may wait for the memory map, and a hook may not: before a thread is
 * created, the ring and what one more thread needs of it are made. NULL: no room; the thread is
 * created as it would be without this library, and one of the spare slots is for it. `stack_size`:
 * without its guard, 0: not known. */
struct recorder_start *recorder_before_thread(struct recorder_run run, uint64_t stack_size);
/* It could not be created. */
void recorder_no_thread(struct recorder_start *start);

/* recorder_thread_begins() of the thread. */
struct recorder_run recorder_thread_start(struct recorder_thread *thread,
					  struct recorder_start *start);
/* It ends. `ring` NULL: there is none. */
void recorder_thread_end(struct recorder_thread *thread, struct recorder_ring *ring);

#endif
