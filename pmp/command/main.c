// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/output.h"
#include "base/priority.h"
#include "base/privileges.h"
#include "base/signals.h"
#include "capture/burst.h"
#include "capture/capturer.h"
#include "capture/core_capture.h"
#include "capture/ring_capture.h"
#include "command/cache_command.h"
#include "command/feature_report.h"
#include "command/growth_command.h"
#include "command/help.h"
#include "command/memory_command.h"
#include "command/options.h"
#include "command/pack_command.h"
#include "command/rings_command.h"
#include "command/symbolize_lines.h"
#include "command/waits_command.h"
#include "serve/serve.h"
#include "unwind/debug_file.h"
#include "unwind/pack_dirs.h"

enum exit_status {
	EXIT_DONE = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_PARTIAL = 3,
};

// True: Ctrl-C or SIGTERM came first.
static bool is_stopped_until(int signals, uint64_t ns)
{
	struct pollfd ready = {.fd = signals, .events = POLLIN};
	uint64_t now;

	do {
		now = stall_clock_ns(CLOCK_MONOTONIC);
		const uint64_t left = ns > now ? ns - now : 0;
		const struct timespec wait = {left / 1000000000, left % 1000000000};
		if (ppoll(&ready, 1, &wait, NULL) > 0)
			return true;
	} while (now < ns);
	return false;
}

static struct stall_error *burst(const struct stall_options *options,
				 struct stall_capturer *capturer, struct stall_output *output,
				 bool *ret_partial)
{
	_cleanup_(stall_burst_destroyp) struct stall_burst *burst = NULL;
	struct stall_error *err =
		stall_burst_begin(capturer, &options->burst, NULL, false, output, &burst);
	_cleanup_close_ int signals = -1;
	uint64_t next_ns;

	// From here on there is something to keep.
	if (!err)
		err = stall_signals_block(&signals);
	while (!err && (next_ns = stall_burst_next_ns(burst))) {
		if (is_stopped_until(signals, next_ns))
			stall_burst_stop(burst, "it was interrupted");
		else
			err = stall_burst_step(burst);
	}
	return err ? err : stall_burst_finish(burst, ret_partial);
}

// What the connections ran has SQL in it: it never goes into the file of a capture.
static struct stall_error *write_sessions(const struct stall_options *options,
					  struct stall_capturer *capturer,
					  struct stall_output *output)
{
	_cleanup_(stall_output_destroyp) struct stall_output *standard = NULL;
	_cleanup_free_ char *lines = NULL;
	size_t size = 0;
	struct stall_error *err = stall_capturer_sessions(capturer, &lines, &size);

	if (err || !size)
		return err;
	if (!options->output)
		return stall_output_write(output, lines, size);
	err = stall_output_create_fd(STDOUT_FILENO, &standard);
	if (!err)
		err = stall_output_write(standard, lines, size);
	return err ? err : stall_output_commit(standard);
}

static struct stall_error *snap(const struct stall_options *options, struct stall_output *output,
				bool *ret_partial)
{
	_cleanup_(stall_capturer_destroyp) struct stall_capturer *capturer = NULL;
	struct stall_error *err = stall_capturer_create(&options->capture, &capturer);

	if (err)
		return err;
	err = options->burst.captures > 1 ? burst(options, capturer, output, ret_partial)
					  : stall_capturer_capture(capturer, output, ret_partial);
	return err ? err : write_sessions(options, capturer, output);
}

static struct stall_error *core(const struct stall_options *options, struct stall_output *output,
				bool *ret_partial)
{
	const struct stall_core_capture_options core_options = {
		.core = options->core,
		.exe = options->exe,
		.sysroot = options->sysroot,
		.snapshot = options->capture.snapshot,
		.worker = options->capture.worker,
		.strings = options->capture.strings,
		.string_count = options->capture.string_count,
	};

	return stall_core_capture(&core_options, output, ret_partial);
}

