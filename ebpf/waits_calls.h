/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which system calls are waits and where their arguments are: filled in by the loader, so that a
 * call that is not watched costs one load. A reader of /proc has the same table. */
#ifndef STALL_WAITS_CALLS_H
#define STALL_WAITS_CALLS_H

enum stall_call_how {
	STALL_CALL_IGNORED,
	STALL_CALL_FUTEX,	  /* (word, operation, value, ..., word2, ...) */
	STALL_CALL_FUTEX_WAIT,	  /* (word, value, mask, flags, ...) */
	STALL_CALL_FUTEX_WAITV,	  /* (struct futex_waitv [], ...) */
	STALL_CALL_FUTEX_WAKE,	  /* (word, mask, count, flags) */
	STALL_CALL_FUTEX_REQUEUE, /* (struct futex_waitv [2], flags, ...) */
	STALL_CALL_FILE,	  /* (fd) */
	STALL_CALL_RANGE,	  /* (fd, offset, size) */
	STALL_CALL_FALLOCATE,	  /* (fd, mode, offset, size) */
	STALL_CALL_TRUNCATE,	  /* (fd, size) */
	STALL_CALL_TRANSFER,	  /* (fd, buffer, size) at the file's own position */
	STALL_CALL_TRANSFER_AT,	  /* (fd, buffer, size, offset) */
	STALL_CALL_VECTOR,	  /* (fd, iovec, count) at the file's own position */
	STALL_CALL_VECTOR_AT,	  /* (fd, iovec, count, offset, 0) */
	STALL_CALL_MAPPING,	  /* (address, size) */
	STALL_CALL_ALL,		  /* () */
	STALL_CALL_PATH,	  /* (path, ...) */
	STALL_CALL_PATH_AT,	  /* (directory, path, ...) */
	STALL_CALL_RESTART,	  /* () continues the call that a signal interrupted */
	STALL_CALL_IO_SUBMIT,
	STALL_CALL_IO_GETEVENTS,
};

#define STALL_CALLS 512

struct stall_call {
	unsigned char how; /* enum stall_call_how */
	unsigned char
		kind; /* enum stall_wait_kind, where it is a wait; a positioned write's is WRITE */
};
_Static_assert(sizeof(struct stall_call) == 2, "no holes");

#ifndef __bpf__
#include <stdint.h>

/* Sets the calls that are waits of these kinds (bit of each enum stall_wait_kind), by number;
 * `calls` has STALL_CALLS, all zero. */
void stall_wait_calls_set(uint32_t kinds, struct stall_call *calls);
#endif

#endif
