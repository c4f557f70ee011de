// SPDX-License-Identifier: Apache-2.0
// Commands on standard input, one a line, as they come in pieces of any size.
#ifndef STALL_COMMAND_LINES_H
#define STALL_COMMAND_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

// What has been read and is not run yet.
struct stall_command_lines {
	char *text; // the caller's, of `size` bytes: no line is longer
	size_t size;
	size_t used;
	bool skip; // the rest of a line that is too long
};

struct stall_command_handler {
	void *arg;
	const bool *over;     // once it is set, nothing more is run
	const char *too_long; // what is answered to a line that has no room
	struct stall_error *(*run)(void *arg, char *line);
	struct stall_error *(*refuse)(void *arg, const char *message);
};

// Takes `got` more bytes, which were read to text + used, and runs the lines that are whole.
struct stall_error *stall_command_lines_take(struct stall_command_lines *lines, size_t got,
					     const struct stall_command_handler *handler);

#endif
