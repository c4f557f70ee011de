/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of a thread of the server about itself, in the ring. Everything here may run in any
 * thread at any moment, under any lock of the server or of the loader: it takes no lock, allocates
 * nothing, calls no function that does, sends no signal and never waits, not for the memory map of
 * the process (mmap_lock) either, which system calls and page faults wait for. Where there can be no
 * ring, nothing is recorded, and the server runs on.
 *
 * The interposed functions (hooks_*.c) call it; it calls none of them.
 */
#ifndef STALL_RECORDER_H
#define STALL_RECORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/recorder_state.h"
#include "inproc/recorder_wait.h"
#include "inproc/ring.h"

struct recorder_thread; /* of the calling thread: its slot, in the ring */

/* The calling thread's slot: taken at its first call. NULL: switched off, no ring, no room, or this
 * thread is in a call of the library already (a signal handler). Every call that returns a thread
 * is followed by recorder_leave(). */
struct recorder_thread *recorder_enter(void);
/* The ring is there and switched off. */
bool recorder_is_off(void);
void recorder_leave(struct recorder_thread *thread);

/* Publishes the wait: its slot is odd from here on. `with_stack`: its stack is copied at once,
 * and a lock or condition is marked. */
void recorder_begin(struct recorder_thread *thread, const struct recorder_wait *wait,
		    const struct recorder_place *place, bool with_stack);
/* recorder_enter() and recorder_begin() for a read or write, if the thread has just used that
 * descriptor for the same: costs a tenth, and leaves errno alone. `place` lives until the end.
 * NULL: nothing was done. */
struct recorder_thread *recorder_begin_transfer(const struct recorder_wait *wait,
						const struct recorder_place *place);
/* recorder_end() and recorder_leave() for such a wait. False: nothing was done, it needs those. */
bool recorder_end_transfer(struct recorder_thread *thread, uint64_t bytes);
/* The wait lasts longer than most: copies the stack if that was not done, reads the words around
 * the object again, and marks the object, so that its release is recorded. */
void recorder_still_waits(struct recorder_thread *thread, const struct recorder_place *place);
/* The wait has ended: counts it, and records it where it was longer than the threshold of its
 * kind. */
void recorder_end(struct recorder_thread *thread, int64_t result, uint64_t bytes);

/* The calling thread releases the object: writes a WAKER record, if a thread has waited for this
 * very object past the threshold, or many wait for it, and there were not too many records
 * lately. */
void recorder_release(uint64_t object, enum stall_ring_call call,
		      const struct recorder_place *place);

/* How long a wait for a mutex or rwlock lasts before recorder_still_waits() is due; after that ten
 * times as long, up to a second. Follows from the threshold. */
uint64_t recorder_patience_ns(void);
/* When the wait of recorder_begin() began, CLOCK_MONOTONIC: a clock need not be read again. */
uint64_t recorder_began_ns(const struct recorder_thread *thread);

/* In the child of fork(2): the ring is the parent's. The child creates its own when it first has
 * something to record. */
void recorder_forked(void);
/* In the new thread, on its own stack: what it is to run. */
struct recorder_run recorder_thread_begins(struct recorder_start *start);
/* At the end of a thread: its slot is free again, and its later waits are not recorded. */
void recorder_thread_ends(void);
/* exit(3) without an error: notes that in the header, and removes the file unless
 * STALLSCOPE_KEEP_RING is set. */
void recorder_exits(void);

#endif
