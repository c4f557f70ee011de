// SPDX-License-Identifier: Apache-2.0
#include "capture/capture_stacks.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

// Open addressing; entries are indexes + 1, so that zeroed memory is empty.
struct index_table {
	uint32_t *slots;
	size_t mask;
};

static struct stall_error *table_init(struct index_table *table, size_t entries)
{
	size_t size = 64;

	while (size < entries * 2)
		size *= 2;
	table->slots = calloc(size, sizeof(*table->slots));
	if (!table->slots)
		return &stall_enomem;
	table->mask = size - 1;
	return NULL;
}

static void table_deinit(struct index_table *table)
{
	free(table->slots);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 32;
}

static uint32_t intern_address(struct stall_capture_stacks *stacks, struct index_table *table,
			       uint64_t address)
{
	for (size_t at = mix(1, address) & table->mask;; at = (at + 1) & table->mask) {
		uint32_t slot = table->slots[at];
		if (!slot) {
			uint32_t index = stacks->kernel_frame_count++;
			stacks->kernel_frames[index] =
				(struct stall_kernel_symbol){.address = address};
			table->slots[at] = index + 1;
			return index;
		}
		if (stacks->kernel_frames[slot - 1].address == address)
			return slot - 1;
	}
}

static uint32_t intern_stack(struct stall_capture_stacks *stacks, struct index_table *table,
			     uint32_t *frames, uint32_t count)
{
	uint64_t hash = count;

	for (uint32_t i = 0; i < count; i++)
		hash = mix(hash, frames[i]);
	for (size_t at = hash & table->mask;; at = (at + 1) & table->mask) {
		uint32_t slot = table->slots[at];
		if (!slot) {
			uint32_t index = stacks->stack_count++;
			stacks->stacks[index] = (struct stall_capture_stack){frames, count};
			table->slots[at] = index + 1;
			return index;
		}
		const struct stall_capture_stack *stack = &stacks->stacks[slot - 1];
		if (stack->count == count &&
		    !memcmp(stack->frames, frames, count * sizeof(*frames)))
			return slot - 1;
	}
}

static struct stall_error *allocate(struct stall_capture_stacks *stacks, size_t threads,
				    size_t kernel_frames)
{
	stacks->stacks = calloc(threads * 2 + 1, sizeof(*stacks->stacks));
	stacks->user = malloc((threads + 1) * sizeof(*stacks->user));
	stacks->kernel = malloc((threads + 1) * sizeof(*stacks->kernel));
	stacks->kernel_frames = calloc(kernel_frames + 1, sizeof(*stacks->kernel_frames));
	stacks->frame_ids = calloc(kernel_frames + 1, sizeof(*stacks->frame_ids));
	if (!stacks->stacks || !stacks->user || !stacks->kernel || !stacks->kernel_frames ||
	    !stacks->frame_ids)
		return &stall_enomem;
	return NULL;
}

static void fill(struct stall_capture_stacks *stacks, const struct stall_snapshot *snapshot,
		 const struct stall_unwound *unwound, struct index_table *addresses,
		 struct index_table *known)
{
	uint32_t *ids = stacks->frame_ids;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];
		const struct stall_stack *user = &unwound->stacks[i];

		stacks->user[i] = user->count
					  ? intern_stack(stacks, known, user->frames, user->count)
					  : UINT32_MAX;
		stacks->kernel[i] = UINT32_MAX;
		if (!thread->kernel_frame_count || thread->unchanged)
			continue;
		for (uint32_t j = 0; j < thread->kernel_frame_count; j++)
			ids[j] = unwound->frame_count +
				 intern_address(stacks, addresses, thread->kernel_frames[j]);
		size_t before = stacks->stack_count;
		stacks->kernel[i] = intern_stack(stacks, known, ids, thread->kernel_frame_count);
		if (stacks->stack_count > before)
			ids += thread->kernel_frame_count;
	}
}

struct stall_error *stall_capture_stacks_init(struct stall_capture_stacks *stacks,
					      const struct stall_snapshot *snapshot,
					      const struct stall_unwound *unwound)
{
	_cleanup_(table_deinit) struct index_table addresses = {}, known = {};
	size_t kernel_frames = 0;

	*stacks = (struct stall_capture_stacks){};
	for (size_t i = 0; i < snapshot->thread_count; i++)
		kernel_frames += snapshot->threads[i].unchanged
					 ? 0
					 : snapshot->threads[i].kernel_frame_count;
	struct stall_error *err = allocate(stacks, snapshot->thread_count, kernel_frames);
	if (!err)
		err = table_init(&addresses, kernel_frames);
	if (!err)
		err = table_init(&known, snapshot->thread_count * 2);
	if (err) {
		stall_capture_stacks_deinit(stacks);
		return err;
	}
	fill(stacks, snapshot, unwound, &addresses, &known);
	return NULL;
}

void stall_capture_stacks_deinit(struct stall_capture_stacks *stacks)
{
	free(stacks->stacks);
	free(stacks->user);
	free(stacks->kernel);
	free(stacks->kernel_frames);
	free(stacks->frame_ids);
	*stacks = (struct stall_capture_stacks){};
}
