// SPDX-License-Identifier: Apache-2.0
// `stallscope-probe waits`: a line of stallscope.waits/1 for each interval.
#ifndef STALL_WAITS_COMMAND_H
#define STALL_WAITS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "watch/watch.h"

struct stall_waits_options {
	uint64_t interval_ns;
	uint64_t duration_ns; // 0: until the end of standard input
	bool follow;	      // keep running without a process, for the next one
};
void stall_waits_options_init(struct stall_waits_options *options);

// Watches until the duration ends, "quit" or the end of `in`, SIGINT or SIGTERM; then a final line.
struct stall_error *stall_waits_run(const struct stall_watch_options *watch,
				    const struct stall_waits_options *options, const pid_t *pids,
				    size_t pid_count, int in, int out);

#endif
