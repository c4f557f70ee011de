// SPDX-License-Identifier: Apache-2.0
// The region is shared with a process that may have been taken over: each record is copied once
// into memory of our own and checked there.
#include "unwind/worker_result.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/lengths.h"
#include "base/printable.h"
#include "unwind/symbols.h"

// Counts that the worker wrote, read once.
struct counts {
	uint64_t frames, indexes, strings;
};

static struct counts read_counts(const struct stall_job_layout *layout)
{
	const volatile struct stall_protocol_job *live = (void *)layout->region;

	return (struct counts){
		stall_at_most(live->frame_count, layout->job.frame_capacity),
		stall_at_most(live->index_count, layout->job.index_capacity),
		stall_at_most(live->string_bytes, layout->job.string_capacity),
	};
}

struct stall_error *stall_result_strings(const struct stall_job_layout *layout, char **ret,
					 size_t *ret_size)
{
	size_t size = read_counts(layout).strings;
	char *strings = malloc(size + 1);

	if (!strings)
		return &stall_enomem;
	memcpy(strings, layout->region + layout->job.strings, size);
	strings[size] = 0;
	stall_make_printable(strings, size); // a symbol may have any bytes
	*ret = strings;
	*ret_size = size;
	return NULL;
}

const char *stall_result_string(const char *strings, size_t size, uint32_t at)
{
	const char *string = at && at - 1 < size ? strings + (at - 1) : NULL;

	// Many frames could share one string of megabytes.
	return string && strnlen(string, STALL_MAX_LINKAGE + 1) <= STALL_MAX_LINKAGE ? string
										     : NULL;
}

static void read_frame(const struct stall_job_layout *layout,
		       const struct stall_unwound_storage *storage, size_t index,
		       struct stall_frame *ret)
{
	const struct stall_snapshot *snapshot = layout->snapshot;
	struct stall_protocol_frame frame;

	memcpy(&frame, layout->region + layout->job.frames + index * sizeof(frame), sizeof(frame));
	if (frame.process >= snapshot->process_count)
		frame.process = 0;
	if (frame.module >= snapshot->processes[frame.process].maps->module_count)
		frame.module = STALL_NO_MODULE;
	*ret = (struct stall_frame){
		.process = frame.process,
		.module = frame.module,
		.pc = frame.pc,
		.offset = frame.offset,
		.symbol =
			stall_result_string(storage->strings, storage->string_bytes, frame.symbol),
		.linkage =
			stall_result_string(storage->strings, storage->string_bytes, frame.linkage),
		.symbol_offset = frame.symbol_offset,
	};
	if (!ret->symbol)
		ret->linkage = NULL;
}

// Known without a worker: the thread's PC.
static void add_leaf(const struct stall_job_layout *layout, const struct stall_thread *thread,
		     struct stall_unwound *unwound, struct stall_stack *stack, size_t *index_count)
{
	struct stall_unwound_storage *storage = unwound->storage;
	const struct stall_maps *maps = layout->snapshot->processes[thread->process].maps;
	uint64_t pc = thread->regs.value[STALL_REG_PC];
	const struct stall_mapping *mapping = stall_maps_find(maps, pc);
	struct stall_frame frame = {.process = thread->process,
				    .pc = pc,
				    .module = STALL_NO_MODULE};

	if (mapping && mapping->module != STALL_NO_MODULE) {
		const struct stall_module *module = &maps->modules[mapping->module];

		frame.module = mapping->module;
		frame.offset = pc - (module->start - module->offset);
		storage->modules[layout->first_module[thread->process] + frame.module] = true;
	}
	stack->frames = storage->indexes + *index_count;
	stack->count = 1;
	storage->indexes[(*index_count)++] = (uint32_t)unwound->frame_count;
	unwound->frames[unwound->frame_count++] = frame;
}

static bool read_stack(const struct stall_job_layout *layout, const struct counts *counts,
		       const struct stall_unwound_storage *storage, size_t index,
		       struct stall_stack *ret)
{
	struct stall_protocol_stack stack;

	memcpy(&stack, layout->region + layout->job.stacks + index * sizeof(stack), sizeof(stack));
	if (!stack.done || !stall_fits(stack.first, stack.count, counts->indexes) ||
	    stack.count > STALL_MAX_FRAMES || stack.end > STALL_UNWIND_NOT_TRIED)
		return false;
	for (uint32_t i = 0; i < stack.count; i++) {
		if (storage->indexes[stack.first + i] >= counts->frames)
			return false;
	}
	*ret = (struct stall_stack){
		.frames = storage->indexes + stack.first,
		.count = stack.count,
		.end = stack.end,
		.live_reads = stack.live_reads,
	};
	return true;
}

static void read_stacks(const struct stall_job_layout *layout, const struct counts *counts,
			struct stall_unwound *unwound)
{
	const struct stall_snapshot *snapshot = layout->snapshot;
	size_t index_count = counts->indexes, at = 0;

