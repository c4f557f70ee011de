// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_programs.h"

void stall_wait_programs_write(const struct stall_wait_program *programs, size_t count,
			       struct stall_json *json)
{
	stall_json_key(json, "programs");
	stall_json_open(json, '[');
	for (size_t i = 0; i < count; i++) {
		const struct stall_wait_program *program = &programs[i];

		stall_json_open(json, '{');
		stall_json_member_string(json, "name", program->name);
		stall_json_member_string(json, "attach", program->attach_point);
		stall_json_member_bool(json, "ok", !program->why_not);
		stall_json_member_string(json, "why_not", program->why_not);
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}
