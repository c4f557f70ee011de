// SPDX-License-Identifier: Apache-2.0
#include "capture/core_capture.h"

#include <fcntl.h>

#include "base/cleanup.h"
#include "capture/saved_capture.h"
#include "core/core.h"

// The child's inputs: its files are opened before it drops its privileges.
struct inputs {
	const struct stall_core_capture_options *options;
	int core_fd, exe_fd, sysroot_fd;
};

static void inputs_deinit(struct inputs *inputs)
{
	stall_closep(&inputs->core_fd);
	stall_closep(&inputs->exe_fd);
	stall_closep(&inputs->sysroot_fd);
}

static struct stall_error *open_inputs(struct inputs *inputs)
{
	struct stall_error *err = stall_saved_open(inputs->options->core, 0, &inputs->core_fd);

	if (!err)
		err = stall_saved_open(inputs->options->exe, 0, &inputs->exe_fd);
	if (!err)
		err = stall_saved_open(inputs->options->sysroot, O_DIRECTORY, &inputs->sysroot_fd);
	return err;
}

static struct stall_error *create(void *arg, struct stall_arena *arena, struct stall_snapshot **ret)
{
	struct inputs *inputs = arg;
	const struct stall_core_options options = {
		.exe_fd = inputs->exe_fd,
		.exe = inputs->options->exe,
		.sysroot_fd = inputs->sysroot_fd,
		.max_stack = inputs->options->snapshot.max_stack,
		.max_threads = inputs->options->snapshot.max_threads,
	};
	struct stall_error *err = stall_core_create(arena, inputs->core_fd, &options, ret);

	if (!err)
		inputs->core_fd = -1; // the snapshot's now
	return err;
}

struct stall_error *stall_core_capture(const struct stall_core_capture_options *options,
				       struct stall_output *output, bool *ret_partial)
{
	_cleanup_(inputs_deinit) struct inputs inputs = {options, -1, -1, -1};
	const struct stall_saved_capture saved = {
		.path = options->core,
		.what = "core file",
		.worker = options->worker,
		.strings = options->strings,
		.string_count = options->string_count,
		.create = create,
		.arg = &inputs,
	};
	struct stall_error *err = open_inputs(&inputs);

	return err ? err : stall_saved_capture(&saved, output, ret_partial);
}
