// SPDX-License-Identifier: Apache-2.0
#include "snapshot/call_mode.h"

#include <string.h>

#include "proc/read_child.h"

static struct stall_call_place read_place(const struct stall_target *target, uint64_t pc)
{
	static const uint8_t syscall_code[] = {0x0f, 0x05};
	uint8_t code[sizeof(syscall_code)];
	struct stall_read read = {.address = pc - sizeof(code), .buf = code, .size = sizeof(code)};
	struct stall_error *err = stall_read_child_memory(target, &read, 1);
	bool late = err && err->code == STALL_ERROR_LATE;

	stall_error_destroy(err);
	return (struct stall_call_place){
		.pc = pc,
		.start_time = target->start_time,
		.pid = target->pid,
		.known = !late,
		// The call is believed where its code cannot be read in time: a stack is not copied
		// then either.
		.is_64bit = late || (read.done == sizeof(code) &&
				     !memcmp(code, syscall_code, sizeof(code))),
	};
}

bool stall_call_is_64bit(struct stall_call_places *places, const struct stall_target *target,
			 uint64_t pc)
{
	struct stall_call_place *place =
		&places->places[(pc ^ pc >> 12 ^ (uint64_t)target->pid) % STALL_CALL_PLACES];

	if (!place->known || place->pc != pc || place->pid != target->pid ||
	    place->start_time != target->start_time)
		*place = read_place(target, pc);
	return place->is_64bit;
}
