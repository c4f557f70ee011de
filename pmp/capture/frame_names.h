// SPDX-License-Identifier: Apache-2.0
// Which frames of a capture have the names of an earlier one. A program may have names of 8 KB, and
// each frame of a function repeats them: where that is much, they are written once.
#ifndef STALL_FRAME_NAMES_H
#define STALL_FRAME_NAMES_H

#include "base/error.h"
#include "unwind/unwound.h"

#define STALL_MAX_REPEATED_NAMES (4U << 20) // bytes; no real server has as many

struct stall_frame_names {
	uint32_t *same; // by frame: an earlier one, or UINT32_MAX; NULL: all are written
};

struct stall_error *stall_frame_names_init(struct stall_frame_names *names,
					   const struct stall_unwound *unwound);
void stall_frame_names_deinit(struct stall_frame_names *names);

#endif