	for (size_t i = 0; i < unwound->stack_count; i++) {
		struct stall_stack *stack = &unwound->stacks[i];
		const struct stall_thread *thread = &snapshot->threads[i];

		*stack = (struct stall_stack){.end = STALL_UNWIND_NOT_TRIED};
		if (thread->unchanged)
			continue;
		if (read_stack(layout, counts, unwound->storage, at++, stack) ||
		    !(thread->regs.valid & (1U << STALL_REG_PC)))
			continue;
		unwound->partial = true;
		add_leaf(layout, thread, unwound, stack, &index_count);
	}
}

static const char *const symbols_names[] = {"none",	      ".symtab",  ".dynsym",
					    ".gnu_debugdata", "separate", "pack"};
static const char *const cfi_names[] = {"none", ".eh_frame", ".debug_frame", "both"};
#define NAME_OF(names, value) (names[(value) < sizeof(names) / sizeof(names[0]) ? (value) : 0])

static void copy_build_id(char *to, size_t size, const char *from)
{
	size_t n = 0;

	while (n < size - 1 &&
	       ((from[n] >= '0' && from[n] <= '9') || (from[n] >= 'a' && from[n] <= 'f'))) {
		to[n] = from[n];
		n++;
	}
	to[n] = 0;
}

static void read_info(const struct stall_job_layout *layout,
		      const struct stall_unwound_storage *storage, uint32_t process,
		      uint32_t module, struct stall_module_info *ret)
{
	const struct stall_module *known =
		&layout->snapshot->processes[process].maps->modules[module];
	size_t index = layout->first_module[process] + module;
	struct stall_protocol_module_info info;

	memcpy(&info, layout->region + layout->job.infos + index * sizeof(info), sizeof(info));
	*ret = (struct stall_module_info){.process = process, .module = module};
	ret->symbols = NAME_OF(symbols_names, info.symbols);
	ret->cfi = NAME_OF(cfi_names, info.cfi);
	if (!info.examined) {
		ret->bias = known->start - known->offset;
		ret->error = known->error ? known->error : "the process that reads ELF files ended";
		return;
	}
	ret->bias = info.bias;
	copy_build_id(ret->build_id, sizeof(ret->build_id), info.build_id);
	ret->debug_file =
		stall_result_string(storage->strings, storage->string_bytes, info.debug_file);
	ret->pack_error =
		stall_result_string(storage->strings, storage->string_bytes, info.pack_error);
	ret->error = stall_result_string(storage->strings, storage->string_bytes, info.error);
	if (ret->error && known->error)
		ret->error = known->error;
}

static struct stall_error *read_infos(const struct stall_job_layout *layout,
				      struct stall_unwound *unwound)
{
	const struct stall_snapshot *snapshot = layout->snapshot;
	struct stall_unwound_storage *storage = unwound->storage;

	unwound->modules = calloc(layout->job.module_count + 1, sizeof(*unwound->modules));
	if (!unwound->modules)
		return &stall_enomem;
	for (uint32_t process = 0; process < snapshot->process_count; process++) {
		for (uint32_t i = 0; i < snapshot->processes[process].maps->module_count; i++) {
			size_t index = layout->first_module[process] + i;
			const volatile struct stall_protocol_module_info *live =
				(void *)(layout->region + layout->job.infos);

			if (storage->modules[index] || live[index].examined)
				read_info(layout, storage, process, i,
					  &unwound->modules[unwound->module_count++]);
		}
	}
	return NULL;
}

static struct stall_error *allocate(const struct stall_job_layout *layout,
				    const struct counts *counts, struct stall_unwound *unwound)
{
	size_t threads = layout->snapshot->thread_count;
	struct stall_unwound_storage *storage = calloc(1, sizeof(*storage));

	unwound->storage = storage;
	// One more frame per thread, for threads that the worker did not reach.
	unwound->frames =
		calloc(counts->frames + layout->job.thread_count + 1, sizeof(*unwound->frames));
	unwound->stacks = calloc(threads + 1, sizeof(*unwound->stacks));
	if (!storage || !unwound->frames || !unwound->stacks)
		return &stall_enomem;
	storage->indexes = malloc((counts->indexes + layout->job.thread_count + 1) *
				  sizeof(*storage->indexes));
	storage->modules = calloc(layout->job.module_count + 1, sizeof(*storage->modules));
	if (!storage->indexes || !storage->modules)
		return &stall_enomem;
	unwound->stack_count = threads;
	return NULL;
}

struct stall_error *stall_result_read(const struct stall_job_layout *layout,
				      struct stall_unwound *ret)
{
	_cleanup_(stall_unwound_deinit) struct stall_unwound unwound = {};
	struct counts counts = read_counts(layout);
	struct stall_error *err = allocate(layout, &counts, &unwound);

	if (err)
		return err;
	struct stall_unwound_storage *storage = unwound.storage;
	err = stall_result_strings(layout, &storage->strings, &storage->string_bytes);
	if (err)
		return err;
	memcpy(storage->indexes, layout->region + layout->job.indexes,
	       counts.indexes * sizeof(*storage->indexes));
	for (size_t i = 0; i < counts.frames; i++)
		read_frame(layout, storage, i, &unwound.frames[i]);
	unwound.frame_count = counts.frames;
	read_stacks(layout, &counts, &unwound);
	err = read_infos(layout, &unwound);
	if (err)
		return err;
	*ret = unwound;
	unwound = (struct stall_unwound){};
	return NULL;
}
