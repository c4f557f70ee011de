// SPDX-License-Identifier: Apache-2.0
// The command line of a process: what is listed as harmless, and ? for the rest.
#ifndef STALL_CMDLINE_H
#define STALL_CMDLINE_H

#include <stddef.h>

#include "base/error.h"
#include "proc/target.h"

#define STALL_MAX_CMDLINE 65536

struct stall_cmdline {
	char **arguments;
	size_t count;
};

// Empty where it cannot be read.
struct stall_error *stall_cmdline_read(const struct stall_target *target,
				       struct stall_cmdline *ret);
// From the text of /proc/PID/cmdline: arguments that end in NUL.
struct stall_error *stall_cmdline_parse(const char *text, size_t size, struct stall_cmdline *ret);
void stall_cmdline_deinit(struct stall_cmdline *cmdline);

#endif
