// SPDX-License-Identifier: Apache-2.0
#include "base/messages.h"

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