static struct stall_error *ring(const struct stall_options *options, struct stall_output *output,
				bool *ret_partial)
{
	const struct stall_ring_capture_options ring_options = {
		.ring = options->capture.snapshot.ring,
		.sysroot = options->sysroot,
		.snapshot = options->capture.snapshot,
		.worker = options->capture.worker,
	};

	return stall_ring_capture(&ring_options, output, ret_partial);
}

typedef struct stall_error *(*capture_fn)(const struct stall_options *options,
					  struct stall_output *output, bool *ret_partial);

static struct stall_error *capture(const struct stall_options *options, capture_fn take,
				   bool *ret_partial)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	bool partial = false;

	// First, so that a name that cannot be used costs the target nothing.
	struct stall_error *err =
		stall_output_create(options->output, options->force_overwrite, &output);
	if (!err)
		err = take(options, output, &partial);
	if (!err)
		err = stall_output_commit(output);
	if (!err)
		*ret_partial = partial;
	return err;
}

// The folder of the files that the command makes; NULL: it makes none. `path` is overwritten.
static const char *output_folder(const struct stall_options *options, char *path)
{
	if (path)
		return dirname(path);
	return options->command == STALL_COMMAND_SERVE ? options->serve.captures : NULL;
}

static struct stall_error *reduce_privileges(const struct stall_options *options)
{
	_cleanup_free_ char *path = options->output ? strdup(options->output) : NULL;
	bool is_waits = options->command == STALL_COMMAND_WAITS,
	     is_serve = options->command == STALL_COMMAND_SERVE,
	     is_snap = options->command == STALL_COMMAND_SNAP;
	bool may_stop = options->capture.allow_stop ||
			(options->capture.backend && !strcmp(options->capture.backend, "ptrace"));
	const struct stall_privileges privileges = {
		.reads_processes = is_waits || is_serve || is_snap ||
				   options->command == STALL_COMMAND_MEMORY ||
				   options->command == STALL_COMMAND_SESSIONS ||
				   options->command == STALL_COMMAND_STORAGE ||
				   options->command == STALL_COMMAND_GROWTH ||
				   options->command == STALL_COMMAND_FEATURES,
		.opens_programs = options->command == STALL_COMMAND_CORE ||
				  options->command == STALL_COMMAND_RINGS ||
				  options->command == STALL_COMMAND_CACHE,
		.asks_as_owner = options->command == STALL_COMMAND_CACHE,
		.sets_uprobes = ((is_waits || is_serve) && options->watch.source.uprobes) ||
				options->command == STALL_COMMAND_FEATURES,
		.stops_threads = (is_serve || is_snap) && may_stop,
		.output_folder = output_folder(options, path),
	};

	if (options->output && !path)
		return &stall_enomem;
	// Before the children are made. The work of a second is limited: see docs/wait-programs.md.
	if (is_waits || (is_serve && options->serve.watch))
		stall_raise_priority();
	return stall_privileges_reduce(&privileges);
}

static struct stall_error *symbolize(const struct stall_options *options)
{
	const struct stall_symbolizer_options symbolizer_options = {
		.dirs = options->debug_dirs,
		.dir_count = options->debug_dir_count,
		.pack_dirs = options->pack_dirs,
		.pack_dir_count = options->pack_dir_count,
	};

	return stall_symbolize_lines(&symbolizer_options, STDIN_FILENO, STDOUT_FILENO);
}

static struct stall_error *pack(const struct stall_options *options)
{
	const struct stall_pack_options pack_options = {
		.file = options->file,
		.output = options->output,
		.debug_dir = options->debug_dir_count ? options->debug_dirs[0] : NULL,
		.force_overwrite = options->force_overwrite,
	};

	return stall_pack_run(&pack_options, STDOUT_FILENO);
}

