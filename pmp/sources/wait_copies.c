// SPDX-License-Identifier: Apache-2.0
#include "sources/wait_copies.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "snapshot/stack_copy.h"
#include "waits/wait_roles.h"
#include "waits/wait_source.h"

// The stacks of threads that wait, as stall_stacks_copy() takes them.
struct copies {
	struct stall_snapshot snapshot;
	struct stall_stack_copy *copies;
	struct stall_stack_copy **pointers;
};

static void copies_deinit(struct copies *copies)
{
	free(copies->snapshot.threads);
	free(copies->copies);
	free(copies->pointers);
}

static struct stall_error *copies_init(struct copies *copies, struct stall_arena *arena,
				       const struct stall_wait_process *process,
				       struct stall_wait_item *const *items, size_t count)
{
	copies->snapshot = (struct stall_snapshot){
		.arena = arena,
		.processes = process->snapshot->processes,
		.process_count = 1,
		.threads = calloc(count + 1, sizeof(*copies->snapshot.threads)),
	};
	copies->copies = calloc(count + 1, sizeof(*copies->copies));
	copies->pointers = calloc(count + 1, sizeof(*copies->pointers));
	if (!copies->snapshot.threads || !copies->copies || !copies->pointers)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++) {
		struct stall_thread *thread = &copies->snapshot.threads[i];

		thread->regs.value[STALL_REG_SP] = items[i]->record.regs[STALL_BPF_SP];
		thread->regs.valid = 1u << STALL_REG_SP;
		copies->copies[i].thread = thread;
		copies->pointers[i] = &copies->copies[i];
	}
	return NULL;
}

// A thread that is in the same wait before and after has not moved its stack in between.
static void take_copy(const struct stall_wait_process *process, const struct stall_thread *thread,
		      struct stall_wait_item *item, stall_wait_slot_is_fn slot_is, void *state)
{
	if (item->record.key.kind == STALL_WAIT_FUTEX)
		stall_wait_read_word(process, item->record.key.id, &item->futex);
	item->exact = slot_is(state, item->record.slot, item->record.seq);
	if (!item->exact)
		item->futex.readable = false;
	if (!item->exact || !thread->stack_size)
		return;
	item->stack = thread->stack;
	item->stack_size = thread->stack_size;
	item->stack_address = thread->stack_address;
}

struct stall_error *stall_wait_copy_stacks(struct stall_arena *arena,
					   const struct stall_wait_process *process,
					   struct stall_wait_item *const *items, size_t count,
					   stall_wait_slot_is_fn slot_is, void *state)
{
	_cleanup_(copies_deinit) struct copies copies = {};
	size_t full = 0;
	struct stall_error *err = copies_init(&copies, arena, process, items, count);

	if (!err)
		err = stall_stacks_copy(&copies.snapshot, copies.pointers, count,
					STALL_WAIT_MAX_STACK, &full);
	for (size_t i = 0; !err && i < count; i++)
		take_copy(process, copies.copies[i].thread, items[i], slot_is, state);
	return err;
}
