// SPDX-License-Identifier: Apache-2.0
// The input is a core file.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "fuzz.h"
#include "inputs.h"

#define ARENA (64 << 20)

static void check_maps(const struct stall_maps *maps)
{
	for (size_t i = 0; i < maps->mapping_count; i++) {
		const struct stall_mapping *mapping = &maps->mappings[i];

		must(mapping->module == STALL_NO_MODULE || mapping->module < maps->module_count);
	}
	for (size_t i = 0; i < maps->module_count; i++)
		must(maps->modules[i].path && maps->modules[i].start <= maps->modules[i].end);
}

static void check(const struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->process_count; i++)
		check_maps(snapshot->processes[i].maps);
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		must(thread->process < snapshot->process_count);
		// The copy is there to its last byte.
		for (size_t j = 0; j < thread->stack_size; j++)
			((volatile uint8_t *)thread->stack)[j];
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct stall_arena arena;
	// Files that the input names are searched for where there are none.
	const struct stall_core_options options = {
		.files = {-1, -1, open("/proc/self/fdinfo", O_PATH | O_DIRECTORY | O_CLOEXEC)},
		.max_stack = 65536,
		.max_threads = 64,
	};
	struct stall_snapshot *snapshot;
	int fd = file_of(data, size);

	if (!arena.base)
		must(!stall_arena_init(&arena, ARENA));
	stall_arena_reset(&arena, 1 << 20);
	struct stall_error *err = stall_core_create(&arena, fd, &options, &snapshot);
	if (err) {
		stall_error_destroy(err);
	} else {
		check(snapshot);
		stall_snapshot_destroy(snapshot);
	}
	close(options.files.sysroot);
	return 0;
}