static struct stall_error *run(const struct stall_options *options, bool *ret_partial)
{
	switch (options->command) {
	case STALL_COMMAND_HELP:
		fputs(stall_help, stdout);
		return NULL;
	case STALL_COMMAND_VERSION:
		puts("stallscope-probe " STALL_VERSION);
		return NULL;
	case STALL_COMMAND_SNAP:
		return capture(options, snap, ret_partial);
	case STALL_COMMAND_CORE:
		return capture(options, core, ret_partial);
	case STALL_COMMAND_RING:
		return capture(options, ring, ret_partial);
	case STALL_COMMAND_RINGS:
		return stall_rings_run(&options->rings, options->pids, options->capture.pid_count,
				       &options->watch.source, STDOUT_FILENO);
	case STALL_COMMAND_SYMBOLIZE:
		return symbolize(options);
	case STALL_COMMAND_PACK:
		return pack(options);
	case STALL_COMMAND_SERVE:
		return stall_serve(&options->serve, &options->capture, &options->watch,
				   STDIN_FILENO, STDOUT_FILENO);
	case STALL_COMMAND_WAITS:
		return stall_waits_run(&options->watch, &options->waits, options->pids,
				       options->capture.pid_count, STDIN_FILENO, STDOUT_FILENO);
	case STALL_COMMAND_MEMORY:
		return stall_memory_run(&options->capture, STDIN_FILENO, STDOUT_FILENO);
	case STALL_COMMAND_GROWTH:
		return stall_growth_run(&options->growth, STDOUT_FILENO, ret_partial);
	case STALL_COMMAND_SESSIONS:
		return stall_sessions_run(&options->capture, STDOUT_FILENO);
	case STALL_COMMAND_STORAGE:
		return stall_storage_run(&options->storage, options->pids,
					 options->capture.pid_count, STDIN_FILENO, STDOUT_FILENO);
	case STALL_COMMAND_CACHE:
		return stall_cache_command_run(&options->cache, STDOUT_FILENO, ret_partial);
	case STALL_COMMAND_FEATURES:
		return stall_features_write(STDOUT_FILENO);
	}
	return NULL;
}

// Captures have a note of it. These have none.
static struct stall_error *report_distrust(const struct stall_options *options)
{
	_cleanup_(stall_search_dirs_deinit) struct stall_search_dirs debug_dirs = {}, packs = {};

	if (options->command != STALL_COMMAND_WAITS && options->command != STALL_COMMAND_GROWTH)
		return NULL;
	struct stall_error *err = stall_search_dirs_init(&debug_dirs, options->debug_dirs,
							 options->debug_dir_count, STALL_DEBUG_DIR);
	if (!err)
		err = stall_search_dirs_init(&packs, options->pack_dirs, options->pack_dir_count,
					     STALL_PACK_DIR);
	if (!err && debug_dirs.distrusted)
		fprintf(stderr, "stallscope-probe: %s\n", debug_dirs.distrusted->message);
	if (!err && packs.distrusted)
		fprintf(stderr, "stallscope-probe: %s\n", packs.distrusted->message);
	return err;
}

// Two descriptors for each process and one for each file: the usual soft limit of 1024 is for
// programs that call select(2).
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

int main(int argc, char **argv)
{
	_cleanup_(stall_options_deinit) struct stall_options options = {};
	bool partial = false;

	// Stacks of the target are in our memory: no core dump of it. (The sanitizers' leak check
	// must be able to read its own process.)
#ifndef __SANITIZE_ADDRESS__
	prctl(PR_SET_DUMPABLE, 0);
#endif
	// Without SIGPIPE a closed reader is an error of write(2).
	signal(SIGPIPE, SIG_IGN);
	raise_file_limit();

	struct stall_error *err = stall_options_init(&options, argc, argv);
	if (!err)
		err = reduce_privileges(&options);
	if (!err)
		err = report_distrust(&options);
	if (!err)
		err = run(&options, &partial);
	if (!err && (fflush(stdout) || ferror(stdout)))
		err = stall_error_os(errno, "standard output");
	if (!err)
		return partial ? EXIT_PARTIAL : EXIT_DONE;
	fprintf(stderr, "stallscope-probe: %s\n", err->message);
	int status = err->code == STALL_ERROR_USAGE ? EXIT_USAGE : EXIT_FAILED;
	stall_error_destroy(err);
	return status;
}
