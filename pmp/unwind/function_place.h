// SPDX-License-Identifier: Apache-2.0
#ifndef STALL_FUNCTION_PLACE_H
#define STALL_FUNCTION_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STALL_FUNCTION_PLACES 16 // of a pattern

// For a uprobe.
struct stall_function_place {
	uint32_t pattern; // index
	uint32_t module;  // of the process
	char *refused;	  // no place: a sentence that says why; else NULL
	uint64_t file_offset;
	uint8_t skipped; // bytes of the function before the place: those of the ENDBR64
	bool clone;	 // ".part.0", ".constprop.1", ...: its arguments may be others
	bool stepped;	 // the kernel cannot emulate the instruction: a hit costs many times more
};
void stall_function_places_deinit(struct stall_function_place *places, size_t count);

// From the worker's answers: `ret` has room for one to each query. Those that are not of that process,
// or not in its code, are left out.
struct stall_job_layout;
struct stall_error *stall_function_places_read(const struct stall_job_layout *layout,
					       struct stall_function_place *ret, size_t *ret_count);

#endif
