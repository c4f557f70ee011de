// SPDX-License-Identifier: Apache-2.0
// The command line.
#ifndef STALL_OPTIONS_H
#define STALL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/layout.h"
#include "capture/burst.h"
#include "capture/capturer.h"
#include "command/cache_command.h"
#include "command/option_table.h"
#include "command/pack_command.h"
#include "command/rings_command.h"
#include "command/storage_command.h"
#include "command/waits_command.h"
#include "growth/growth.h"
#include "serve/serve.h"
#include "watch/watch.h"

#define STALL_MAX_PIDS 4096
#define STALL_MAX_STRINGS 64
#define STALL_MAX_LAYOUTS 64
#define STALL_MAX_DEBUG_DIRS 16

struct stall_options {
	enum stall_command command;
	struct stall_capturer_options capture;
	struct stall_burst_options burst; // one capture: no burst
	pid_t *pids;
	const char *strings[STALL_MAX_STRINGS];
	const char *debug_dirs[STALL_MAX_DEBUG_DIRS];
	size_t debug_dir_count;
	const char *pack_dirs[STALL_MAX_SEARCH_DIRS];
	size_t pack_dir_count;
	const char *file; // of pack
	struct stall_layout layout;
	const char *layouts[STALL_MAX_LAYOUTS];
	const char *core, *exe, *sysroot;
	const char *output; // NULL: standard output
	bool force_overwrite;
	struct stall_watch_options watch;
	bool kind_given, interval_given;
	struct stall_waits_options waits;
	struct stall_storage_options storage;
	struct stall_serve_options serve;
	struct stall_rings_options rings;
	struct stall_cache_command cache;
	struct stall_growth_options growth;
};

// The options point into argv and into themselves.
struct stall_error *stall_options_init(struct stall_options *options, int argc, char **argv);
void stall_options_deinit(struct stall_options *options);

#endif
