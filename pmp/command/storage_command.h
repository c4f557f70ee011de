// SPDX-License-Identifier: Apache-2.0
// `stallscope-probe storage`: lines of stallscope.storage-files/1.
#ifndef STALL_STORAGE_COMMAND_H
#define STALL_STORAGE_COMMAND_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_storage_options {
	uint64_t duration_ns; // 0: until the end of standard input
	uint64_t interval_ns; // 0: only the first and the final lines
};

// Counts until the time is over, "quit" or the end of `in`, SIGINT or SIGTERM, or all processes have
// ended; then the final lines.
struct stall_error *stall_storage_run(const struct stall_storage_options *options,
				      const pid_t *pids, size_t pid_count, int in, int out);

#endif
