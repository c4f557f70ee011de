// SPDX-License-Identifier: Apache-2.0
#include "snapshot/stack_copy.h"

#include "base/cleanup.h"
#include "proc/read_child.h"

// The largest distance of glibc's thread pointer above the stack pointer for both to be of one
// stack whose mapping is not known (the thread is newer than our copy of the mappings).
#define MAX_YOUNG_STACK (64UL * 1024 * 1024)
// For a stack whose end is not known at all; the read ends with the mapping.
#define BLIND_SIZE (64UL * 1024)
#define MIN_ADDRESS 0x1000UL
#define MAX_ADDRESS 0x00ffffffffffffffUL // user half, five-level paging

struct range {
	uint64_t start, end;
	bool blind; // the end is a guess: a short read is no loss
};

static struct range stack_range(const struct stall_maps *maps, const struct stall_thread *thread)
{
	uint64_t sp = thread->regs.value[STALL_REG_SP], fs_base = thread->fs_base;
	const struct stall_mapping *mapping;

	if (!(thread->regs.valid & (1U << STALL_REG_SP)) || sp < MIN_ADDRESS || sp > MAX_ADDRESS)
		return (struct range){};
	mapping = stall_maps_find(maps, sp);
	if (mapping)
		return (struct range){
			.start = sp - mapping->start >= STALL_RED_ZONE ? sp - STALL_RED_ZONE : sp,
			.end = stall_stack_end(maps, sp, fs_base),
		};
	if (fs_base > sp && fs_base - sp <= MAX_YOUNG_STACK)
		return (struct range){.start = sp, .end = fs_base};
	return (struct range){.start = sp, .end = sp + BLIND_SIZE, .blind = true};
}

// Makes room for the copy and sets the range to read, which is empty where there is nothing or no
// room.
static struct stall_read prepare(const struct stall_snapshot *snapshot,
				 struct stall_stack_copy *copy, size_t max_stack, size_t *full)
{
	struct stall_thread *thread = copy->thread;
	struct range range = stack_range(snapshot->processes[thread->process].maps, thread);

	if (copy->end && copy->end < range.end) {
		range.end = copy->end;
		range.blind = false;
	}
	size_t size = range.end > range.start ? range.end - range.start : 0;

	copy->truncated = size > max_stack || range.blind;
	if (size > max_stack)
		size = max_stack;
	thread->stack_address = range.start;
	thread->stack_size = 0;
	if (size > copy->capacity) {
		uint8_t *stack = stall_arena_alloc(snapshot->arena, size);

		if (!stack) {
			copy->truncated = true;
			(*full)++;
			return (struct stall_read){};
		}
		thread->stack = stack;
		copy->capacity = size;
	}
	return (struct stall_read){.address = range.start, .buf = thread->stack, .size = size};
}

static struct stall_error *read_process(const struct stall_snapshot *snapshot, uint32_t process,
					struct stall_stack_copy *const *copies,
					struct stall_read *reads, size_t count)
{
	struct stall_error *err =
		stall_read_child_memory(&snapshot->processes[process].target, reads, count);

	// It has ended, or delays the read: its threads get no copies, those of other processes do.
	if (err && (err->code == STALL_ERROR_NO_PROCESS || err->code == STALL_ERROR_LATE)) {
		stall_error_destroy(err);
		err = NULL;
	}
	if (err)
		return err;
	for (size_t i = 0; i < count; i++) {
		copies[i]->thread->stack_size = reads[i].done;
		if (reads[i].done < reads[i].size)
			copies[i]->truncated = true;
	}
	return NULL;
}

struct stall_error *stall_stacks_copy(const struct stall_snapshot *snapshot,
				      struct stall_stack_copy *const *copies, size_t count,
				      size_t max_stack, size_t *ret_full)
{
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));
	size_t full = 0;

	if (!reads)
		return &stall_enomem;
	for (size_t first = 0, next; first < count; first = next) {
		uint32_t process = copies[first]->thread->process;

		for (next = first; next < count && copies[next]->thread->process == process; next++)
			reads[next] = prepare(snapshot, copies[next], max_stack, &full);
		struct stall_error *err = read_process(snapshot, process, copies + first,
						       reads + first, next - first);
		if (err)
			return err;
	}
	*ret_full = full;
	return NULL;
}
