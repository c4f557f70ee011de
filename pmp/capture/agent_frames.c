// SPDX-License-Identifier: Apache-2.0
#include "capture/agent_frames.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define AGENT "libstallscope.so"

static uint32_t find_agent(const struct stall_maps *maps)
{
	for (size_t i = 0; maps && i < maps->module_count; i++) {
		const char *path = maps->modules[i].path, *slash = strrchr(path, '/');

		if (!strncmp(slash ? slash + 1 : path, AGENT, strlen(AGENT)))
			return i;
	}
	return STALL_NO_MODULE;
}

// Of each run of its frames the outermost stays.
static void drop(const struct stall_unwound *unwound, const uint32_t *agents,
		 struct stall_stack *stack)
{
	uint32_t kept = 0;
	bool after_agent = false;

	for (uint32_t i = 0; i < stack->count; i++) {
		const struct stall_frame *frame = &unwound->frames[stack->frames[i]];
		bool is_agents =
			frame->module != STALL_NO_MODULE && frame->module == agents[frame->process];

		kept -= after_agent && is_agents;
		stack->frames[kept++] = stack->frames[i];
		after_agent = is_agents;
	}
	stack->count = kept;
}

struct stall_error *stall_agent_frames_drop(const struct stall_snapshot *snapshot,
					    struct stall_unwound *unwound)
{
	_cleanup_free_ uint32_t *agents = calloc(snapshot->process_count + 1, sizeof(*agents));
	bool is_there = false;

	if (!agents)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->process_count; i++) {
		agents[i] = find_agent(snapshot->processes[i].maps);
		is_there |= agents[i] != STALL_NO_MODULE;
	}
	for (size_t i = 0; is_there && i < unwound->stack_count; i++)
		drop(unwound, agents, &unwound->stacks[i]);
	return NULL;
}
