/* SPDX-License-Identifier: Apache-2.0 */
/* A wait as the interposed functions describe it, and the place in the server that waits. */
#ifndef STALL_RECORDER_WAIT_H
#define STALL_RECORDER_WAIT_H

#include <stdint.h>
#include <sys/stat.h>

#include "ebpf/waits.h"

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

#endif
