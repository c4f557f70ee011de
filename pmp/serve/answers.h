// SPDX-License-Identifier: Apache-2.0
// The lines that a serving probe writes.
#ifndef STALL_ANSWERS_H
#define STALL_ANSWERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json_writer.h"
#include "serve/server.h"

// Writes a line of the caller.
struct stall_error *stall_answer(struct stall_server *server, struct stall_json *json);

struct stall_error *stall_answer_ready(struct stall_server *server);
struct stall_error *stall_answer_error(struct stall_server *server, const char *message);
struct stall_error *stall_answer_written(struct stall_server *server, const char *path,
					 bool partial);
struct stall_error *stall_answer_watch(struct stall_server *server);
struct stall_error *stall_answer_threshold(struct stall_server *server, const char *command,
					   const char *kind, uint64_t ns);
struct stall_error *stall_answer_layout(struct stall_server *server);
// `type`: "ignored" or "heeded".
struct stall_error *stall_answer_thread(struct stall_server *server, const char *type, pid_t pid,
					pid_t tid);
// Takes the error over.
struct stall_error *stall_answer_not_ignored(struct stall_server *server,
					     struct stall_error *failed);
struct stall_error *stall_answer_target(struct stall_server *server, pid_t pid);
// No target is left, and the probe keeps running.
struct stall_error *stall_answer_ended(struct stall_server *server, const char *message);
struct stall_error *stall_answer_event(struct stall_server *server,
				       const struct stall_watch_event *event);
// A capture that was not requested: its file, or why there is none.
struct stall_error *stall_answer_captured(struct stall_server *server, const char *path,
					  bool partial, const struct stall_trigger *trigger);
struct stall_error *stall_answer_not_captured(struct stall_server *server, const char *message,
					      const struct stall_trigger *trigger);

// Reports the result of a command, and takes the error over. The target's end is the end of all,
// unless the server waits for another.
struct stall_error *stall_answer_failed(struct stall_server *server, struct stall_error *failed);
// The same where only this command fails.
struct stall_error *stall_answer_refused(struct stall_server *server, struct stall_error *failed);

#endif
