// SPDX-License-Identifier: Apache-2.0
#include "capture/core_capture.h"

#include <sys/mman.h>

#include "base/cleanup.h"
#include "capture/saved_capture.h"
#include "core/core.h"
#include "proc/path_open.h"

// The child's inputs: its files are opened before it drops its privileges.
struct inputs {
	const struct stall_core_capture_options *options;
	int core_fd;
	struct stall_core_files files;
};

static struct stall_error *open_inputs(void *arg)
{
	struct inputs *inputs = arg;
	const struct stall_core_capture_options *options = inputs->options;
	struct stall_core_files *files = &inputs->files;
	struct stall_error *err =
		stall_saved_open(options->core, STALL_PATH_READ, &inputs->core_fd);

	if (!err)
		err = stall_saved_open(options->exe, STALL_PATH_READ, &files->exe_fd);
	files->vdso_fd = memfd_create("vdso", MFD_CLOEXEC);
	return err;
}

static struct stall_error *create(void *arg, struct stall_arena *arena, struct stall_snapshot **ret)
{
	struct inputs *inputs = arg;
	const struct stall_core_options options = {
		.files = inputs->files,
		.exe = inputs->options->exe,
		.max_stack = inputs->options->snapshot.max_stack,
		.max_threads = inputs->options->snapshot.max_threads,
	};

	return stall_core_create(arena, inputs->core_fd, &options, ret);
}

struct stall_error *stall_core_capture(const struct stall_core_capture_options *options,
				       struct stall_output *output, bool *ret_partial)
{
	struct inputs inputs = {options, -1, STALL_CORE_NO_FILES};
	const struct stall_saved_capture saved = {
		.path = options->core,
		.what = "core file",
		.worker = options->worker,
		.strings = options->strings,
		.string_count = options->string_count,
		.open = open_inputs,
		.create = create,
		.arg = &inputs,
	};
	struct stall_error *err =
		options->sysroot ? stall_path_add_root(options->sysroot, 0, &inputs.files.sysroot)
				 : NULL;

	return err ? err : stall_saved_capture(&saved, output, ret_partial);
}
