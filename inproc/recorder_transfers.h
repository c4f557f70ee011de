/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes that do not block, cheaply. A thread asks once in a few milliseconds which file
 * a descriptor is of, and how long a call takes. Its calls on that descriptor until then are
 * counted with that duration, unless the kernel's clock has moved on meanwhile: such a call is
 * measured, and its file is asked for again, at its end.
 */
#ifndef STALL_RECORDER_TRANSFERS_H
#define STALL_RECORDER_TRANSFERS_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/recorder_slots.h"

/* What a thread knows of the descriptor that it used last. */
struct recorder_file {
	uint64_t checked_ns, size, tag;
	struct stall_wait_stat *stat;
	struct stall_wait_key key;
	uint64_t ns;		 /* of the call that was measured */
	uint64_t pending, bytes; /* calls that are not counted in the stat yet */
	uint32_t calls;		 /* not measured, on this stat */
	int fd;
};

/* NULL: it has to be asked for. A write must end within the file. */
struct recorder_file *recorder_file_known(const struct recorder_thread *thread,
					  const struct recorder_wait *wait, uint64_t now);
/* The calling thread has measured a call. */
void recorder_file_learn(const struct recorder_thread *thread, const struct stall_wait_key *key,
			 uint64_t now, uint64_t ns);
/* Counts a call that was not measured. */
void recorder_file_count(const struct recorder_thread *thread, uint64_t bytes);
/* No call stays uncounted while the thread does something else. */
void recorder_file_flush(const struct recorder_thread *thread);
/* The thread of the slot has just come. */
void recorder_file_forget(const struct recorder_thread *thread);

#endif
