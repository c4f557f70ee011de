// SPDX-License-Identifier: Apache-2.0
#include "base/messages.h"

#include <string.h>

#include "base/cleanup.h"

void stall_message_begin(struct stall_json *json, const char *type)
{
	stall_json_init(json);
	stall_json_open(json, '{');
	stall_json_member_string(json, "type", type);
}

void stall_message_text(struct stall_json *json, const char *type, const char *message)
{
	stall_message_begin(json, type);
	stall_json_member_string(json, "message", message);
	stall_json_close(json, '}');
}

void stall_message_pid(struct stall_json *json, const char *type, pid_t pid)
{
	stall_message_begin(json, type);
	stall_json_member_int(json, "pid", pid);
	stall_json_close(json, '}');
}

void stall_message_thread(struct stall_json *json, const char *type, pid_t pid, pid_t tid)
{
	stall_message_begin(json, type);
	stall_json_member_int(json, "pid", pid);
	stall_json_member_int(json, "tid", tid);
	stall_json_close(json, '}');
}

void stall_message_threshold(struct stall_json *json, const char *type, const char *kind,
			     uint64_t ns)
{
	stall_message_begin(json, type);
	stall_json_member_string(json, "kind", kind);
	stall_json_member_ms(json, "ms", ns);
	stall_json_close(json, '}');
}

struct stall_error *stall_message_write(struct stall_json *json, struct stall_output *output)
{
	stall_json_newline(json);
	if (json->failed)
		return &stall_enomem;
	return stall_output_write(output, json->data, json->size);
}

struct stall_error *stall_lines_write(const struct stall_json *json, int fd)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;

	if (json->failed)
		return &stall_enomem;
	struct stall_error *err = stall_output_create_fd(fd, &output);
	if (!err)
		err = stall_output_write(output, json->data, json->size);
	return err ? err : stall_output_commit(output);
}

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
		size_t length = (size_t)(newline - lines->text);

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
