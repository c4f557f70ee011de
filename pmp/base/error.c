// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"

struct stall_error stall_enomem = {
	.code = STALL_ERROR_NO_MEMORY,
	.errnum = ENOMEM,
	.message = "cannot allocate memory",
};

static struct stall_error *error_take(enum stall_error_code code, int errnum, char *message)
{
	if (!message)
		return &stall_enomem;
	struct stall_error *err = malloc(sizeof(*err));
	if (!err) {
		free(message);
		return &stall_enomem;
	}
	// Paths and names from a target end up in messages.
	stall_make_printable(message, strlen(message));
	*err = (struct stall_error){.code = code, .errnum = errnum, .message = message};
	return err;
}

struct stall_error *stall_error_create(enum stall_error_code code, const char *format, ...)
{
	va_list args;
	char *message = NULL;

	va_start(args, format);
	if (vasprintf(&message, format, args) < 0)
		message = NULL;
	va_end(args);
	return error_take(code, 0, message);
}

static enum stall_error_code code_of_errno(int errnum)
{
	switch (errnum) {
	case EPERM:
	case EACCES:
		return STALL_ERROR_PERMISSION;
	case ESRCH:
		return STALL_ERROR_NO_PROCESS;
	default:
		return STALL_ERROR_OS;
	}
}

struct stall_error *stall_error_os(int errnum, const char *format, ...)
{
	va_list args;
	char *what = NULL, *message = NULL;
	char buf[128];

	va_start(args, format);
	if (vasprintf(&what, format, args) < 0)
		what = NULL;
	va_end(args);
	if (!what)
		return &stall_enomem;
	if (asprintf(&message, "%s: %s", what, strerror_r(errnum, buf, sizeof(buf))) < 0)
		message = NULL;
	free(what);
	return error_take(code_of_errno(errnum), errnum, message);
}

void stall_error_destroy(struct stall_error *err)
{
	if (!err || err == &stall_enomem)
		return;
	free(err->message);
	free(err);
}
