// SPDX-License-Identifier: Apache-2.0
// Errors: a function that can fail returns struct stall_error *, NULL for success.
#ifndef STALL_ERROR_H
#define STALL_ERROR_H

#include <stddef.h>

enum stall_error_code {
	STALL_ERROR_OTHER,
	STALL_ERROR_NO_MEMORY,
	STALL_ERROR_OS,		 // a system call failed; errnum says how
	STALL_ERROR_NO_PROCESS,	 // no such process, or it ended, or its pid was reused
	STALL_ERROR_PERMISSION,	 // a capability or access is missing; the message names it
	STALL_ERROR_UNSUPPORTED, // this kernel or this build cannot do it
	STALL_ERROR_LIMIT,	 // a limit on hostile or huge input was reached
	STALL_ERROR_FORMAT,	 // the input is not what it claims to be
	STALL_ERROR_USAGE,	 // wrong command line
	STALL_ERROR_AGAIN,	 // the process changed meanwhile: another attempt may succeed
	STALL_ERROR_LATE,	 // something did not answer in time
	STALL_ERROR_CODES,
};

struct stall_error {
	enum stall_error_code code;
	int errnum;    // 0 where no errno belongs to it
	char *message; // one line without newline: what failed, on what, what to do
};

// Out of memory: static, may be passed to stall_error_destroy.
extern struct stall_error stall_enomem;

struct stall_error *stall_error_create(enum stall_error_code code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

// The message gets ": " and the text of errnum appended. EPERM and EACCES become
// STALL_ERROR_PERMISSION, ESRCH becomes STALL_ERROR_NO_PROCESS, the rest STALL_ERROR_OS.
struct stall_error *stall_error_os(int errnum, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

void stall_error_destroy(struct stall_error *err);

static inline void stall_error_destroyp(struct stall_error **err)
{
	stall_error_destroy(*err);
}
#define _cleanup_error_ __attribute__((__cleanup__(stall_error_destroyp)))

#endif
