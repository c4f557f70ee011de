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

/* What a thread knows of the descriptor that it used last. */
struct recorder_file {
	uint64_t checked_ns; /* CLOCK_MONOTONIC_COARSE */
	uint64_t size, tag;
	struct stall_wait_stat *stat;
	struct stall_wait_key key;
	uint64_t ns;		 /* of the call that was measured */
	uint64_t pending, bytes; /* calls that are not counted in the stat yet */
	uint32_t calls;		 /* not measured, on this stat */
	int fd;
};

/* NULL: it has to be asked for. A write must end within the file. `now`: of the coarse clock. */
struct recorder_file *recorder_file_known(const struct recorder_thread *thread,
					  const struct recorder_wait *wait, uint64_t now);
/* The calling thread has measured a call. */
void recorder_file_learn(const struct recorder_thread *thread, const struct stall_wait_key *key,
			 uint64_t ns);
/* Counts a call that was not measured. */
void recorder_file_count(const struct recorder_thread *thread, uint64_t bytes);
/* The duration of a call during which the coarse clock has moved on (last_tick_ns). */
uint64_t recorder_file_estimate(const struct recorder_thread *thread, uint64_t now);
/* No call stays uncounted while the thread does something else. */
void recorder_file_flush(const struct recorder_thread *thread);
/* The next call is to be measured. */
void recorder_file_expire(const struct recorder_thread *thread);
/* The thread of the slot has just come. */
void recorder_file_forget(const struct recorder_thread *thread);

#endif
