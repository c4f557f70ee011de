// SPDX-License-Identifier: Apache-2.0
#include "capture/library_frames.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define LIBRARY "libstallscope.so"

static uint32_t find_library(const struct stall_maps *maps)
{
	for (size_t i = 0; maps && i < maps->module_count; i++) {
		const char *path = maps->modules[i].path, *slash = strrchr(path, '/');

		if (!strncmp(slash ? slash + 1 : path, LIBRARY, strlen(LIBRARY)))
			return i;
	}
	return STALL_NO_MODULE;
}

// Keeps the outermost frame of each run.
static void drop(const struct stall_unwound *unwound, const uint32_t *libraries,
		 struct stall_stack *stack)
{
	uint32_t kept = 0;
	bool after_library = false;

	for (uint32_t i = 0; i < stack->count; i++) {
		const struct stall_frame *frame = &unwound->frames[stack->frames[i]];
		bool is_of_library = frame->module != STALL_NO_MODULE &&
				     frame->module == libraries[frame->process];

		kept -= after_library && is_of_library;
		stack->frames[kept++] = stack->frames[i];
		after_library = is_of_library;
	}
	stack->count = kept;
}

struct stall_error *stall_library_frames_drop(const struct stall_snapshot *snapshot,
					      struct stall_unwound *unwound)
{
	_cleanup_free_ uint32_t *libraries =
		calloc(snapshot->process_count + 1, sizeof(*libraries));
	bool is_there = false;

	if (!libraries)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->process_count; i++) {
		libraries[i] = find_library(snapshot->processes[i].maps);
		is_there |= libraries[i] != STALL_NO_MODULE;
	}
	for (size_t i = 0; is_there && i < unwound->stack_count; i++)
		drop(unwound, libraries, &unwound->stacks[i]);
	return NULL;
}
