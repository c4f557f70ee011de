// SPDX-License-Identifier: Apache-2.0
// `stallscope-probe cache`: what the page cache holds of a server's files, and dropping old logs
// from it.
#ifndef STALL_CACHE_COMMAND_H
#define STALL_CACHE_COMMAND_H

#include <stdbool.h>

#include "base/error.h"
#include "cache/cache_files.h"
#include "cache/cache_plan.h"

#define STALL_CACHE_MAX_PIDS 4096

struct stall_cache_command {
	pid_t pids[STALL_CACHE_MAX_PIDS];
	struct stall_cache_options scan;
	struct stall_cache_plan plan;
	bool drop;
	uint64_t after_ns; // how long reads are watched, before and after; 0: not
};

// Its own options, of argv[0] "cache". *ret_help: --help was among them.
struct stall_error *stall_cache_command_parse(struct stall_cache_command *command, int argc,
					      char **argv, bool *ret_help);

// Writes one line of JSON.
struct stall_error *stall_cache_command_run(const struct stall_cache_command *command, int out,
					    bool *ret_partial);

#endif
