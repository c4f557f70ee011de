/* SPDX-License-Identifier: Apache-2.0 */
/* A wait as the interposed functions describe it, the place in the server that waits, and marks of
 * the objects that threads have waited long for. */
#ifndef STALL_RECORDER_WAIT_H
#define STALL_RECORDER_WAIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ebpf/waits.h"
#include "inproc/recorder_state.h"

/* Where a thread is: callee-saved registers, SP and PC of one moment in a function of this library
 * whose frame lives until the wait is over. */
struct recorder_place {
	uint64_t bx, bp, r12, r13, r14, r15, ip, sp;
};

struct recorder_wait {
	enum stall_wait_kind kind;
	uint32_t operation;    /* enum stall_ring_call, or the number of the system call */
	uint64_t object;       /* FUTEX: of the pthread object */
	int fd;		       /* files: by descriptor, */
	const char *path;      /* or by path (UNLINK, RENAME), else NULL */
	const struct stat *st; /* of fd, where it was asked for already; else NULL */
	uint64_t value, size;  /* offset and bytes */
};

/* Marks are counted by a hash of the object. The release of a marked object is recorded. The check
 * takes a few instructions, for the paths of unlock and signal. Another object with the same hash
 * may be the cause of true; false is certain. */
/* objects are 8 bytes apart at least */
static inline uint16_t recorder_mark_of(uint64_t object)
{
	return (object * 0x9e3779b97f4a7c15) >> 52;
}
static inline uint32_t recorder_marked(uint64_t object)
{
	return __atomic_load_n(&recorder_state.marks[recorder_mark_of(object)], __ATOMIC_RELAXED);
}
static inline bool recorder_is_marked(uint64_t object)
{
	return recorder_marked(object) != 0;
}
/* One more waiter, since start_ns, and one less. */
void recorder_marks_add(uint16_t mark, uint64_t start_ns);
void recorder_marks_remove(uint16_t mark);
/* False: no thread has waited for an object with its hash for that long. */
bool recorder_mark_is_older(uint64_t object, uint64_t since_ns);

#endif
