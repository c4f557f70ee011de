// SPDX-License-Identifier: Apache-2.0
// The lines that a probe says while it goes on, in `serve` and `waits` alike: {"type":"...",...}.
#ifndef STALL_MESSAGES_H
#define STALL_MESSAGES_H

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/output.h"

// Begins a line; its members follow, and stall_json_close().
void stall_message_begin(struct stall_json *json, const char *type);
// Whole lines: a message; a process; a threshold that holds from now on.
void stall_message_text(struct stall_json *json, const char *type, const char *message);
void stall_message_pid(struct stall_json *json, const char *type, pid_t pid);
void stall_message_threshold(struct stall_json *json, const char *type, const char *kind,
			     uint64_t ns);

struct stall_error *stall_message_write(struct stall_json *json, struct stall_output *output);

#endif
