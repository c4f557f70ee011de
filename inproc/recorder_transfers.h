/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes that do not block, cheaply. A thread asks once in a few milliseconds which file
 * a descriptor is of, and how long a call takes. Its calls on that descriptor until then read only
 * the kernel's coarse clock, and are counted with that duration, unless that clock has moved on
 * meanwhile: then the call's own duration is estimated, and its file is asked for again, at its
 * end.
 */
#ifndef STALL_RECORDER_TRANSFERS_H
#define STALL_RECORDER_TRANSFERS_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/recorder_slots.h"

#define RECORDER_FILE_VALID_NS 3500000ULL /* by a clock with ticks of 1 ms at least: below 4 ms */

/* Whether it need not be asked for. A write must end within the file. `now`: of the coarse
 * clock. */
static inline bool recorder_file_is_known(const struct recorder_file *file,
					  const struct recorder_wait *wait, uint64_t now)
{
	return file->fd == wait->fd && file->kind == wait->kind &&
	       file->operation == wait->operation && file->stat &&
	       now - file->checked_ns < RECORDER_FILE_VALID_NS &&
	       (wait->kind == STALL_WAIT_READ || wait->value + wait->size <= file->size) &&
	       __atomic_load_n(&file->stat->tag, __ATOMIC_ACQUIRE) == file->tag;
}
/* The calling thread has measured a call. */
void recorder_file_learn(const struct recorder_thread *thread, const struct stall_wait_key *key,
			 uint64_t ns);
/* Counts the calls that were not measured. */
#define RECORDER_FILE_MAX_PENDING 16
#define RECORDER_FILE_MANY 64 /* calls: before that each is counted at once */
static inline bool recorder_file_is_due(const struct recorder_file *file)
{
	return file->calls < RECORDER_FILE_MANY || file->pending >= RECORDER_FILE_MAX_PENDING;
}
/* The duration of a call during which the coarse clock has moved on (last_tick_ns). */
uint64_t recorder_file_estimate(const struct recorder_thread *thread, uint64_t now);
/* No call stays uncounted while the thread does something else. */
void recorder_file_flush(const struct recorder_thread *thread);
/* The next call is to be measured. */
void recorder_file_expire(const struct recorder_thread *thread);
/* The thread of the slot has just come. */
void recorder_file_forget(const struct recorder_thread *thread);

#endif
