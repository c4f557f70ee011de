// SPDX-License-Identifier: Apache-2.0
#include "base/command_lines.h"

#include <string.h>

static struct stall_error *take_line(struct stall_command_lines *lines, size_t length,
				     const struct stall_command_handler *handler)
{
	if (lines->skip) {
		lines->skip = false;
		return NULL;
	}
	if (memchr(lines->text, '\0', length))
		return handler->refuse(handler->arg, "command with a NUL byte");
	return handler->run(handler->arg, lines->text);
}

struct stall_error *stall_command_lines_take(struct stall_command_lines *lines, size_t got,
					     const struct stall_command_handler *handler)
{
	char *newline;

	lines->used += got;
	while (!*handler->over && (newline = memchr(lines->text, '\n', lines->used))) {
		size_t length = newline - lines->text;

		*newline = '\0';
		struct stall_error *err = take_line(lines, length, handler);
		lines->used -= length + 1;
		memmove(lines->text, newline + 1, lines->used);
		if (err)
			return err;
	}
	if (lines->used < lines->size)
		return NULL;
	lines->used = 0;
	if (lines->skip)
		return NULL;
	lines->skip = true;
	return handler->refuse(handler->arg, handler->too_long);
}
