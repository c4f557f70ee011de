// SPDX-License-Identifier: Apache-2.0
// Writes which programs of a wait source work, and why the others do not.
#ifndef STALL_WAIT_PROGRAMS_H
#define STALL_WAIT_PROGRAMS_H

#include <stddef.h>

#include "base/json_writer.h"
#include "ebpf/wait_handler.h"

// The member "programs".
void stall_wait_programs_write(const struct stall_wait_program *programs, size_t count,
			       struct stall_json *json);

#endif
