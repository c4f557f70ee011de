// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_stacks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define STACK_SLOTS (STALL_MAX_STACKS * 2)
#define NAME_SLOTS 131072
#define MAX_NAMES (NAME_SLOTS / 2)
#define MAX_FRAMES (STALL_MAX_STACKS * 64)

struct stack {
	uint32_t first, count; // in frames
	uint64_t hash;
};

// Open addressing; entries are indexes + 1.
struct stall_wait_stacks {
	struct stack *stacks;
	size_t stack_count;
	const char **frames; // pointers into names
	size_t frame_count;
	char **names;
	size_t name_count, name_bytes;
	size_t stack_bytes; // of the names in all stacks
	bool full;
	uint32_t stack_slots[STACK_SLOTS];
	uint32_t name_slots[NAME_SLOTS];
};

struct stall_error *stall_wait_stacks_create(struct stall_wait_stacks **ret)
{
	_cleanup_(stall_wait_stacks_destroyp) struct stall_wait_stacks *stacks =
		calloc(1, sizeof(*stacks));

	if (!stacks)
		return &stall_enomem;
	stacks->stacks = calloc(STALL_MAX_STACKS, sizeof(*stacks->stacks));
	stacks->frames = calloc(MAX_FRAMES, sizeof(*stacks->frames));
	stacks->names = calloc(MAX_NAMES, sizeof(*stacks->names));
	if (!stacks->stacks || !stacks->frames || !stacks->names)
		return &stall_enomem;
	*ret = no_cleanup_ptr(stacks);
	return NULL;
}

void stall_wait_stacks_destroy(struct stall_wait_stacks *stacks)
{
	if (!stacks)
		return;
	for (size_t i = 0; i < stacks->name_count; i++)
		free(stacks->names[i]);
	free(stacks->names);
	free(stacks->frames);
	free(stacks->stacks);
	free(stacks);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 32;
}

static const char *intern_name(struct stall_wait_stacks *stacks, const char *name)
{
	uint64_t hash = 1;
	size_t size = strlen(name) + 1, at;

	for (size_t i = 0; i + 1 < size; i++)
		hash = mix(hash, (unsigned char)name[i]);
	for (at = hash % NAME_SLOTS; stacks->name_slots[at]; at = (at + 1) % NAME_SLOTS) {
		const char *known = stacks->names[stacks->name_slots[at] - 1];
		if (!strcmp(known, name))
			return known;
	}
	if (stacks->name_count == MAX_NAMES || size > STALL_MAX_NAME_BYTES - stacks->name_bytes)
		return NULL;
	char *copy = strdup(name);
	if (!copy)
		return NULL;
	stacks->names[stacks->name_count++] = copy;
	stacks->name_bytes += size;
	stacks->name_slots[at] = stacks->name_count;
	return copy;
}

static const char *frame_name(struct stall_wait_stacks *stacks, const struct stall_snapshot *of,
			      const struct stall_frame *frame)
{
	char text[512];

	if (frame->symbol)
		return intern_name(stacks, frame->symbol);
	const struct stall_maps *maps = of->processes[frame->process].maps;
	if (frame->module == STALL_NO_MODULE || frame->module >= maps->module_count) {
		snprintf(text, sizeof(text), "0x%" PRIx64, frame->pc);
	} else {
		const char *path = maps->modules[frame->module].path;
		const char *slash = strrchr(path, '/');
		snprintf(text, sizeof(text), "%.400s+0x%" PRIx64, slash ? slash + 1 : path,
			 frame->offset);
	}
	return intern_name(stacks, text);
}

// A stack is known by its names: pointers, since each name is there once.
static uint32_t intern_stack(struct stall_wait_stacks *stacks, const char *const *names,
			     size_t count, size_t bytes)
{
	uint64_t hash = count;
	size_t at;

	for (size_t i = 0; i < count; i++)
		hash = mix(hash, (uintptr_t)names[i]);
	for (at = hash % STACK_SLOTS; stacks->stack_slots[at]; at = (at + 1) % STACK_SLOTS) {
		const struct stack *known = &stacks->stacks[stacks->stack_slots[at] - 1];
		if (known->hash == hash && known->count == count &&
		    !memcmp(stacks->frames + known->first, names, count * sizeof(*names)))
			return stacks->stack_slots[at];
	}
	if (stacks->stack_count == STALL_MAX_STACKS || count > MAX_FRAMES - stacks->frame_count ||
	    bytes > STALL_MAX_STACKS_BYTES - stacks->stack_bytes)
		return 0;
	stacks->stack_bytes += bytes;
	memcpy(stacks->frames + stacks->frame_count, names, count * sizeof(*names));
	stacks->stacks[stacks->stack_count++] = (struct stack){
		.first = stacks->frame_count,
		.count = count,
		.hash = hash,
	};
	stacks->frame_count += count;
	stacks->stack_slots[at] = stacks->stack_count;
	return stacks->stack_count;
}

uint32_t stall_wait_stacks_add(struct stall_wait_stacks *stacks, const struct stall_snapshot *of,
			       const struct stall_unwound *unwound, const struct stall_stack *stack,
			       bool *full)
{
	const char *names[STALL_MAX_STACK_NAMES];
	size_t count = 0, bytes = 0;

	for (;
	     count < stack->count && count < STALL_MAX_STACK_NAMES && bytes < STALL_MAX_STACK_BYTES;
	     count++) {
		names[count] = frame_name(stacks, of, &unwound->frames[stack->frames[count]]);
		if (!names[count]) {
			*full = stacks->full = true;
			return 0;
		}
		bytes += strlen(names[count]);
	}
	uint32_t found = count ? intern_stack(stacks, names, count, bytes) : 0;
	if (count && !found)
		*full = stacks->full = true;
	return found;
}

bool stall_wait_stacks_is_full(const struct stall_wait_stacks *stacks)
{
	return stacks->full;
}

const char *const *stall_wait_stacks_frames(const struct stall_wait_stacks *stacks, uint32_t stack,
					    size_t *ret_count)
{
	if (!stack || stack > stacks->stack_count) {
		*ret_count = 0;
		return NULL;
	}
	*ret_count = stacks->stacks[stack - 1].count;
	return stacks->frames + stacks->stacks[stack - 1].first;
}
