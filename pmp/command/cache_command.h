// SPDX-License-Identifier: Apache-2.0
// `stallscope-probe cache`: what the page cache holds of a server's files, and dropping old logs
// from it.
#ifndef STALL_CACHE_COMMAND_H
#define STALL_CACHE_COMMAND_H

#include <stdbool.h>

#include "base/error.h"
#include "cache/cache_files.h"
#include "cache/cache_plan.h"

struct stall_cache_command {
	struct stall_cache_options scan;
	struct stall_cache_plan plan;
	bool drop;
	uint64_t after_ns; // how long reads are watched, before and after; 0: not
};

void stall_cache_command_init(struct stall_cache_command *command);
struct stall_error *stall_cache_option_dir(const char *name, const char *text, const char **dirs,
					   size_t *count);
struct stall_error *stall_cache_option_classes(struct stall_cache_plan *plan, const char *text);
struct stall_error *stall_cache_option_keep(struct stall_cache_plan *plan,
					    enum stall_cache_keep keep, const char *name,
					    const char *text);
struct stall_error *stall_cache_command_check(const struct stall_cache_command *command);

// Writes one line of JSON.
struct stall_error *stall_cache_command_run(const struct stall_cache_command *command, int out,
					    bool *ret_partial);

#endif
