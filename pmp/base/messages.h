// SPDX-License-Identifier: Apache-2.0
// Lines of a probe that keeps running, in `serve` and `waits`: JSON out ({"type":"...",...}),
// commands in.
#ifndef STALL_MESSAGES_H
#define STALL_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/output.h"

// Begins a line; its members follow, and stall_json_close().
void stall_message_begin(struct stall_json *json, const char *type);
// Complete lines: a message; a process; a thread; a threshold that is valid from now on.
void stall_message_text(struct stall_json *json, const char *type, const char *message);
void stall_message_pid(struct stall_json *json, const char *type, pid_t pid);
void stall_message_thread(struct stall_json *json, const char *type, pid_t pid, pid_t tid);
void stall_message_threshold(struct stall_json *json, const char *type, const char *kind,
			     uint64_t ns);

struct stall_error *stall_message_write(struct stall_json *json, struct stall_output *output);

// Writes complete lines, of any kind, to a descriptor.
struct stall_error *stall_lines_write(const struct stall_json *json, int fd);

// Commands on standard input, one per line, which arrive in pieces of any size: what has been read
// and is not run yet.
struct stall_command_lines {
	char *text; // the caller's, of `size` bytes: no line is longer
	size_t size;
	size_t used;
	bool skip; // the rest of a line that is too long
};

struct stall_command_handler {
	void *arg;
	const bool *over;     // once it is set, nothing more is run
	const char *too_long; // the answer to a line that is too long
	struct stall_error *(*run)(void *arg, char *line);
	struct stall_error *(*refuse)(void *arg, const char *message);
};

// Takes `got` more bytes, which were read to text + used, and runs the lines that are whole.
struct stall_error *stall_command_lines_take(struct stall_command_lines *lines, size_t got,
					     const struct stall_command_handler *handler);

#endif
